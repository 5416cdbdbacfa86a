"""What every registered method promises, tested because it is registered."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from bpg.data.domain import Domain, DomainStream
from bpg.data.images import ImageSet
from bpg.errors import ModelError, TrainingError, WrongUse
from bpg.experiments.evaluation import ways_of
from bpg.methods.base import Isolated, Learner, Routable, prepared
from bpg.methods.parts.single import Single
from bpg.methods.parts.ways import ORACLE
from bpg.methods.parts.whole import Whole
from bpg.mixture import FUSIONS
from bpg.progress import Progress
from bpg.registry import METHODS
from bpg.store import Learned, State, load_state, save_state
from tests.toy import FAST, GENTLE, toy_backbone, toy_clip_backbone, toy_domain, toy_stream

WHOLE: dict[str, Any] = {"optimisation": FAST | {"lr": 0.005}, "augmentation": GENTLE}
ADAM: dict[str, Any] = {
    "optimisation": FAST | {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.0},
    "augmentation": GENTLE,
}
BRISK: dict[str, Any] = ADAM | {"optimisation": ADAM["optimisation"] | {"lr": 0.03}}
HERDED: dict[str, Any] = {"memory": {"images": 18, "choice": "herding"}}
BLOCKS: dict[str, Any] = {"shared_blocks": (0,), "blocks": (1, 2), "prompts": 4, "length": 4, "chosen": 2}
# What a method needs to be quick on the toy; the seed and the optimisation are the same for all.
SETTINGS: dict[str, dict[str, Any]] = {
    "bpg": {"rank": 4, "augmentation": GENTLE},
    "ewc": WHOLE | {"strength": 1.0},
    "lwf": WHOLE | {"strength": 0.2},
    "er": WHOLE | {"memory": {"images": 12}},
    "derpp": WHOLE | {"memory": {"images": 12}},
    "gdumb": WHOLE | {"memory": {"images": 36, "choice": "balanced"}},
    "icarl": WHOLE | HERDED,
    "lucir": WHOLE | HERDED,
    "bic": WHOLE | HERDED,
    "linear_probe": {"optimisation": FAST | {"epochs": 30}},
    "sequential_probe": {"optimisation": FAST | {"epochs": 30}},
    "s_iprompts": {"augmentation": GENTLE},
    "s_liprompts": BRISK | {"context": 4},
    "pina": {"augmentation": GENTLE, "hidden": 4},
    "soyo": {"augmentation": GENTLE, "hidden": 4, "selection": FAST | {"lr": 0.5}},
    "l2p": ADAM,
    "dualprompt": ADAM | {"common": 2, "common_blocks": (0,), "own": 3, "own_blocks": (1, 2)},
    "coda_prompt": ADAM | {"components": 3, "length": 4, "blocks": (0, 1)},
    "c_prompt": ADAM | BLOCKS | {"inertia": 1.0},
    "ka_prompt": ADAM | BLOCKS | {"inertia": 1.0},
    "ranpac": {"augmentation": GENTLE, "channels": 200, "rank": 4},
}
TEXT: dict[str, Any] = ADAM | {"head": "text", "context": 4, "where": "shallow"}
# Methods in other settings that must keep the promise, too; `clip` is the backbone's kind, no setting.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "icarl-shared": ("icarl", {"labels": "shared"}),
    "lucir-shared": ("lucir", {"labels": "shared"}),
    "l2p-memory": ("l2p", {"memory": {"images": 12}}),
    "er-references": ("er", {"memory": {"images": 12, "keep": "references"}}),
    "derpp-expanded": ("derpp", {"labels": "expanded", "memory": {"images": 12}}),
    "pina-clip": ("pina", TEXT | {"where": "deep", "hidden": 4}),
    "soyo-clip": ("soyo", TEXT),
}


def build(label: str, **values: Any) -> Learner:
    """A method, or a variant of one, in settings that are quick; on a CLIP where it needs one."""
    name, more = VARIANTS.get(label, (label, {}))
    fields = METHODS[name].Settings.__dataclass_fields__
    usual = WHOLE if issubclass(METHODS[name], Whole) else {}
    settings = {"optimisation": FAST, "seed": 0} | SETTINGS.get(name, usual) | more | values
    settings = {key: value for key, value in settings.items() if key != "optimisation" or key in fields}
    backbone = toy_clip_backbone() if name == "s_liprompts" or "head" in more else toy_backbone()
    learner: Learner = METHODS[name](backbone, **settings)
    return learner


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> DomainStream:
    return toy_stream(tmp_path_factory.mktemp("toy"))


Known = dict[tuple[str, int], tuple[State, list[str]]]  # by method and domains: the model, and what was trained last


@dataclass(frozen=True)
class Make:
    """Makes learners of one method; what it has taught once, it gives again as it was stored."""

    label: str
    stream: DomainStream
    known: Known

    def __call__(self, **more: Any) -> Learner:
        return build(self.label, **more)

    def taught(self, domains: int, **more: Any) -> Learner:
        """A learner that knows the first so many domains."""
        learner = self(**more)
        if domains:
            learner.load_state(self._after(domains)[0])
        return learner

    def trainings(self, place: int) -> list[str]:
        """What is trained with the domain of that place in the stream, in order."""
        return self._after(place + 1)[1]

    def _after(self, domains: int) -> tuple[State, list[str]]:
        if (self.label, domains) not in self.known:
            learner, seen = self.taught(domains - 1), dict[str, None]()

            def watch(now: Progress) -> None:
                if now.loss is not None:
                    seen[now.activity] = None

            learner.progress = watch
            learner.learn(self.stream.domains[domains - 1])
            self.known[self.label, domains] = learner.state(), list(seen)
        return self.known[self.label, domains]


@pytest.fixture(scope="module")
def known() -> Known:
    return {}


@pytest.fixture(params=[*METHODS, *VARIANTS])
def make(request: pytest.FixtureRequest, stream: DomainStream, known: Known) -> Make:
    return Make(request.param, stream, known)


@pytest.fixture
def pixels() -> torch.Tensor:
    return torch.randn(9, 3, 32, 32, generator=torch.Generator().manual_seed(5))


def tensors(learner: Learner) -> dict[str, bytes]:
    """Every stored byte, by place."""
    state = learner.state()
    found = {f"shared/{name}": tensor for name, tensor in state.shared.items()}
    for domain, learned in state.domains.items():
        found |= {f"{domain}/{name}": tensor for name, tensor in learned.tensors.items()}
    return {name: tensor.detach().cpu().numpy().tobytes() for name, tensor in found.items()}


def patient(make: Make, **more: Any) -> Learner:
    """A learner that goes over the images often enough to learn them all."""
    learner = make(**more)
    if not trains(learner):
        return learner
    slow = learner.backbone.text is not None or learner.method == "l2p"
    return make(optimisation=replace(learner.settings.optimisation, epochs=80 if slow else 40), **more)


def some_of(learner: Learner, domains: Sequence[Domain]) -> torch.Tensor:
    """Three images of each domain."""
    return torch.cat([next(prepared(learner.backbone, domain.train.subset(range(3)), 3)) for domain in domains])


def trains(learner: Learner) -> bool:
    """Whether it has anything to train, or only counts."""
    return "optimisation" in learner.Settings.__dataclass_fields__


def test_forward_is_a_distribution_and_leaves_no_trace(make: Make, pixels: torch.Tensor) -> None:
    learner = make.taught(1)
    before = tensors(learner)
    first = learner.forward(pixels)
    assert first.log_probs.shape == (9, len(learner.classes))
    assert_close(first.log_probs.exp().sum(dim=1), torch.ones(9, dtype=first.log_probs.dtype))
    assert_close(learner.forward(pixels).log_probs, first.log_probs, rtol=0, atol=0)
    assert (first.experts >= 1).all()
    assert tensors(learner) == before


def test_training_images_are_learned(make: Make, stream: DomainStream) -> None:
    learner = patient(make)
    first, second = stream.domains[:2]
    for domain in (first, second):
        learner.learn(domain)
        assert learner.score(domain.train) > (0.95 if trains(learner) else 0.5)  # of random features, means tell less
    if isinstance(learner, Isolated) or learner.method == "joint":  # nothing was lost
        assert learner.score(first.train) > 0.95


def test_the_backbone_stays_as_it_is(make: Make, stream: DomainStream) -> None:
    learner = make()
    backbone = learner.backbone
    before = backbone.digest()
    for domain in stream.domains[:2]:
        learner.learn(domain)
    assert backbone.digest() == before
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in backbone.parameters())


def test_what_is_declared_gets_a_gradient_and_nothing_else_does(
    make: Make, stream: DomainStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make()
    others: list[nn.Parameter] = []
    fit = type(learner).fit

    def watched(self: Learner, module: nn.Module, *args: Any, **options: Any) -> None:
        mine = {id(own): name for name, own in module.named_parameters() if own.requires_grad}
        every = [own for own in gc.get_objects() if type(own) is nn.Parameter]
        for own in every:
            own.grad = None
        fit(self, module, *args, **options)
        missed = [name for name, own in module.named_parameters() if own.requires_grad and own.grad is None]
        assert not missed, "declared, and never learned"
        others.extend(own for own in every if id(own) not in mine and own.grad is not None)

    monkeypatch.setattr(type(learner), "fit", watched)
    for domain in stream.domains[:2]:
        learner.learn(domain)
    assert not others


def test_what_stands_under_a_domain_never_changes(make: Make, stream: DomainStream) -> None:
    learner = make.taught(1)
    before = {name: own for name, own in tensors(learner).items() if not name.startswith("shared/")}
    learner.learn(stream.domains[1])
    after = tensors(learner)
    assert {name: after[name] for name in before} == before


def test_domains_that_were_not_learned_are_never_chosen(make: Make, stream: DomainStream) -> None:
    for count in (1, 2):
        learner = make.taught(count)
        check_others_are_silent(learner, stream.domains[:count], some_of(learner, stream.domains))


def check_others_are_silent(learner: Learner, learned: Sequence[Domain], images: torch.Tensor) -> None:
    """What was not learned has no slot and no row, and gets no weight whatever the images are of."""
    names = sorted(domain.name for domain in learned)
    classes = tuple(sorted({name for domain in learned for name in domain.classes}))
    assert learner.classes == classes
    assert learner.forward(images).log_probs.shape == (len(images), len(classes))
    assert sorted(learner.state().domains) in ([], names)
    if isinstance(learner, Single):
        rows = {learner.row(name, domain.name) for domain in learned for name in domain.classes}
        assert set(learner.network.head.classes) == rows
    if not isinstance(learner, Routable):
        return
    assert learner.domains == tuple(names)
    for domain in learned:
        ways = ways_of(learner)
        answers = dict(zip(ways, learner.compare(images, list(ways.values()), true=domain.name), strict=True))
        for answer in answers.values():
            assert answer.domain_weights is not None
            assert answer.domain_weights.shape == (len(images), len(names))
            assert_close(answer.domain_weights.sum(dim=1), torch.ones(len(images), dtype=torch.float64))
        foreign = torch.tensor([name not in domain.classes for name in classes])
        assert not answers["oracle"].log_probs.exp()[:, foreign].any()


@pytest.mark.parametrize("place", [0, 1])
def test_a_killed_training_goes_on_to_the_same_bytes(
    make: Make, place: int, stream: DomainStream, tmp_path: Path
) -> None:
    def learn(told: Callable[[Progress], None], **more: Any) -> Learner:
        learner = make(scratch=tmp_path / "scratch", progress=told, **more)
        learner.load_state(load_state(tmp_path / "model"))
        learner.learn(stream.domains[place])
        return learner

    def kill(activity: str, now: Progress) -> None:
        if now.loss is not None and now.activity == activity and now.step == 4:
            os.kill(os.getpid(), signal.SIGKILL)

    make.taught(place).save(tmp_path / "model")
    for activity in make.trainings(place):  # in each of them, once
        often = {"checkpoint_seconds": 0}
        process = get_context("fork").Process(target=learn, args=(partial(kill, activity),), kwargs=often)
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    steps: list[int] = []
    again = learn(lambda now: steps.append(now.step) if now.activity == "training" else None)
    assert (1 in steps) == begins_anew(again)
    assert tensors(again) == tensors(make.taught(place + 1))


def begins_anew(learner: Learner) -> bool:
    """Whether a training that was killed is not taken up: that of heads on features alone, which is quick."""
    return learner.method in ("linear_probe", "sequential_probe")


def test_the_same_seed_gives_the_same_bytes(make: Make, stream: DomainStream) -> None:
    def learned(seed: int) -> dict[str, bytes]:
        learner = make(seed=seed)
        for domain in stream.domains[:2]:  # what is replayed, distilled or chosen begins with the second
            learner.learn(domain)
        return tensors(learner)

    once = learned(3)
    torch.rand(5)  # what others draw in between does not matter
    assert learned(3) == once
    assert (learned(4) != once) == trains(make())


def test_batch_size_and_mates_do_not_matter(make: Make, stream: DomainStream, pixels: torch.Tensor) -> None:
    learner = make.taught(2)
    pixels = torch.cat([some_of(learner, stream.domains[:2]), pixels[:3]])  # of both, whose prompts must not meet

    def answers(images: torch.Tensor) -> torch.Tensor:
        """In every way that the method can answer (images, ways, classes)."""
        found = [learner.forward(images)]
        if isinstance(learner, Routable):
            found += learner.compare(images, list(ways_of(learner, FUSIONS).values()), true=learner.domains[0])
        return torch.stack([each.log_probs for each in found], dim=1)

    together = answers(pixels)
    alone = torch.cat([answers(image[None]) for image in pixels])
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    assert_close(alone, together, rtol=0, atol=1e-5)
    assert_close(answers(pixels[order]), together[order], rtol=0, atol=1e-5)


def test_saving_and_loading_changes_nothing(
    make: Make, stream: DomainStream, pixels: torch.Tensor, tmp_path: Path
) -> None:
    learner = make()
    for domain in stream.domains[:2]:
        learner.learn(domain)
    digest = learner.save(tmp_path / "model")
    again = make()
    again.load_state(load_state(tmp_path / "model"))
    assert again.classes == learner.classes
    assert tensors(again) == tensors(learner)
    assert torch.equal(again.forward(pixels).log_probs, learner.forward(pixels).log_probs)
    assert save_state(again.state(), tmp_path / "copy", event="copied") == digest
    for one, other in ((learner, again), (again, learner)):
        one.learn(stream.domains[2])  # going on after a load is going on without one
        assert one.state().settings == other.state().settings
    assert tensors(again) == tensors(learner)


def test_predict_names_classes_from_files_and_tensors(make: Make, stream: DomainStream) -> None:
    learner = make.taught(1)
    train: ImageSet = stream.domains[0].train
    names = learner.predict(train, batch_size=5)
    assert names == learner.predict(list(map(str, train.paths)))
    assert set(names) <= set(learner.classes)
    assert learner.predict_proba(train).shape == (len(train), len(learner.classes))
    assert learner.score(train) == sum(
        name == train.classes[label] for name, label in zip(names, train.labels, strict=True)
    ) / len(train)
    assert learner.predict([]) == []


def test_new_classes_need_leave(make: Make, stream: DomainStream, tmp_path: Path) -> None:
    other = toy_domain(tmp_path, "white", 12, classes=("bar", "box", "ring"))
    learner = make.taught(1)
    with pytest.raises(WrongUse, match="new classes.*ring.*allow_new_classes"):
        learner.learn(other)
    assert learner.classes == ("bar", "box", "cross")
    learner = patient(make, allow_new_classes=True)
    learner.learn(stream.domains[0])
    check_others_are_silent(learner, stream.domains[:1], some_of(learner, [other]))
    learner.learn(other)
    check_others_are_silent(learner, [stream.domains[0], other], some_of(learner, [other]))
    assert torch.isfinite(learner.predict_proba(other.train)).all()
    assert learner.score(other.train) > (0.7 if trains(learner) else 0.6)  # above what the known classes have


def test_isolated_methods_leave_old_domains_bytes_alone(make: Make, stream: DomainStream, tmp_path: Path) -> None:
    learner = make.taught(1)
    if not isinstance(learner, Isolated):
        pytest.skip("this method does not promise isolation")
    before = tensors(learner)
    learner.learn(stream.domains[1])
    after = tensors(learner)
    assert {name: after[name] for name in before} == before

    name = stream.domains[1].name
    learner.forget(name)
    assert tensors(learner) == before
    never = make.taught(1)
    assert learner.save(tmp_path / "forgot") == never.save(tmp_path / "never")
    assert (tmp_path / "forgot" / "model.json").read_bytes() == (tmp_path / "never" / "model.json").read_bytes()
    with pytest.raises(WrongUse, match="no domain is called"):
        learner.forget(name)


def test_routable_methods_have_experts_that_can_be_forced(
    make: Make, stream: DomainStream, pixels: torch.Tensor
) -> None:
    learner = make.taught(2)
    if not isinstance(learner, Routable):
        pytest.skip("this method has no experts")
    assert learner.domains == tuple(sorted(domain.name for domain in stream.domains[:2]))
    assert_close(learner.embed(pixels).norm(dim=1), torch.ones(9))
    assert len(learner.prototypes) == 2
    (own,) = learner.compare(pixels, [learner.way])
    assert torch.equal(own.log_probs, learner.forward(pixels).log_probs)
    assert learner.expert_logits(pixels, 1).shape == (9, 3)


def test_the_oracle_alone_is_told_the_domain(make: Make, stream: DomainStream) -> None:
    learner = make.taught(2)
    if not isinstance(learner, Routable):
        pytest.skip("this method has no experts")
    images, ways = some_of(learner, stream.domains), list(ways_of(learner, FUSIONS).values())
    one, other = (learner.compare(images, ways, true=name) for name in learner.domains)
    for way, a, b in zip(ways, one, other, strict=True):
        pairs = ((a.log_probs, b.log_probs), (a.domain_weights, b.domain_weights), (a.confidences, b.confidences))
        assert all(torch.equal(*pair) for pair in pairs) == (way.router != ORACLE), way


@pytest.mark.parametrize("place", [0, 1])
def test_an_interrupted_training_leaves_the_model_as_it_was(make: Make, place: int, stream: DomainStream) -> None:
    def stop(activity: str, now: Progress) -> None:
        if now.loss is not None and now.activity == activity and now.step == 3:
            raise KeyboardInterrupt

    learner = make.taught(place)
    before, classes = tensors(learner), learner.classes
    for activity in make.trainings(place):  # in each of them, once
        learner.progress = partial(stop, activity)
        with pytest.raises(KeyboardInterrupt):
            learner.learn(stream.domains[place])
        assert (tensors(learner), learner.classes) == (before, classes)
    learner.progress = None
    learner.learn(stream.domains[place])
    assert tensors(learner) == tensors(make.taught(place + 1))


def test_a_training_that_diverges_is_an_error(make: Make, stream: DomainStream) -> None:
    learner = make(optimisation=FAST | {"lr": 1e12, "epochs": 30})
    if not trains(learner):
        pytest.skip("this method trains nothing")
    with pytest.raises(TrainingError, match="diverged"):
        learner.learn(stream.domains[0])


def test_another_methods_model_is_refused(make: Make) -> None:
    learner = make.taught(1)
    state = learner.state()
    for name in METHODS:
        if name != learner.method:
            with pytest.raises(ModelError, match="another method's model"):
                build(name).load_state(state)


def test_a_model_whose_parts_do_not_fit_is_refused(make: Make, stream: DomainStream) -> None:
    learner = make.taught(1)
    state = learner.state()
    strange: list[State] = [replace(state, settings={"nonsense": 1})]
    if state.shared:
        strange += [replace(state, shared={}), replace(state, facts={}), replace(state, facts={"classes": ["x"]})]
    for name, learned in state.domains.items():
        for facts in ({}, {"classes": 7}, {"classes": ["bar", "bar"]}, {"classes": [1, 2, 3]}):
            changed = {**learned.facts, **facts} if facts else {}
            strange.append(replace(state, domains={name: Learned(changed, learned.tensors)}))
        for gone in learned.tensors:
            rest = {key: tensor for key, tensor in learned.tensors.items() if key != gone}
            strange.append(replace(state, domains={name: Learned(learned.facts, rest)}))
        nu = {"prototypes": torch.full((2, 64), float("nan")).double()}
        strange.append(replace(state, domains={name: Learned(learned.facts, {**learned.tensors, **nu})}))
        more = {**learned.tensors, "expert/surplus": torch.zeros(1)}
        strange.append(replace(state, domains={name: Learned(learned.facts, more)}))
    other = make(seed=5)
    other.learn(stream.domains[1])
    before = tensors(other)
    for wrong in strange:
        with pytest.raises((ModelError, WrongUse)):
            other.load_state(wrong)
        assert tensors(other) == before  # a model that cannot be taken up costs nothing
        assert other.settings.seed == 5


def test_nothing_learned_yet_is_said(make: Make, pixels: torch.Tensor) -> None:
    with pytest.raises(WrongUse, match="nothing is learned yet"):
        make().predict(pixels)


def test_an_empty_domain_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="the domain red is empty"):
        Domain("red", ImageSet((), (), ()))
    images = toy_domain(tmp_path, "red", 3).train
    with pytest.raises(WrongUse, match="no name for a domain"):
        Domain("\n", images)
