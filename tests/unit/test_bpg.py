"""The method as the paper has it: capacity, isolation, merging, ablations by settings alone."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from bpg import BPG, Backbone, Domain, ImageSet
from bpg.backbones.backbone import FINISHED, Probe
from bpg.backbones.clip import TextConfig, TextTower
from bpg.backbones.vit import ViT
from bpg.data.domain import DomainStream
from bpg.data.transforms import Preprocessing
from bpg.errors import DeviceError, ModelError, WrongUse
from bpg.experts.expert import Expert, ExpertSettings, parameter_count
from bpg.methods.base import prepared
from bpg.methods.parts.ways import ORACLE, Way
from bpg.metrics import Counts, average_accuracy
from bpg.randomness import generator_of
from bpg.store import history, load_state
from tests.command import model_files
from tests.conftest import shaken, small_config
from tests.oracles import oracle
from tests.toy import FAST, GENTLE, toy_backbone, toy_domain, toy_stream


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> DomainStream:
    return toy_stream(tmp_path_factory.mktemp("toy"))


def model(backbone: Backbone | None = None, **values: object) -> BPG:
    return BPG(backbone or toy_backbone(), **({"rank": 4, "optimisation": FAST, "augmentation": GENTLE} | values))


def small_clip() -> Backbone:
    torch.manual_seed(0)
    vit = shaken(ViT(small_config(pre_norm=True, patch_bias=False, activation="quick_gelu", projection=24)))
    text = shaken(TextTower(TextConfig(width=32, depth=1, heads=2, hidden=64, projection=24)))
    return Backbone(vit, Preprocessing(size=32), name="small clip", text=text, logit_scale=20.0)


def digests(learner: BPG, folder: Path) -> dict[str, bytes]:
    learner.save(folder)
    files = [folder / "model.json", *sorted((folder / "experts").iterdir())]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_the_rank_follows_from_separability(stream: DomainStream) -> None:
    learner = model(rank=None, s0=3.0, r0=8, optimisation=FAST | {"epochs": 1})
    learner.learn(stream.domains[0])
    facts = learner.facts("red")
    assert facts["separability"] == pytest.approx(facts["between"] / (facts["within"] + 1e-6))
    assert facts["rank"] == max(1, int(24 / facts["separability"] + 0.5))
    assert facts["parameters"] == sum(
        tensor.numel() for name, tensor in learner.state().domains["red"].tensors.items() if name.startswith("expert/")
    )
    same = model(rank=None, lam=24.0, optimisation=FAST | {"epochs": 1})
    same.learn(stream.domains[0])
    assert same.facts("red")["rank"] == facts["rank"]


def test_without_a_known_reference_a_rank_must_be_given() -> None:
    with pytest.raises(WrongUse, match="s_0 of toy is not known for the plain estimator.*s0, lam or rank"):
        model(rank=None)


def test_a_single_class_gets_the_reference_rank(tmp_path: Path) -> None:
    learner = model(rank=None, s0=1.0, r0=3, optimisation=FAST | {"epochs": 1})
    with pytest.warns(UserWarning, match="one class only"):
        learner.learn(toy_domain(tmp_path, "red", 6, classes=("bar",)))
    assert (learner.facts("red")["rank"], learner.facts("red")["separability"]) == (3, None)
    assert learner.predict_proba(torch.randn(2, 3, 32, 32)).tolist() == [[1.0], [1.0]]


def test_a_given_rank_needs_no_separability(tmp_path: Path) -> None:
    learner = model(estimator="corrected", optimisation=FAST | {"epochs": 1})
    learner.learn(toy_domain(tmp_path, "red", 3))  # one image a class: the corrected estimator has nothing to go by
    assert (learner.facts("red")["rank"], learner.facts("red")["separability"]) == (4, None)


def test_fewer_images_than_prototypes(tmp_path: Path) -> None:
    learner = model()
    learner.learn(toy_domain(tmp_path, "red", 3))
    assert [len(nu) for nu in learner.prototypes] == [3]


def test_any_order_and_any_merge_give_the_same_bytes(stream: DomainStream, tmp_path: Path) -> None:
    found = []
    for index, order in enumerate(itertools.permutations(stream.domains)):
        learner = model()
        for domain in order:
            learner.learn(domain)
        found.append(digests(learner, tmp_path / f"order{index}"))
    apart = []
    for domain in stream.domains:
        learner = model()
        learner.learn(domain)
        apart.append(learner)
    for index, order in enumerate(itertools.permutations(apart)):
        merged = model()
        for learner in order:
            merged.merge(learner)
        found.append(digests(merged, tmp_path / f"merge{index}"))
    assert all(files == found[0] for files in found[1:])


def test_relearning_a_domain_replaces_it_and_says_so(stream: DomainStream, tmp_path: Path) -> None:
    learner = model()
    learner.learn(toy_domain(tmp_path, "red", 12))
    with pytest.warns(UserWarning, match="red is known already: it is learned anew"):
        learner.learn(stream.domains[0])
    fresh = model()
    fresh.learn(stream.domains[0])
    assert digests(learner, tmp_path / "one") == digests(fresh, tmp_path / "other")


def test_what_cannot_be_merged(stream: DomainStream, tmp_path: Path) -> None:
    one = model()
    one.learn(stream.domains[0])
    other = model(seed=1)
    other.learn(stream.domains[1])
    with pytest.raises(ModelError, match="different settings cannot be merged.*seed: 0 and 1"):
        one.merge(other)
    with pytest.raises(ModelError, match="different backbone cannot be merged"):
        one.merge(model(toy_backbone(depth=2)))
    different = model()
    different.learn(toy_domain(tmp_path, "red", 12))
    with pytest.raises(ModelError, match="both models have a domain red, and they differ"):
        one.merge(different)
    assert one.domains == ("red",)
    strange = model()
    strange.learn(toy_domain(tmp_path, "white", 6, classes=("ring", "dot")))
    with pytest.raises(WrongUse, match="new classes"):
        one.merge(strange)


def test_merging_class_subsets_is_learning_them_in_sequence(tmp_path: Path) -> None:
    whole, part = toy_domain(tmp_path, "red"), toy_domain(tmp_path, "green", 12, classes=("bar", "box"))
    sequence, one, other = model(), model(), model()
    for domain in (whole, part):
        sequence.learn(domain)
    one.learn(whole)
    other.learn(part)
    one.merge(other)
    assert digests(one, tmp_path / "merged") == digests(sequence, tmp_path / "sequence")
    one.forget("green")
    assert digests(one, tmp_path / "merged") == digests(model_of(whole), tmp_path / "whole")


def model_of(*domains: Domain) -> BPG:
    learner = model()
    for domain in domains:
        learner.learn(domain)
    return learner


def test_a_checkpoint_of_another_training_is_not_taken_up(tmp_path: Path) -> None:
    """The same files and labels under other class names, other pixels or another precision are another training."""
    train = toy_domain(tmp_path, "red").train
    renamed = Domain("red", ImageSet(train.paths, train.labels, ("cross", "box", "bar")))
    learner = model(scratch=tmp_path / "scratch", checkpoint_seconds=0)
    learner.learn(Domain("red", train))
    assert list((tmp_path / "scratch").iterdir())
    for backbone, domain in ((toy_backbone(), renamed), (other_pixels(), Domain("red", train))):
        again = model(backbone, scratch=tmp_path / "scratch", checkpoint_seconds=0)
        fresh = model(backbone)
        again.learn(domain)
        fresh.learn(domain)
        assert digests(again, tmp_path / "again") == digests(fresh, tmp_path / "fresh")


def other_pixels() -> Backbone:
    backbone = toy_backbone()
    backbone.preprocessing = Preprocessing(size=32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    return backbone


def test_saving_removes_its_own_checkpoints_only(stream: DomainStream, tmp_path: Path) -> None:
    one, other = (model(scratch=tmp_path / "scratch", seed=seed) for seed in (0, 1))
    one.learn(stream.domains[0])
    other.learn(stream.domains[0])
    assert len(list((tmp_path / "scratch").iterdir())) == 2
    one.save(tmp_path / "one")
    assert len(list((tmp_path / "scratch").iterdir())) == 1


def test_two_writers_do_not_lose_each_others_domains(stream: DomainStream, tmp_path: Path) -> None:
    model_of(stream.domains[0]).save(tmp_path / "model")
    one, other = (BPG.load(tmp_path / "model", backbone=toy_backbone()) for _ in range(2))
    one.learn(stream.domains[1])
    one.save(tmp_path / "model")
    one.save(tmp_path / "model")  # one's own change is no surprise
    other.learn(stream.domains[2])
    with pytest.raises(ModelError, match="changed by somebody else.*merge the two"):
        other.save(tmp_path / "model")
    assert BPG.load(tmp_path / "model", backbone=toy_backbone()).domains == ("blue", "red")


def test_a_budget_of_parameters_or_megabytes(stream: DomainStream) -> None:
    plan = model(rank=None, lam=1.0, optimisation=FAST | {"epochs": 1})
    for budget in ({"parameters": 40_000}, {"megabytes": 0.2}):
        total = budget.get("parameters", 0.2e6 / 4)
        learner = model(rank=None, lam=plan.solve_capacity(stream.domains, **budget), optimisation=FAST | {"epochs": 1})
        for domain in stream.domains:
            learner.learn(domain)
        spent = sum(learner.facts(name)["parameters"] for name in learner.domains)
        assert 0.8 * total < spent <= total
    with pytest.raises(WrongUse, match="parameters or megabytes"):
        plan.solve_capacity(stream.domains)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"router": "sotf"}, "no router is called 'sotf'.*soft"),
        ({"fusion": "sum"}, "no such fusion"),
        ({"expert": {"parts": "lora", "lora_maps": ("q", "q")}}, "different maps for LoRA"),
        ({"expert": {"context": 4}}, "context 4 with a linear head"),
        ({"augmentation": {"area": (-1, 2)}}, "no crop is of this kind"),
        ({"optimisation": {"lr": float("inf")}}, "lr"),
        ({"epochs": 3}, "epochs: no such setting"),
        ({"expert": {"head": "text"}}, "a CLIP backbone for a text head"),
    ],
)
def test_wrong_settings_are_told_before_anything_is_learned(settings: dict[str, object], message: str) -> None:
    with pytest.raises(WrongUse, match=message):
        model(**settings)


def test_the_same_weights_from_elsewhere_go_by_the_models_name(
    stream: DomainStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """s_0 is known by that name, and the model's bytes hold it."""
    state = oracle("timm").create_model("deit_tiny_patch16_224").state_dict()
    file = tmp_path / "deit_tiny_patch16_224.safetensors"
    save_file({key: tensor.contiguous() for key, tensor in state.items()}, file)
    with monkeypatch.context() as patch:
        patch.setenv("BPG_WEIGHTS", str(tmp_path))
        settings = {"estimator": "corrected", "r0": 2, "optimisation": FAST | {"epochs": 1}}
        model = BPG("deit_tiny_patch16_224.fb_in1k", **settings)
        domain = stream.domains[0]
        few = [place for place in range(len(domain.train)) if place % 4 == 0]
        model.learn(Domain(domain.name, domain.train.subset(few)))
        model.save(tmp_path / "model")
    monkeypatch.delenv("BPG_WEIGHTS", raising=False)
    again = BPG.load(tmp_path / "model", backbone=str(file))
    again.save(tmp_path / "again")
    assert model_files(tmp_path / "again") == model_files(tmp_path / "model")


