"""S-Prompts, PINA, SOYO and RanPAC: how each finds the domain, what it learns of it, and what stays as it is."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import bpg.methods.parts.ridge as ridge_module
import bpg.methods.soyo as soyo_module
from bpg.backbones.backbone import Backbone
from bpg.backbones.tokenizer import encode
from bpg.backbones.tuning import Tuning
from bpg.data.batches import FeatureBatches
from bpg.data.domain import Domain, DomainStream
from bpg.errors import WrongUse
from bpg.experiments.profile import choices
from bpg.experts.adapter import Adapters, LinearAdapter
from bpg.experts.expert import Expert, ExpertSettings
from bpg.methods.base import Learner, prepared
from bpg.methods.linear_probe import LinearProbe
from bpg.methods.ncm import NCM
from bpg.methods.parts.gaussians import Gaussians, Replay, fitted
from bpg.methods.parts.pool import Pooled
from bpg.methods.parts.ridge import RIDGES, Ridge, solved
from bpg.methods.parts.selection import Styles, nearest_centre, shuffled
from bpg.methods.parts.ways import MIXTURES, OWN, Way
from bpg.methods.pina import PINA
from bpg.methods.ranpac import RanPAC
from bpg.methods.s_prompts import SiPrompts, SliPrompts
from bpg.methods.soyo import SOYO
from bpg.progress import Progress
from bpg.prototypes import Place
from bpg.randomness import generator_of
from bpg.routing import Places, hard
from bpg.types import Prediction
from tests.toy import FAST, GENTLE, toy_backbone, toy_clip_backbone, toy_domain, toy_stream

QUICK: dict[str, Any] = {"optimisation": FAST | {"epochs": 2}, "augmentation": GENTLE}
SELECTION: dict[str, Any] = {"epochs": 60, "batch_size": 12, "lr": 0.5, "weight_decay": 0.0}
SMALL: dict[str, Any] = QUICK | {"hidden": 4}
CHOSEN: dict[str, Any] = SMALL | {"selection": SELECTION}


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> DomainStream:
    return toy_stream(tmp_path_factory.mktemp("toy"), count=12)  # red, blue, green: not in the order of their names


def learned(learner: Learner, *domains: Domain) -> Any:
    for domain in domains:
        learner.learn(domain)
    return learner


def pixels(backbone: Backbone, stream: DomainStream, count: int = 2) -> Tensor:
    """The test images of the first domains."""
    return torch.cat([batch for test in stream.tests[:count] for batch in prepared(backbone, test.images, 32)])


def kept(learner: Learner) -> dict[str, Tensor]:
    """Copies of all that is stored, by place."""
    state = learner.state()
    found = {f"shared/{name}": tensor for name, tensor in state.shared.items()}
    for domain, own in state.domains.items():
        found |= {f"{domain}/{name}": tensor for name, tensor in own.tensors.items()}
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def equal(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    return all(torch.equal(tensor, others[name]) for name, tensor in some.items())


def of(domain: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name.startswith(f"{domain}/")}


# S-iPrompts


def test_the_nearest_centre_is_found_by_absolute_differences() -> None:
    image = torch.zeros(1, 2)
    even, uneven = torch.tensor([[0.6, 0.6]]), torch.tensor([[1.0, 0.0], [9.0, 9.0]])  # L1: 1.2, 1.0; L2: 0.85, 1.0
    assert nearest_centre(image, [even, uneven]).tolist() == [[0, 1]]
    places = Places([Place(own.double(), torch.zeros(21).double()) for own in (even, uneven)])
    assert hard(places.distances(image)).tolist() == [[1, 0]]


def test_of_equally_near_domains_the_first_is_taken() -> None:
    centre = torch.ones(1, 3)
    assert nearest_centre(torch.zeros(4, 3), [centre, centre, centre]).argmax(dim=1).tolist() == [0] * 4


def best_centres(x: Tensor, k: int) -> Tensor:
    """The centres (k, d) of the division of features (n, d) that has the least squares of all divisions."""
    cells = torch.tensor(list(product(range(k), repeat=len(x) - 1)))
    belongs = F.one_hot(F.pad(cells, (1, 0)), k).double()  # (divisions, n, k); the first image is in the first cell
    sums, counts = belongs.transpose(1, 2) @ x, belongs.sum(dim=1)
    inside = (sums.square().sum(dim=2) / counts.clamp(min=1)).sum(dim=1)  # least squares leave the most to the means
    best = int(inside.argmax())
    return sums[best] / counts[best][:, None]


def test_the_centres_are_the_best_that_k_means_could_find(stream: DomainStream) -> None:
    red = replace(stream.domains[0], train=stream.domains[0].train.subset(range(9)))
    model = learned(SiPrompts(toy_backbone(), k=3, **QUICK), red)
    features = torch.cat([model.embed(batch) for batch in prepared(model.backbone, red.train, 32)])
    wanted, (centres,) = best_centres(features.double(), 3), model.prototypes
    order = torch.cdist(centres, wanted).argmin(dim=1)
    assert sorted(order.tolist()) == [0, 1, 2]
    assert_close(centres, wanted[order], rtol=0, atol=1e-6)


def test_the_expert_of_the_nearest_centre_answers_alone(stream: DomainStream) -> None:
    model = learned(SiPrompts(toy_backbone(), **QUICK), *stream.domains)
    images = pixels(model.backbone, stream, 3)
    answer, z = model.forward(images), model.embed(images).double()
    distance = torch.stack([(z[:, None] - own[None]).abs().sum(dim=2).amin(dim=1) for own in model.prototypes], dim=1)
    assert answer.domain_weights.argmax(dim=1).tolist() == distance.argmin(dim=1).tolist()
    assert answer.experts.tolist() == [1] * len(images)
    logits = torch.stack([model.expert_logits(images, expert) for expert in range(3)], dim=1)
    own = logits[torch.arange(len(images)), distance.argmin(dim=1)].double()
    assert_close(answer.log_probs, torch.log_softmax(own, dim=1), rtol=0, atol=1e-5)


def test_with_another_router_the_same_experts_answer(stream: DomainStream) -> None:
    model = learned(SiPrompts(toy_backbone(), **QUICK), *stream.domains)
    images = pixels(model.backbone, stream, 3)
    logits = torch.stack([model.expert_logits(images, expert) for expert in range(3)], dim=1).double()
    nearest, mixed = model.compare(images, [Way("hard"), MIXTURES["paper"]])
    z = model.embed(images).double()
    distance = torch.stack([torch.cdist(z, own).amin(dim=1) for own in model.prototypes], dim=1)
    chosen = logits[torch.arange(len(images)), distance.argmin(dim=1)]
    assert_close(nearest.log_probs, torch.log_softmax(chosen, dim=1), rtol=0, atol=1e-5)
    weights = torch.softmax(-distance, dim=1)
    weights = torch.where(weights >= 1 / 3, weights, 0.0)
    weights = weights / weights.sum(dim=1, keepdim=True)
    assert_close(mixed.domain_weights, weights, rtol=0, atol=1e-6)
    assert_close(
        mixed.log_probs, torch.log_softmax((weights[:, :, None] * logits).sum(dim=1), dim=1), atol=1e-5, rtol=0
    )

    before = kept(model)
    options: tuple[dict[str, Any], ...] = ({"router": "hard"}, {"mixture": "paper"}, {"router": OWN})
    for asked, answer in zip(options, (nearest, mixed, model.forward(images)), strict=True):
        plugged = SiPrompts(toy_backbone(), **QUICK, **asked)
        plugged.load_state(model.state())
        assert equal(before, kept(plugged))
        assert torch.equal(plugged.forward(images).log_probs, answer.log_probs)


@pytest.mark.parametrize("method", [SiPrompts, PINA, SOYO])
def test_with_one_domain_every_way_gives_the_experts_own_logits(method: type[Pooled], stream: DomainStream) -> None:
    model = learned(method(toy_backbone(), **QUICK), stream.domains[0])
    images = pixels(model.backbone, stream, 1)
    own = torch.log_softmax(model.expert_logits(images, 0).double(), dim=1)
    for answer in model.compare(images, [Way(OWN), Way("hard"), *MIXTURES.values()]):
        assert_close(answer.log_probs, own, rtol=0, atol=1e-5)


def test_without_tokens_an_expert_is_a_linear_probe(stream: DomainStream) -> None:
    backbone = toy_backbone()
    nn.init.ones_(backbone.vit.norm.weight)  # features then have the length that a probe gives them
    nn.init.zeros_(backbone.vit.norm.bias)
    probe = learned(LinearProbe(backbone, optimisation=FAST), stream.domains[0])
    images = pixels(backbone, stream, 1)

    same = {f"linear.{own}": rows for own, rows in probe.pool["red"].expert.head.state_dict().items()}

    @torch.no_grad()
    def logits(tokens: int) -> Tensor:
        settings = ExpertSettings(prompts=tokens, parts="none")
        expert = Expert(backbone, probe.classes, rank=1, settings=settings, generator=generator_of(0))
        expert.head.load_state_dict(same)
        found: Tensor = expert(images, backbone)
        return found

    assert_close(logits(0), probe.expert_logits(images, 0), rtol=0, atol=1e-4)
    assert not torch.allclose(logits(10), logits(0), atol=1e-2)


def test_who_is_told_the_domain_is_right_at_least_as_often(stream: DomainStream) -> None:
    red, blue = stream.domains[:2]
    turned = replace(red.train, labels=tuple((label + 1) % 3 for label in red.train.labels))
    domains = (red, blue, Domain("rouge", turned))  # of the same images, which no centre tells apart
    model = learned(SiPrompts(toy_backbone(), **QUICK | {"optimisation": FAST | {"epochs": 20}}), *domains)

    def right(answer: Prediction, domain: Domain) -> float:
        return float((answer.log_probs.argmax(dim=1) == torch.tensor(domain.train.labels)).double().mean())

    found = {}
    for domain in domains:
        (images,) = prepared(model.backbone, domain.train, 32)
        found[domain.name] = right(model.oracle(images, domain.name), domain), right(model.forward(images), domain)
    assert all(told >= alone for told, alone in found.values())
    assert found["red"][0] == found["red"][1]  # of equally near ones, the first by name
    assert found["rouge"][0] > found["rouge"][1] + 0.5


class Mixed(SiPrompts):
    """All experts answer, the more the nearer their centres are, by absolute differences over a temperature."""

    temperature = 1.0

    def choose(self, images: Tensor, features: Tensor) -> Tensor:
        del images
        z = features.double()
        distance = [(z[:, None] - own[None]).abs().sum(dim=2).amin(dim=1) for own in self.prototypes]
        return torch.softmax(-torch.stack(distance, dim=1) / self.temperature, dim=1)


def test_a_mixture_that_grows_cold_is_the_choice_of_the_nearest_centre(stream: DomainStream) -> None:
    model, mixed = learned(SiPrompts(toy_backbone(), **QUICK), *stream.domains), Mixed(toy_backbone(), **QUICK)
    mixed.load_state(model.state())
    images = torch.cat([pixels(model.backbone, stream, 3), torch.randn(20, 3, 32, 32)])
    chosen, warm = model.forward(images), mixed.forward(images)
    assert (warm.experts > 1).any()
    assert not torch.allclose(warm.log_probs, chosen.log_probs, atol=1e-2)
    mixed.temperature = 1e-6
    cold = mixed.forward(images)
    assert_close(cold.domain_weights, chosen.domain_weights, rtol=0, atol=0)
    assert_close(cold.log_probs, chosen.log_probs, rtol=0, atol=0)


# S-liPrompts


def test_with_the_words_of_the_template_it_is_zero_shot_clip(stream: DomainStream) -> None:
    backbone, classes = toy_clip_backbone(), ("aircraft_carrier", "bar", "cross")
    assert backbone.text is not None
    settings = ExpertSettings(prompts=0, parts="none", head="text", context=4)
    expert = Expert(backbone, classes, rank=1, settings=settings, generator=generator_of(0))
    words = backbone.text.embedding(torch.tensor(encode("a photo of a")))
    assert isinstance(expert.head.context, nn.Parameter)
    assert words.shape == expert.head.context.shape
    expert.head.context.data.copy_(words)
    images = pixels(backbone, stream, 1)
    texts = backbone.class_features(classes, template="a photo of a {}.")
    zero_shot = 100.0 * backbone.embed(images) @ texts.T
    assert_close(expert(images, backbone), zero_shot, rtol=0, atol=1e-3)
    expert.head.context.data.add_(torch.randn(words.shape))
    expert.eval()  # what was computed before is not kept
    assert not torch.allclose(expert(images, backbone), zero_shot, atol=1e-3)


def test_kept_text_features_are_those_of_the_learned_words(stream: DomainStream) -> None:
    model = learned(SliPrompts(toy_clip_backbone(), **QUICK), *stream.domains[:2])
    images = pixels(model.backbone, stream)
    for place, name in enumerate(model.domains):
        expert = model.pool[name].expert
        features = model.backbone(images, expert.tuning())
        texts = model.backbone.class_features(("bar", "box", "cross"), context=expert.head.context)
        again = model.backbone.logit_scale * F.normalize(features, dim=-1) @ texts.T
        for _ in range(2):  # the second time from what is kept
            assert_close(model.expert_logits(images, place), again, rtol=1e-5, atol=1e-4)


def test_a_domain_has_ten_tokens_and_sixteen_words(stream: DomainStream) -> None:
    model = learned(SliPrompts(toy_clip_backbone(), **QUICK), stream.domains[0])
    expert, width, text_width = model.pool["red"].expert, 64, 32
    assert model.facts("red")["parameters"] == 10 * width + 16 * text_width
    assert sum(own.numel() for own in expert.parameters()) == 10 * width + 16 * text_width
    assert expert.tuning().tokens.shape == (10, width)
    assert expert.head.context.shape == (16, text_width)


# PINA


@pytest.mark.parametrize("where", ["deep", "shallow"])
def test_the_first_domains_features_are_where_they_are(where: str, stream: DomainStream) -> None:
    model = learned(PINA(toy_backbone(), where=where, **SMALL), *stream.domains[:2])
    images = pixels(model.backbone, stream)
    first, later = model.pool["red"].expert, model.pool["blue"].expert
    assert not first.adapters
    assert len(later.adapters) == {"deep": model.backbone.depth, "shallow": 1}[where]
    plain = model.backbone(images, Tuning(tokens=first.prompt))
    assert torch.equal(model.expert_logits(images, 1), model.unified.head(plain, model.backbone))
    assert model.domains == ("blue", "red")
    (packed,) = model.compare(images, [Way("soft", "mean")])  # both experts in one pass
    both = [model.expert_logits(images, expert).double() for expert in range(2)]
    assert_close(packed.log_probs, torch.log_softmax(torch.stack(both).mean(dim=0), dim=1), rtol=0, atol=1e-5)


def test_adapters_that_add_nothing_leave_the_prompts_alone(stream: DomainStream) -> None:
    model = learned(PINA(toy_backbone(), **SMALL), *stream.domains[:2])
    images, expert = pixels(model.backbone, stream), model.pool["blue"].expert
    with_prompts = model.backbone(images, Tuning(tokens=expert.prompt))
    assert not torch.allclose(model.backbone(images, expert.tuning()), with_prompts)
    for adapter in expert.adapters:
        nn.init.zeros_(adapter.up.weight)
        nn.init.zeros_(adapter.up.bias)
    assert torch.equal(model.backbone(images, expert.tuning()), with_prompts)


@pytest.mark.parametrize("head", ["linear", "text"])
def test_the_classifier_stays_as_the_first_domain_left_it(head: str, stream: DomainStream) -> None:
    backbone = toy_backbone() if head == "linear" else toy_clip_backbone()
    model = learned(PINA(backbone, head=head, **SMALL), stream.domains[0])
    before = {name: tensor for name, tensor in kept(model).items() if name.startswith("shared/unified/")}
    fresh = PINA(backbone, head=head, **SMALL)
    fresh.learn(stream.domains[1])
    assert before
    assert not equal(before, kept(fresh))  # it is learned, and from the first domain
    assert equal(before, kept(learned(model, *stream.domains[1:])))
    assert not any(name.startswith("blue/") and "head.linear" in name for name in kept(model))


def test_an_adapter_is_a_linear_map_of_low_rank(stream: DomainStream) -> None:
    model = learned(PINA(toy_backbone(), **SMALL), *stream.domains[:2])
    for adapter in model.pool["blue"].expert.adapters:
        assert isinstance(adapter, LinearAdapter)
        whole = adapter.up.weight.double() @ adapter.down.weight.double()
        assert whole.shape == (64, 64)
        assert int(torch.linalg.matrix_rank(whole)) <= 4
        one, other, nothing = torch.randn(2, 64), torch.randn(2, 64), torch.zeros(2, 64)
        assert_close(adapter(one + other) + adapter(nothing), adapter(one) + adapter(other), rtol=1e-4, atol=1e-5)


def orders(count: int, grid: tuple[int, int], seed: int) -> list[list[int]]:
    """The orders of patches that a selector by style asks in."""
    return Styles(toy_backbone(), orders=count, grid=grid, seed=seed).orders


def cells(images: Tensor, rows: int, columns: int) -> list[Tensor]:
    return [cell for band in images.chunk(rows, dim=2) for cell in band.chunk(columns, dim=3)]


def test_shuffled_patches_are_the_same_patches() -> None:
    images = torch.randn(3, 3, 12, 12)
    (order,) = orders(1, (3, 2), seed=1)
    assert sorted(order) == list(range(6))
    assert order != list(range(6))
    before, after = cells(images, 3, 2), cells(shuffled(images, order, grid=(3, 2)), 3, 2)
    assert all(torch.equal(after[place], before[cell]) for place, cell in enumerate(order))
    assert torch.equal(
        shuffled(images, order, grid=(3, 2)).flatten(2).sort().values, images.flatten(2).sort().values
    )  # the multiset of pixels
    back = [order.index(cell) for cell in range(6)]
    assert torch.equal(shuffled(shuffled(images, order, grid=(3, 2)), back, grid=(3, 2)), images)


def test_patches_of_unequal_size_are_fitted_to_their_place() -> None:
    means = torch.arange(6.0)
    rows = [torch.cat([torch.full((1, 3, high, 16), float(means[2 * at + side])) for side in range(2)], dim=3)
            for at, high in enumerate((11, 11, 10))]  # fmt: skip
    image, order = torch.cat(rows, dim=2), [5, 4, 3, 2, 1, 0]
    after = shuffled(image, order, grid=(3, 2))
    assert after.shape == (1, 3, 32, 32)
    found = [float(cell.mean()) for band in after.tensor_split(3, dim=2) for cell in band.tensor_split(2, dim=3)]
    assert found == pytest.approx([5, 4, 3, 2, 1, 0])


def test_one_patch_is_the_image() -> None:
    images = torch.randn(2, 3, 32, 32)
    for order in orders(3, (1, 1), seed=0):
        assert torch.equal(shuffled(images, order, grid=(1, 1)), images)


def test_the_same_seed_gives_the_same_orders() -> None:
    assert orders(4, (3, 2), seed=0) == orders(4, (3, 2), seed=0)
    assert orders(4, (3, 2), seed=0) != orders(4, (3, 2), seed=1)
    assert orders(2, (3, 2), seed=0) == orders(4, (3, 2), seed=0)[:2]
    assert orders(0, (3, 2), seed=0) == []


def test_mates_do_not_matter_to_an_images_style() -> None:
    images = torch.randn(5, 3, 32, 32)
    (order,) = orders(1, (3, 2), seed=0)
    together = shuffled(images, order, grid=(3, 2))
    assert all(torch.equal(shuffled(images[at : at + 1], order, grid=(3, 2))[0], together[at]) for at in range(5))
    model = PINA(toy_backbone(), **SMALL)
    styles = model.styles(images)
    assert_close(styles.norm(dim=1), torch.ones(5))
    assert_close(model.styles(images[3:4]), styles[3:4], rtol=0, atol=1e-6)
    assert_close(model.styles(images.flip(0)), styles.flip(0), rtol=0, atol=1e-6)


def test_the_domain_is_that_of_the_nearest_style(stream: DomainStream) -> None:
    model = learned(PINA(toy_backbone(), **SMALL), *stream.domains)
    images = pixels(model.backbone, stream, 3)
    centres = [model.pool[name].expert.centres for name in model.domains]
    found = model.forward(images).domain_weights
    assert torch.equal(found, nearest_centre(model.styles(images), centres))
    truth = [model.domains.index(test.domain) for test in stream.tests for _ in range(len(test.images))]
    assert found.argmax(dim=1).tolist() == truth


def test_without_shuffles_it_is_the_nearest_centre_of_plain_features(stream: DomainStream) -> None:
    model = learned(PINA(toy_backbone(), shuffles=0, **SMALL), *stream.domains[:2])
    images = pixels(model.backbone, stream)
    assert_close(model.styles(images), model.embed(images), rtol=0, atol=1e-6)
    centres = [model.pool[name].expert.centres for name in model.domains]
    assert torch.equal(model.forward(images).domain_weights, nearest_centre(model.embed(images), centres))


@pytest.mark.parametrize("head", ["linear", "text"])
def test_a_class_that_is_new_later_is_answered_with(head: str, stream: DomainStream, tmp_path: Path) -> None:
    brisk = {"optimizer": "adamw", "lr": 0.003, "weight_decay": 0.0, "epochs": 30, "batch_size": 8}
    options = SMALL | {"optimisation": brisk, "context": 4, "head": head, "allow_new_classes": True}
    backbone = toy_backbone() if head == "linear" else toy_clip_backbone()
    white = toy_domain(tmp_path, "white", 12, classes=("bar", "box", "ring"))
    model = learned(PINA(backbone, **options), stream.domains[0])
    before = {name: tensor for name, tensor in kept(model).items() if name.startswith("shared/")}
    learned(model, white)
    assert model.classes == ("bar", "box", "cross", "ring")
    assert "ring" in model.predict(white.train)
    assert model.score(white.train) > 0.6
    assert equal(before, kept(model))  # the others' classifier has no row for it
    again = PINA(backbone, **options)
    again.load_state(model.state())
    assert torch.equal(again.predict_proba(white.train), model.predict_proba(white.train))


# SOYO


def test_gaussians_are_found_again_in_what_is_drawn_from_them() -> None:
    spread = torch.tensor([[1.0, 0.6, 0.0], [0.6, 0.8, 0.0], [0.0, 0.0, 0.1]])
    mixture = Gaussians(
        torch.tensor([0.3, 0.7]), torch.tensor([[-3.0, 0.0, 1.0], [3.0, 1.0, 1.0]]), torch.stack([spread, torch.eye(3)])
    )
    drawn = mixture.sample(100_000, generator_of(0))
    assert drawn.shape == (100_000, 3)
    assert drawn.dtype == torch.float32
    found = fitted(drawn, k=2, seed=0)
    order = found.means[:, 0].argsort()
    assert_close(found.means[order], mixture.means, rtol=0, atol=0.03)
    assert_close(found.shares[order], mixture.shares, rtol=0, atol=0.01)
    assert_close(found.covariances[order], mixture.covariances, rtol=0, atol=0.03)
    assert torch.equal(mixture.sample(9, generator_of(1)), mixture.sample(9, generator_of(1)))


def test_gaussians_of_few_images_can_be_drawn_from() -> None:
    few = torch.randn(3, 16)
    for count, k in ((1, 1), (2, 2), (3, 2)):
        mixture = fitted(few[:count], k=2, seed=0)
        assert mixture.means.shape == (k, 16)
        assert mixture.sample(5, generator_of(0)).isfinite().all()


@pytest.mark.parametrize("domains", [2, 3, 4])
def test_every_domain_has_its_share_of_a_batch(domains: int) -> None:
    own = FeatureBatches(torch.zeros(36, 2), torch.zeros(36, dtype=torch.long), "new", 0, 12, 50)
    labels = torch.arange(1, domains).repeat_interleave(36)
    batches = Replay(own, torch.ones(len(labels), 2), labels)
    assert batches.steps == own.steps == 150
    counts = torch.zeros(domains)
    for x, y, whole in batches.stream(0):
        assert len(x) == len(y) == whole == 12
        assert int((y == 0).sum()) == 12 // domains
        assert torch.equal((x == 0).all(dim=1), y == 0)
        counts += torch.bincount(y, minlength=domains)
    assert_close(counts / counts.sum(), torch.full((domains,), 1 / domains), rtol=0, atol=0.03)
    late = list(batches.stream(148))
    assert all(
        torch.equal(y, other) for (_, y, _), (_, other, _) in zip(late, list(batches.stream(0))[148:], strict=True)
    )
    for (_, whole_y, _), (_, one, _), (_, two, _) in zip(
        late, batches.stream(148, rank=0, ranks=2), batches.stream(148, rank=1, ranks=2), strict=True
    ):
        assert torch.equal(torch.stack([one, two], dim=1).flatten(), whole_y)


def found_shares(model: Any, stream: DomainStream, count: int = 2) -> list[float]:
    """Of the test images of the first domains, the share whose domain is found."""
    shares = []
    for test in stream.tests[:count]:
        (images,) = prepared(model.backbone, test.images, 32)
        chosen = model.forward(images).domain_weights.argmax(dim=1)
        shares.append(float((chosen == model.domains.index(test.domain)).double().mean()))
    return shares


def test_the_selector_finds_old_domains_without_their_images(stream: DomainStream) -> None:
    model = learned(SOYO(toy_backbone(), **CHOSEN), *stream.domains[:2])
    assert min(found_shares(model, stream)) > 0.99


def test_without_replay_the_selector_knows_the_newest_domain_alone(
    stream: DomainStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soyo_module, "Replay", lambda own, *_: own)
    model = learned(SOYO(toy_backbone(), **CHOSEN), *stream.domains[:2])
    assert found_shares(model, stream) == [0.0, 1.0]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_domains_are_found_whatever_the_order_of_learning(order: tuple[int, ...], stream: DomainStream) -> None:
    model = learned(SOYO(toy_backbone(), **CHOSEN), *(stream.domains[at] for at in order))
    assert model.domains == ("blue", "green", "red")
    assert min(found_shares(model, stream, 3)) > 0.99
    again = SOYO(toy_backbone(), **CHOSEN)
    again.load_state(model.state())
    assert found_shares(again, stream, 3) == found_shares(model, stream, 3)


def test_a_domain_that_is_learned_again_is_still_found(stream: DomainStream) -> None:
    model = learned(SOYO(toy_backbone(), **CHOSEN), *stream.domains[:2])
    with pytest.warns(UserWarning, match="red is known already"):
        model.learn(stream.domains[0])
    assert model.domains == ("blue", "red")
    assert min(found_shares(model, stream)) > 0.99


def test_the_selectors_training_touches_no_expert(stream: DomainStream) -> None:
    much, little = (
        learned(SOYO(toy_backbone(), **SMALL, selection=FAST | {"epochs": epochs}), *stream.domains[:2])
        for epochs in (9, 1)
    )
    one, other = kept(much), kept(little)
    assert not equal(
        {name: tensor for name, tensor in one.items() if name.startswith("shared/")}, other
    )  # the selectors differ
    assert equal(of("red", one), other)
    assert equal(of("blue", one), other)


# RanPAC


def spread_features(seed: int, count: int = 90, width: int = 6, classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    middles = torch.randn(classes, width, generator=generator)
    return middles[labels] + 0.7 * torch.randn(count, width, generator=generator), labels


@pytest.fixture
def penalties(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Those that are chosen while a test runs."""
    chosen: list[float] = []
    penalty = Ridge._penalty

    def watched(*given: Any) -> float:
        chosen.append(penalty(*given))
        return chosen[-1]

    monkeypatch.setattr(Ridge, "_penalty", watched)
    return chosen