def test_load_makes_the_model_again(stream: DomainStream, tmp_path: Path) -> None:
    learner = model()
    for domain in stream.domains[:2]:
        learner.learn(domain)
    learner.save(tmp_path / "model", event="learned red and blue")
    again = BPG.load(tmp_path / "model", backbone=toy_backbone(), router="hard")
    assert (again.domains, again.way.router, again.settings) == (("blue", "red"), "hard", learner.settings)
    assert [entry["event"] for entry in history(tmp_path / "model")] == ["learned red and blue"]
    with pytest.raises(ModelError, match="learned on another backbone"):
        BPG.load(tmp_path / "model", backbone=toy_backbone(depth=2))
    with pytest.raises(ModelError, match="there is no model in"):
        BPG.load(tmp_path / "nowhere")


ABLATIONS = {
    "baseline": ({"expert": {"parts": "none"}}, "hard"),
    "with adapters": ({}, "hard"),
    "with soft mixture": ({"expert": {"parts": "none"}}, "soft"),
    "both": ({}, "soft"),
    "uniform rank": ({"rank": 2}, "soft"),
    "lora": ({"expert": {"parts": "lora"}}, "soft"),
    "lora everywhere": ({"expert": {"parts": "lora", "lora_maps": ("q", "k", "v", "proj", "fc1", "fc2")}}, "soft"),
    "no prompts": ({"expert": {"prompts": 0}}, "soft"),
    "adamw": ({"optimisation": FAST | {"optimizer": "adamw", "lr": 0.01}}, "soft"),
}