def test_sums_add_up_in_any_order() -> None:
    known = {"one": "abc", "two": "bcd", "three": "ace"}  # the class of each label
    parts = {name: spread_features(seed) for seed, name in enumerate(known)}

    def grown(*names: str) -> Ridge:
        found = Ridge(6, 20, seed=0)
        for name in names:
            features, labels = parts[name]
            found = found.grown(features, [known[name][label] for label in labels], name)
        return found

    features = torch.cat([x for x, _ in parts.values()])
    labels = [known[name][label] for name, (_, y) in parts.items() for label in y]
    whole = Ridge(6, 20, seed=0).grown(features, labels, "all")
    at_once = solved(whole.gram, whole.cross, 1.0)
    assert at_once is not None
    assert whole.cross.shape == (20, 5)
    assert_close(whole.gram, whole.gram.T)
    for order in (("one", "two", "three"), ("three", "one", "two")):
        found = grown(*order)
        assert found.classes == whole.classes == tuple("abcde")
        assert_close(found.gram, whole.gram, rtol=1e-5, atol=1e-3)
        assert_close(found.cross, whole.cross, rtol=1e-5, atol=1e-3)
        weights = solved(found.gram, found.cross, 1.0)
        assert weights is not None
        assert_close(weights, at_once, rtol=1e-3, atol=1e-4)