@pytest.mark.parametrize("name", list(ABLATIONS))
def test_ablations_by_settings_alone(name: str, stream: DomainStream) -> None:
    settings, router = ABLATIONS[name]
    learner = model(router=router, **({"optimisation": FAST | {"epochs": 12}} | settings))
    for domain in stream.domains:
        learner.learn(domain)
    right = tuple(round(learner.score(test.images) * len(test.images)) for test in stream.tests)
    assert average_accuracy(Counts((right,) * 3, tuple(len(test.images) for test in stream.tests))) > 60
    facts = learner.facts("red")
    expected = parameter_count(learner.backbone, 3, rank=facts["rank"], settings=learner.settings.expert)
    assert facts["parameters"] == expected


@pytest.mark.parametrize("context", [0, 4])
def test_clip_end_to_end(context: int, stream: DomainStream, tmp_path: Path) -> None:
    expert = {"head": "text", "context": context}
    learner = model(small_clip(), expert=expert, optimisation=FAST | {"epochs": 25, "lr": 0.02})
    for domain in stream.domains[:2]:
        learner.learn(domain)
    assert learner.score(stream.domains[0].train) > 0.6
    learner.save(tmp_path / "model")
    again = BPG.load(tmp_path / "model", backbone=small_clip())
    images = torch.randn(3, 3, 32, 32)
    assert torch.equal(again.forward(images).log_probs, learner.forward(images).log_probs)
    names = [name for name in learner.state().domains["red"].tensors if "context" in name]
    assert len(names) == (1 if context else 0)