def test_the_weights_are_those_of_a_ridge_regression() -> None:
    regression = Ridge(6, 20, seed=3)
    x, y = spread_features(0)
    gram, cross = regression._sums(x, y, 3)
    h = np.maximum(x.double().numpy() @ regression.map.double().numpy(), 0)
    for ridge in (0.1, 1.0, 100.0):
        # the same as least squares on data with sqrt(ridge) I and zeros below it
        tall, wanted = np.vstack([h, np.sqrt(ridge) * np.eye(20)]), np.vstack([np.eye(3)[y.numpy()], np.zeros((20, 3))])
        weights = solved(gram, cross, ridge)
        assert weights is not None
        assert_close(
            weights.double(), torch.from_numpy(np.linalg.lstsq(tall, wanted, rcond=None)[0]), rtol=0, atol=1e-4
        )


def test_sums_that_cannot_be_inverted_are_told() -> None:
    gram = torch.tensor([[1.0, 2.0], [2.0, 1.0]])  # as rounding leaves sums: with an eigenvalue below zero, -1
    assert solved(gram, torch.ones(2, 3), 0.5) is None
    assert solved(gram, torch.ones(2, 3), 2.0) is not None


@pytest.mark.parametrize("seed", range(4))
def test_the_penalty_is_the_best_of_all_on_what_is_held_out(seed: int, penalties: list[float]) -> None:
    x, y = spread_features(seed, count=60)
    found = Ridge(6, 40, seed=seed).grown(x, ["abc"[label] for label in y], "new")
    order = torch.randperm(60, generator=generator_of(seed, "new", "ridge"))
    held, rest = order[:12].numpy(), order[12:].numpy()
    h, wanted = np.maximum(x.double().numpy() @ found.map.double().numpy(), 0), np.eye(3)[y.numpy()]
    errors = {}
    for ridge in RIDGES:
        gram = h[rest].T @ h[rest] + ridge * np.eye(40)
        weights = np.linalg.lstsq(gram, h[rest].T @ wanted[rest], rcond=None)[0]
        errors[ridge] = np.square(h[held] @ weights - wanted[held]).mean()
    (best,) = penalties
    assert best in RIDGES
    assert errors[best] <= 1.01 * min(errors.values())
    assert_close(found.gram, torch.from_numpy(h.T @ h).float(), rtol=1e-5, atol=1e-3)  # of all images
    weights_of_all = solved(found.gram, found.cross, best)
    assert weights_of_all is not None
    assert torch.equal(found.weights, weights_of_all)


def test_chunks_do_not_change_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    regression = Ridge(6, 20, seed=0)
    x, y = spread_features(0)
    gram, cross = regression._sums(x, y, 3)
    for chunk in (1, 7, 90, 91):
        monkeypatch.setattr(ridge_module, "CHUNK", chunk)
        again = regression._sums(x, y, 3)
        assert_close(again[0], gram, rtol=1e-5, atol=1e-3)
        assert_close(again[1], cross, rtol=1e-5, atol=1e-3)


def test_the_channels_of_few_images_are_there_at_a_time(
    penalties: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    lifted = Ridge.lifted

    def watched(self: Ridge, features: Tensor) -> Tensor:
        assert len(features) <= ridge_module.CHUNK
        return lifted(self, features)

    monkeypatch.setattr(Ridge, "lifted", watched)
    x, y = spread_features(1, count=300)
    found = []
    for chunk in (300, 7):  # 60 images are held out
        monkeypatch.setattr(ridge_module, "CHUNK", chunk)
        found.append(Ridge(6, 20, seed=0).grown(x, ["abc"[label] for label in y], "new"))
    assert penalties[0] == penalties[1]
    assert_close(found[1].weights, found[0].weights, rtol=1e-3, atol=1e-4)


def test_without_a_map_it_is_a_ridge_regression_on_the_features_of_all_domains(
    stream: DomainStream, penalties: list[float]
) -> None:
    model = learned(RanPAC(toy_backbone(), channels=0, rank=0), *stream.domains)
    trained = torch.cat([batch for own in stream.domains for batch in prepared(model.backbone, own.train, 32)])
    x = model.backbone(trained).double().numpy()
    y = np.eye(3)[[label for own in stream.domains for label in own.train.labels]]
    weights = np.linalg.solve(x.T @ x + penalties[-1] * np.eye(64), x.T @ y)
    images = pixels(model.backbone, stream, 3)
    scores = model.backbone(images).double() @ torch.from_numpy(weights)
    assert_close(model.forward(images).log_probs, torch.log_softmax(scores / 0.1, dim=1), rtol=0, atol=1e-3)
    again = RanPAC(toy_backbone(), channels=0, rank=0)
    again.load_state(model.state())
    assert torch.equal(again.forward(images).log_probs, model.forward(images).log_probs)


def test_adapters_leave_features_as_they_are_at_the_beginning(stream: DomainStream) -> None:
    backbone = toy_backbone()
    adapters = Adapters(backbone.width, backbone.depth, 4, scale=0.1, generator=generator_of(0))
    images = pixels(backbone, stream, 1)
    assert torch.equal(backbone(images, adapters.tuning()), backbone(images))
    nn.init.ones_(adapters.parts[0].up.weight)  # type: ignore[arg-type, union-attr]
    assert not torch.allclose(backbone(images, adapters.tuning()), backbone(images))


def test_adapters_are_learned_with_the_first_domain_alone(stream: DomainStream) -> None:
    model = learned(RanPAC(toy_backbone(), channels=40, rank=4, **QUICK), stream.domains[0])
    first = {name: tensor for name, tensor in kept(model).items() if "adapters/" in name}
    assert any(bool(tensor.any()) for name, tensor in first.items() if "up.weight" in name)
    steps: list[float] = []
    model.progress = lambda now: steps.append(now.loss) if now.loss is not None else None
    assert equal(first, kept(learned(model, *stream.domains[1:])))
    assert not steps


def test_the_answer_is_the_regressions(stream: DomainStream) -> None:
    model = learned(RanPAC(toy_backbone(), channels=40, rank=0, **QUICK), *stream.domains[:2])
    images, shared = pixels(model.backbone, stream), model.state().shared
    ridge = Ridge(64, 40, seed=0)  # the map follows from the seed
    trained = torch.cat([batch for own in stream.domains[:2] for batch in prepared(model.backbone, own.train, 32)])
    lifted = ridge.lifted(model.backbone(trained)).double()
    truth = F.one_hot(torch.tensor([label for own in stream.domains[:2] for label in own.train.labels])).double()
    assert_close(shared["gram"].double(), lifted.T @ lifted, rtol=1e-5, atol=1e-2)
    assert_close(shared["cross"].double(), lifted.T @ truth, rtol=1e-5, atol=1e-2)
    scores = ridge.lifted(model.backbone(images)).double() @ shared["weights"].double()
    answer = model.forward(images)
    assert_close(answer.log_probs, torch.log_softmax(scores / 0.1, dim=1), rtol=0, atol=1e-4)
    assert torch.equal(answer.log_probs.argmax(dim=1), scores.argmax(dim=1))


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("method", [RanPAC, NCM])
def test_images_do_not_count_twice(method: type[RanPAC | NCM], loaded: bool, stream: DomainStream) -> None:
    options = QUICK | {"channels": 40, "rank": 4} if method is RanPAC else {}
    model = learned(method(toy_backbone(), **options), *stream.domains[:2])
    if loaded:
        again = method(toy_backbone(), **options)
        again.load_state(model.state())
        model = again
    before = kept(model)
    for domain in stream.domains[:2]:
        with pytest.raises(WrongUse, match=f"{domain.name} is learned already"):
            model.learn(domain)
    assert equal(before, kept(model))


# A method's own way


@pytest.mark.parametrize("method", [SiPrompts, PINA, SOYO])
def test_every_way_of_a_profile_answers(method: type[Pooled], stream: DomainStream) -> None:
    model = learned(method(toy_backbone(), **QUICK), *stream.domains[:2])
    images = pixels(model.backbone, stream)
    for way in choices(model).values():
        (answer,) = model.compare(images, [way])
        assert_close(answer.log_probs.exp().sum(dim=1), torch.ones(len(images)).double())


@pytest.mark.parametrize("method", [SiPrompts, PINA, SOYO])
def test_the_own_way_is_not_fused_routed_early_or_capped(method: type[Pooled]) -> None:
    options: tuple[dict[str, Any], ...] = ({"fusion": "max"}, {"max_experts": 2}, {"route_depth": 1})
    for option in options:
        for named in ({}, {"router": OWN}):
            with pytest.raises(WrongUse, match="own inference is not fused, routed early or capped"):
                method(toy_backbone(), **option, **named)
        way = method(toy_backbone(), router="soft", **option).way
        assert {key: getattr(way, key) for key in option} == option
    assert method(toy_backbone()).way == Way(OWN)
    assert method(toy_backbone(), arithmetic="8-bit").way == Way(OWN, arithmetic="8-bit")
    with pytest.raises(WrongUse, match="arithmetic"):
        method(toy_backbone(), arithmetic="nil")


def test_who_has_no_own_way_is_not_asked_for_it() -> None:
    with pytest.raises(WrongUse, match="linear_probe has no inference of its own"):
        LinearProbe(toy_backbone(), router=OWN)


def test_a_probe_answers_by_the_mixture_that_is_asked_for() -> None:
    for name, way in MIXTURES.items():
        assert LinearProbe(toy_backbone(), mixture=name).way == way
    assert LinearProbe(toy_backbone()).way == Way("hard")


def test_the_losses_of_two_trainings_can_be_told_apart(stream: DomainStream) -> None:
    told: list[Progress] = []
    model = SOYO(toy_backbone(), **SMALL, selection=FAST | {"epochs": 1})
    model.progress = told.append

    def losses(domain: Domain) -> list[tuple[str, int]]:
        told.clear()
        model.learn(domain)
        return [(now.activity, now.step) for now in told if now.loss is not None]

    first, second = (losses(domain) for domain in stream.domains[:2])
    assert {activity for activity, _ in first} == {"training"}  # of one domain there is nothing to choose
    assert {activity for activity, _ in second} == {"training", "selector"}
    assert len(set(second)) == len(second)