def test_the_prediction_is_the_weighted_sum_of_the_experts(stream: DomainStream) -> None:
    learner = model(mixture="paper")
    for domain in stream.domains:
        learner.learn(domain)
    images = torch.randn(7, 3, 32, 32)
    found = learner.forward(images)
    z = learner.embed(images).double()
    a = torch.stack([(z[:, None] - nu[None]).norm(dim=2).amin(dim=1) for nu in learner.prototypes], dim=1)
    w = torch.softmax(-a, dim=1)
    w = torch.where(w >= 1 / 3, w, 0.0)
    w = w / w.sum(dim=1, keepdim=True)
    y = sum(w[:, t, None] * learner.expert_logits(images, t).double() for t in range(3))
    assert found.domain_weights is not None
    assert_close(found.domain_weights, w)
    assert_close(found.log_probs, torch.log_softmax(y, dim=1), rtol=1e-5, atol=1e-5)
    assert torch.equal(found.experts, (w > 0).sum(dim=1))
    oracle = learner.oracle(images, "green").log_probs
    assert_close(oracle, torch.log_softmax(learner.expert_logits(images, 1).double(), dim=1), rtol=1e-5, atol=1e-5)


def test_the_calibrated_mixture_averages_probabilities(stream: DomainStream) -> None:
    learner = model()
    for domain in stream.domains:
        learner.learn(domain)
    images = torch.cat(list(prepared(learner.backbone, stream.tests[0].images, 32)))
    found = learner.forward(images)
    z = learner.embed(images).double()
    a = torch.stack([(z[:, None] - nu[None]).norm(dim=2).amin(dim=1) for nu in learner.prototypes], dim=1)
    sigma = math.sqrt(sum(place.variance for place in learner.pool.located(FINISHED)) / 3)
    w = torch.softmax(-a / sigma, dim=1)
    w = torch.where(w >= 1 / 3, w, 0.0)
    w = w / w.sum(dim=1, keepdim=True)
    p = sum(w[:, t, None] * learner.expert_logits(images, t).double().softmax(dim=1) for t in range(3))
    assert found.domain_weights is not None
    assert_close(found.domain_weights, w)
    assert_close(found.log_probs.exp(), p, rtol=1e-5, atol=1e-5)
    assert found.unknown is not None
    assert ((found.unknown >= 0) & (found.unknown <= 1)).all()
    noise = learner.forward(5 * torch.randn(9, 3, 32, 32)).unknown
    assert noise is not None
    assert noise.min() > 0.95  # nothing of the kind was learned


@pytest.mark.parametrize("depth", [0, 1])
def test_routing_early_and_capped(depth: int, stream: DomainStream, tmp_path: Path) -> None:
    learner = model(fusion="mean", route_depth=depth, max_experts=2)
    for domain in stream.domains:
        learner.learn(domain)
    images = torch.cat(list(prepared(learner.backbone, stream.tests[0].images, 32)))
    found = learner.forward(images)
    assert set(found.experts.tolist()) == {2}
    probe = Probe(1, "moments") if depth else FINISHED
    (z,) = learner.backbone.features(images, [probe])
    places = [learner.pool[name].places[probe] for name in learner.domains]
    a = torch.stack([torch.cdist(z.double(), place.prototypes).amin(dim=1) for place in places], dim=1)
    assert found.domain_weights is not None
    assert torch.equal(found.domain_weights == 0, a == a.amax(dim=1, keepdim=True))
    learner.save(tmp_path / "model")
    again = BPG.load(tmp_path / "model", backbone=toy_backbone(), fusion="mean", route_depth=depth, max_experts=2)
    assert torch.equal(again.forward(images).log_probs, found.log_probs)


def test_ways_that_do_not_exist() -> None:
    for options, problem in (
        ({"mixture": "papr"}, "no mixture is called 'papr'.*Did you mean paper"),
        ({"route_depth": 7}, "cannot be routed after block 7.*a route_depth of 0, 1"),
        ({"max_experts": 0}, "max_experts of 1 or more"),
    ):
        with pytest.raises(WrongUse, match=problem):
            model(**options)
    with pytest.raises(DeviceError, match="half arithmetic is for another kind of device.*a backbone on cuda"):
        model(arithmetic="half")


def test_an_oracle_that_is_not_told_says_so_whatever_domains_are_called(stream: DomainStream) -> None:
    learner = model(optimisation=FAST | {"epochs": 1})
    learner.learn(Domain("None", stream.domains[0].train))
    images = torch.randn(2, 3, 32, 32)
    assert learner.oracle(images, "None").experts.tolist() == [1, 1]
    with pytest.raises(WrongUse, match="the oracle is not told the domain"):
        learner.compare(images, [Way(ORACLE)])
    with pytest.raises(WrongUse, match="no domain is called 'Nome'.*Did you mean None"):
        learner.oracle(images, "Nome")


def test_an_expert_begins_as_the_plain_backbone() -> None:
    backbone = toy_backbone()
    for parts in ("adapter", "lora"):
        settings = ExpertSettings(prompts=0, parts=parts)  # type: ignore[arg-type]
        expert = Expert(backbone, ("a", "b"), rank=5, settings=settings, generator=generator_of(0))
        images = torch.randn(3, 3, 32, 32)
        assert torch.equal(backbone(images, expert.tuning()), backbone(images))


def test_initial_weights_depend_on_seed_and_domain_alone(stream: DomainStream) -> None:
    still = FAST | {"lr": 0.0, "epochs": 1}
    first, second = model(optimisation=still), model(optimisation=still)
    first.learn(stream.domains[1])
    second.learn(stream.domains[0])
    second.learn(stream.domains[1])
    for name, tensor in first.state().domains["blue"].tensors.items():
        assert torch.equal(tensor, second.state().domains["blue"].tensors[name])


def test_nothing_frozen_has_a_gradient_or_optimiser_state(
    stream: DomainStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[torch.nn.Parameter] = []
    make = torch.optim.SGD

    def watched(parameters: list[torch.nn.Parameter], **options: float) -> torch.optim.Optimizer:
        held.extend(parameters)
        return make(parameters, **options)

    monkeypatch.setattr(torch.optim, "SGD", watched)
    learner = model()
    for domain in stream.domains[:2]:
        held.clear()
        learner.learn(domain)
        tensors = learner.state().domains[domain.name].tensors
        assert sum(parameter.numel() for parameter in held) == sum(
            tensor.numel() for name, tensor in tensors.items() if name.startswith("expert/")
        )
    frozen = {id(parameter) for parameter in learner.backbone.parameters()}
    assert not [parameter for parameter in held if id(parameter) in frozen]
    assert all(parameter.grad is None for parameter in learner.backbone.parameters())


def test_model_json_says_what_was_learned(stream: DomainStream, tmp_path: Path) -> None:
    learner = model()
    learner.learn(stream.domains[0])
    learner.save(tmp_path)
    document = json.loads((tmp_path / "model.json").read_text())
    assert document["format"] == 1
    assert document["backbone"]["name"] == "toy"
    assert list(document["domains"]) == ["red"]
    assert load_state(tmp_path).domains["red"].facts["images"] == 24


def test_domain_names_may_be_anything_printable(tmp_path: Path) -> None:
    learner = model(optimisation=FAST | {"epochs": 1})
    for name in ("../escape", "sp ace", "日本", "a/b\\c", "%s{}"):
        learner.learn(Domain(name, toy_domain(tmp_path, "red", 6).train))
    learner.save(tmp_path / "model")
    assert BPG.load(tmp_path / "model", backbone=toy_backbone()).domains == learner.domains
    assert {file.name for file in tmp_path.iterdir()} == {"model", "train", "bpg-cache"}


@pytest.mark.parametrize("way", [Way("calibrated", "probabilities"), Way("hard"), Way("soft", arithmetic="8-bit")])
def test_pixels_that_are_no_numbers_are_refused(stream: DomainStream, way: Way) -> None:
    learner = model_of(stream.domains[0])
    images = torch.zeros(2, 3, 32, 32)
    images[1, 0, 3, 3] = torch.nan
    with pytest.raises(WrongUse, match="NaN or infinity"):
        learner.compare(images, [way])
