"""L2P, DualPrompt, CODA-Prompt, C-Prompt and KA-Prompt: what each of them chooses, mixes and leaves alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from bpg.backbones.tuning import Prefix, Tuning
from bpg.data.domain import Domain, DomainStream
from bpg.methods.base import prepared
from bpg.methods.c_prompt import CPrompt
from bpg.methods.coda_prompt import TABLES, CODAPrompt
from bpg.methods.dualprompt import DualPrompt
from bpg.methods.ka_prompt import KAPrompt, cover
from bpg.methods.l2p import L2P
from bpg.methods.parts.composed import Composed
from bpg.methods.parts.heads import AveragedHead
from bpg.methods.parts.prompted import Prompted, halves, nearest_keys, patch_query, right_angles
from bpg.methods.parts.ways import OWN, Way
from tests.toy import GENTLE, toy_backbone, toy_domain, toy_stream

ADAMW: dict[str, Any] = {"epochs": 1, "batch_size": 6, "optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1}
STEP: dict[str, Any] = {"epochs": 1, "batch_size": 12, "momentum": 0.0, "weight_decay": 0.0, "schedule": "constant"}
COMPOSED: dict[str, Any] = {
    "shared_blocks": (0,), "blocks": (1, 2), "prompts": 4, "length": 4, "chosen": 2, "inertia": 1.0
}  # fmt: skip
SMALL: dict[type[Prompted], dict[str, Any]] = {
    L2P: {"pool": 6, "length": 3, "chosen": 2},
    DualPrompt: {"common": 2, "common_blocks": (0,), "own": 3, "own_blocks": (1, 2)},
    CODAPrompt: {"components": 3, "length": 4, "blocks": (0, 1)},
    CPrompt: COMPOSED,
    KAPrompt: COMPOSED,
}
SLOTS = [DualPrompt, CODAPrompt, CPrompt, KAPrompt]
SCORES = torch.tensor([[0.9, 0.1, 0.1, 0.1], [0.2, 0.8, 0.2, 0.0], [0.5, 0.5, 0.5, 0.5]])  # of prompts for images


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> DomainStream:
    return toy_stream(tmp_path_factory.mktemp("toy"), count=12)


def build(method: type[Prompted], **changes: Any) -> Any:
    return method(toy_backbone(), **({"optimisation": ADAMW, "augmentation": GENTLE} | SMALL[method] | changes))


def learned(method: type[Prompted], stream: DomainStream, count: int = 2, **changes: Any) -> Any:
    """A model that has learned the first `count` domains."""
    model = build(method, **changes)
    for domain in stream.domains[:count]:
        model.learn(domain)
    return model


def seen(model: Any, domain: Domain) -> Tensor:
    """The domain's images as evaluation sees them."""
    return next(prepared(model.backbone, domain.train, len(domain.train)))


def labels(domain: Domain) -> Tensor:
    return torch.tensor(domain.train.labels)


def queries(model: Any, images: Tensor) -> Tensor:
    """What C-Prompt and KA-Prompt know images by."""
    return patch_query(images, model.backbone, model.settings.query)


def tensors(model: Any) -> dict[str, Tensor]:
    """All that is stored, by place."""
    state = model.state()
    found = {f"shared/{name}": own.clone() for name, own in state.shared.items()}
    for domain, kept in state.domains.items():
        found |= {f"{domain}/{name}": own.clone() for name, own in kept.tensors.items()}
    return found


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# All of them


@pytest.mark.parametrize("method", SLOTS)
def test_a_domain_leaves_the_slots_before_it_bit_for_bit(method: type[Prompted], stream: DomainStream) -> None:
    model = learned(method, stream, 1)
    network, (first, second) = model.network, stream.domains[:2]
    before = {name: own.clone() for name, own in network.slot(first.name).state_dict().items()}
    model.learn(second)
    assert model.network is not network
    assert same(dict(model.network.slot(first.name).state_dict()), before)
    begin = model.empty(network, second.name).state_dict()
    trained = model.network.slot(second.name).state_dict()
    assert all(not torch.equal(trained[name], begin[name]) for name in begin)


@pytest.mark.parametrize("method", SLOTS)
def test_old_slots_get_no_gradient(method: type[Prompted], stream: DomainStream) -> None:
    first, second = stream.domains[:2]
    model = learned(method, stream, 1)
    network = model.grown(second)
    wanted = {name for name, own in network.named_parameters() if own.requires_grad}
    assert wanted == {name for name, _ in network.named_parameters() if not name.startswith("slots.0.")}
    assert all(not own.requires_grad for own in network.slot(first.name).parameters())


@pytest.mark.parametrize("method", SLOTS)
def test_a_domain_that_is_learned_anew_has_a_fresh_slot_in_its_place(
    method: type[Prompted], stream: DomainStream
) -> None:
    model = learned(method, stream)
    first, second = stream.domains[:2]
    network = model.grown(first)
    assert network.names == [first.name, second.name]
    assert same(dict(network.slots[1].state_dict()), dict(model.network.slots[1].state_dict()))
    slot, before = (dict(own.slots[0].state_dict()) for own in (network, model.network))
    assert not any(torch.equal(slot[name], before[name]) for name in before)
    assert same(slot, dict(model.empty(model.network, first.name).state_dict()))
    assert all(own.requires_grad for own in network.slots[0].parameters())
    assert not any(own.requires_grad for own in network.slots[1].parameters())


@pytest.mark.parametrize("method", [DualPrompt, CPrompt])
def test_a_domain_that_is_learned_anew_has_the_classes_it_has_now(
    method: type[Prompted], stream: DomainStream, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = learned(method, stream, 1)
    fewer = toy_domain(tmp_path_factory.mktemp("fewer"), "red", 12, classes=("bar", "cross"))
    with pytest.warns(UserWarning, match="learned anew"):
        model.learn(fewer)
    images = seen(model, fewer)
    for way in (Way(OWN), Way("soft")):
        (answer,) = model.compare(images, [way])
        assert answer.log_probs.shape == (12, len(model.classes))
    again = build(method)
    again.load_state(model.state())
    assert again.facts("red") == model.facts("red")
    soft, loaded = (own.compare(images, [Way("soft")])[0].log_probs for own in (model, again))
    assert torch.equal(soft, loaded)


# L2P


def test_l2p_begins_with_a_head_of_nothing(stream: DomainStream, images: Tensor) -> None:
    model = build(L2P)
    network = model.grown(stream.domains[0])
    assert torch.equal(network(images, model.backbone), torch.zeros(5, 3))
    for values in (network.prompts, network.keys):
        assert 0 <= values.min() < values.max() <= 0.01


def test_l2p_with_one_prompt_is_prompt_tuning(stream: DomainStream, images: Tensor) -> None:
    model = build(L2P, pool=1, chosen=1)
    network = model.grown(stream.domains[0])
    torch.nn.init.normal_(network.head.weight)
    logits, cosines = network.read(images, model.backbone)
    tuned = Tuning(tokens=network.prompts[0], readout="tokens")
    plain = network.head(model.backbone(images, tuned).mean(dim=1))
    assert cosines.shape == (5, 1)
    assert_close(logits, plain)
    ours, theirs = (torch.autograd.grad(found.square().sum(), network.prompts)[0] for found in (logits, plain))
    assert ours.abs().max() > 0
    assert_close(ours, theirs)


def test_l2p_teaches_the_chosen_prompts_alone(stream: DomainStream, images: Tensor) -> None:
    model = build(L2P)
    network = model.grown(stream.domains[0])
    torch.nn.init.normal_(network.head.weight)
    logits, cosines = network.read(images, model.backbone)
    (model.named(logits, torch.zeros(5, dtype=torch.long)) - cosines.sum(dim=1)).sum().backward()
    which, found = nearest_keys(model.backbone(images), network.keys, 2)
    assert_close(found, cosines)
    chosen = torch.zeros(6, dtype=torch.bool)
    chosen[which.flatten()] = True
    assert 0 < chosen.sum() < 6
    for grad in (network.prompts.grad.flatten(1), network.keys.grad):
        assert torch.equal(grad.abs().amax(dim=1) > 0, chosen)


def test_l2p_draws_keys_to_the_images_by_its_pull(stream: DomainStream) -> None:
    def near(pull: float) -> float:
        """The cosine of the chosen keys after one step."""
        model = learned(L2P, stream, 1, pull=pull, optimisation=STEP | {"lr": 1e-4})
        query = model.backbone(seen(model, stream.domains[0]))
        return float(nearest_keys(query, model.network.keys, 2)[1].mean())

    fresh = build(L2P)
    untouched, query = fresh.network.keys.detach(), fresh.backbone(seen(fresh, stream.domains[0]))
    assert near(0.0) == pytest.approx(float(nearest_keys(query, untouched, 2)[1].mean()))
    assert near(0.0) < near(0.5) < near(1.0)


# DualPrompt


def test_a_key_comes_to_lie_where_its_images_are(tmp_path: Path) -> None:
    usual = ADAMW | {"epochs": 6, "batch_size": 8, "weight_decay": 0.0}  # a few steps, as methods have in tests
    stream = toy_stream(tmp_path)
    model = learned(DualPrompt, stream, optimisation=usual)
    for domain in stream.domains[:2]:
        features = model.embed(seen(model, domain))
        near = F.cosine_similarity(features, model.network.slot(domain.name).key[None]).mean()
        assert near > 0.95 * features.mean(dim=0).norm()  # no direction is nearer to them all than that of their mean


def two_slots(stream: DomainStream, images: Tensor) -> Any:
    """A model of two domains with prompts that differ; the first image is the first's, the second the second's."""
    model = learned(DualPrompt, stream)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        torch.nn.init.normal_(model.network.head.weight, generator=generator)
        for slot, query in zip(model.network.slots, model.embed(images), strict=True):
            slot.key.copy_(query)
            slot.prompts.copy_(torch.randn(slot.prompts.shape, generator=generator))
    return model


def test_dualprompt_gives_each_image_its_own_keys_and_values(
    stream: DomainStream, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reshaped(prompt: Tensor, *, projected: bool) -> Prefix:
        """What ports do: keys and values (2, B, L, d) become (B, 2, L, d) without being permuted."""
        if prompt.ndim == 2:
            return halves(prompt, projected=projected)
        both = torch.stack(prompt.chunk(2, dim=-2))
        mixed = both.reshape(both.shape[1], 2, *both.shape[2:])
        return Prefix(mixed[:, 0], mixed[:, 1], projected=projected)

    two = images[:2]
    model = two_slots(stream, two)
    weights = model.forward(two).domain_weights
    places = [model.domains.index(domain.name) for domain in stream.domains[:2]]
    assert torch.equal(weights[:, places], torch.eye(2, dtype=torch.float64))

    def gap() -> float:
        together, _ = model.answer(model.network, two, model.backbone)
        alone = torch.cat([model.answer(model.network, image[None], model.backbone)[0] for image in two])
        return float((together - alone).abs().max())

    assert gap() < 1e-5
    forced = [model.forced(model.network, two[at : at + 1], stream.domains[at].name, model.backbone) for at in (0, 1)]
    assert_close(model.answer(model.network, two, model.backbone)[0], torch.cat(forced), rtol=0, atol=1e-5)
    monkeypatch.setattr("bpg.methods.parts.prompted.halves", reshaped)
    assert gap() > 1e-2  # the trap would be found


def test_dualprompt_answers_as_it_trains_while_there_is_one_domain(stream: DomainStream, images: Tensor) -> None:
    model = learned(DualPrompt, stream, 1)
    trained = model.network.read(images, model.network.slots[0].prompts, model.backbone)
    assert_close(model.answer(model.network, images, model.backbone)[0], trained, rtol=0, atol=1e-6)


def test_dualprompt_begins_where_the_domain_before_ended(stream: DomainStream) -> None:
    model = learned(DualPrompt, stream, 1)
    first, second = model.grown(stream.domains[1]).slots
    assert torch.equal(first.prompts, second.prompts)
    assert not torch.equal(first.key, second.key)


def test_dualprompt_draws_the_domains_key_to_its_images(stream: DomainStream) -> None:
    def near(pull: float) -> float:
        model = learned(DualPrompt, stream, 1, pull=pull, optimisation=STEP | {"lr": 0.1})
        query = model.embed(seen(model, stream.domains[0]))
        return float(F.cosine_similarity(query, model.network.slots[0].key[None]).mean())

    assert near(0.0) < near(0.5) < near(1.0)


# CODA-Prompt


@pytest.mark.parametrize(("rows", "count", "width"), [(0, 1, 8), (0, 16, 64), (4, 3, 8), (40, 16, 64)])
def test_new_components_are_at_right_angles(rows: int, count: int, width: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    known = torch.randn(rows, width, generator=generator)  # learned ones are neither of length 1 nor apart
    known = torch.cat([known, known[:1]])  # and one may be no new direction
    before = known.clone()
    made = right_angles(known, count, generator)
    assert made.shape == (count, width)
    assert made.dtype == torch.float32
    assert_close(made @ made.T, torch.eye(count), rtol=0, atol=1e-5)
    assert_close(made @ known.T, torch.zeros(count, len(known)), rtol=0, atol=1e-5)
    assert torch.equal(known, before)


def test_a_component_that_is_nothing_is_no_direction() -> None:
    made = right_angles(torch.zeros(1, 4), 2, torch.Generator().manual_seed(0))
    assert_close(made @ made.T, torch.eye(2), rtol=0, atol=1e-5)


def test_where_no_direction_is_left_a_random_one_takes_its_place() -> None:
    known = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))

    def made(count: int, rows: Tensor) -> Tensor:
        return right_angles(rows, count, torch.Generator().manual_seed(1))

    found = made(3, known)
    assert_close(found.norm(dim=1), torch.ones(3))
    assert_close(known @ found[0], torch.zeros(3), rtol=0, atol=1e-5)  # the last there was
    assert (known @ found[1:].T).abs().amax(dim=0).min() > 1e-3
    assert not torch.equal(found[1], found[2])
    assert torch.equal(made(3, known), found)
    assert_close(made(2, torch.eye(4)).norm(dim=1), torch.ones(2))


def test_coda_weighs_components_by_a_cosine(stream: DomainStream, images: Tensor) -> None:
    model = learned(CODAPrompt, stream)
    query = model.backbone(images)
    weights = model.network.weights(query)
    assert weights.shape == (5, 2, 6)
    assert weights.abs().max() <= 1 + 1e-6
    assert weights.min() < 0  # no softmax
    attention, keys = model.network.table("attention"), model.network.table("keys")
    by_hand = F.cosine_similarity(query[3] * attention[1, 4], keys[1, 4], dim=0)
    assert_close(weights[3, 1, 4], by_hand)


def test_coda_with_one_component_scales_its_prompt(stream: DomainStream, images: Tensor) -> None:
    model = build(CODAPrompt, components=1, blocks=(1,))
    network = model.grown(stream.domains[0])
    slot = network.slots[0]
    with torch.no_grad():
        slot.attention.fill_(1.0)
    cosine = F.cosine_similarity(model.backbone(images), slot.keys[0])
    prompt = cosine[:, None, None] * slot.prompts[0, 0].unflatten(0, (4, -1))
    tuned = Tuning(prefix={1: Prefix(prompt[:, :2], prompt[:, 2:], projected=True)})
    assert_close(network(images, model.backbone), network.head(model.backbone(images, tuned)))


def test_the_penalty_is_nothing_at_right_angles(stream: DomainStream) -> None:
    model = build(CODAPrompt)
    network = model.grown(stream.domains[0])
    assert network.crowding() < 1e-10
    with torch.no_grad():
        network.slots[0].keys.mul_(2)  # each row's square is 4 where it should be 1; two blocks of three components
    assert network.crowding().item() == pytest.approx(2 * 3 * (4 - 1) ** 2 / 3**2, rel=1e-5)


def test_the_penalty_is_paid_once_a_batch(stream: DomainStream) -> None:
    def losses(**changes: Any) -> list[float]:
        found: list[float] = []
        model = build(CODAPrompt, penalty=10.0, optimisation=ADAMW | changes)
        model.progress = lambda now: found.append(now.loss) if now.loss is not None else None
        for domain in stream.domains[:2]:
            model.learn(domain)
        return found

    assert losses(micro_batch=2) == pytest.approx(losses(), rel=1e-4)
    longer = ADAMW | {"epochs": 5}
    free, held = (learned(CODAPrompt, stream, penalty=paid, optimisation=longer).network for paid in (0.0, 10.0))
    assert held.crowding() < 0.05 * free.crowding()  # what is learned leaves the right angles, less so if it pays


def test_coda_adds_components_at_right_angles_to_learned_ones(stream: DomainStream) -> None:
    model = learned(CODAPrompt, stream, 1)
    network = model.grown(stream.domains[1])
    for table in TABLES:
        old, new = (getattr(slot, table) for slot in network.slots)
        assert not torch.allclose(old @ old.mT, torch.eye(3).expand(2, 3, 3), atol=1e-4)  # they have learned
        assert_close(new @ old.mT, torch.zeros(2, 3, 3), rtol=0, atol=1e-5)
        assert_close(new @ new.mT, torch.eye(3).expand(2, 3, 3), rtol=0, atol=1e-5)


# C-Prompt


def test_alike_prompts_compose_to_themselves(stream: DomainStream, images: Tensor) -> None:
    model = learned(CPrompt, stream)
    network = model.network
    with torch.no_grad():
        for slot in network.slots:
            slot.prompts.copy_(network.slots[0].prompts[:1].expand_as(slot.prompts))
    composed, which, cosines = network.compose(queries(model, images), list(network.slots))
    assert which.shape == cosines.shape == (5, 2)
    assert_close(composed, network.slots[0].prompts[:1].expand_as(composed))


def test_one_chosen_prompt_is_itself(stream: DomainStream, images: Tensor) -> None:
    model = learned(CPrompt, stream, chosen=1)
    network = model.network
    composed, which, _ = network.compose(queries(model, images), list(network.slots))
    pool = torch.cat([slot.prompts for slot in network.slots])
    assert torch.equal(composed, pool[which[:, 0]])


@pytest.mark.parametrize("which", ["first", "mean"])
def test_an_image_is_known_by_its_patches(
    which: Any, stream: DomainStream, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = learned(CPrompt, stream, 1, query=which)
    tokens = model.backbone(images, Tuning(readout="all"))
    wanted = tokens[:, 1] if which == "first" else tokens[:, 1:].mean(dim=1)
    assert_close(patch_query(images, model.backbone, which), wanted)
    asked: list[Tensor] = []
    compose = Composed.compose

    def watched(network: Composed, query: Tensor, slots: Any) -> Any:
        asked.append(query)
        return compose(network, query, slots)

    monkeypatch.setattr(Composed, "compose", watched)
    model.answer(model.network, images, model.backbone)
    model.expert_logits(images, 0)
    model.loss(model.network, stream.domains[0])(model.network, images, torch.zeros(5, dtype=torch.long))
    assert len(asked) == 3
    assert all(torch.equal(query, patch_query(images, model.backbone, which)) for query in asked)


def test_training_chooses_from_the_domains_own_prompts(stream: DomainStream) -> None:
    model = learned(CPrompt, stream, 1)
    first, second = stream.domains[:2]
    images, network = seen(model, second), model.grown(second)
    loss = model.loss(network, second)
    before = loss(network, images, labels(second))
    with torch.no_grad():
        query = queries(model, images)
        network.slot(first.name).keys.copy_(query[:4])  # none could be nearer
    after = loss(network, images, labels(second))
    assert torch.equal(before, after)
    after.sum().backward()
    assert all(own.grad is None for own in network.slot(first.name).parameters())
    assert (network.slot(second.name).keys.grad.abs().amax(dim=1) > 0).any()
    _, shares = model.answer(network, images[:1], model.backbone)
    assert shares[0, 0] > 0  # at test time all compete


def test_c_prompt_draws_the_chosen_keys_to_the_images(stream: DomainStream) -> None:
    def near(pull: float) -> float:
        model = learned(CPrompt, stream, 1, pull=pull, optimisation=STEP | {"lr": 0.1})
        query = queries(model, seen(model, stream.domains[0]))
        return float(nearest_keys(query, model.network.slots[0].keys, 2)[1].mean())

    assert near(0.0) < near(0.5) < near(1.0)


def test_the_average_of_the_head_copies_first_and_then_lags(stream: DomainStream) -> None:
    def stepped(inertia: float, *moves: float) -> tuple[Tensor, Tensor, Tensor]:
        """The average before and after the last of some steps, and the head."""
        network = build(CPrompt, inertia=inertia).grown(stream.domains[0])
        before = network.head.average_weight.clone()
        with torch.no_grad():
            for move in moves:
                before = network.head.average_weight.clone()
                network.shared[0, 0, 0] += move
                network.head.weight += 1.0
                network.step()
        return before, network.head.average_weight, network.head.weight.detach()

    for inertia in (1e-3, 1.0, 1e3):
        _, average, head = stepped(inertia, 0.5)
        assert torch.equal(average, head)  # the first step copies
    before, average, head = stepped(1e3, 0.5, 0.5)
    assert torch.equal(average, before)  # one that is very inert stands still
    _, average, head = stepped(1e-3, 0.5, 0.5)
    assert torch.equal(average, head)  # one without inertia follows
    before, average, head = stepped(3.0, 0.5, 1.0)
    moved = math.exp(1.0 / (0.75 + 1e-5) - 3.0)  # the change by the usual change
    assert_close(average, (1 - moved) * before + moved * head)
    small, large = (stepped(3.0, 0.5, move) for move in (0.25, 1.0))
    assert (large[1] - large[0]).abs().mean() > (small[1] - small[0]).abs().mean()  # a larger change moves it more


def test_new_classes_leave_the_averages_of_the_others(stream: DomainStream, tmp_path: Any) -> None:
    model = learned(CPrompt, stream, 1, allow_new_classes=True)
    before = {name: getattr(model.network.head, f"average_{name}").clone() for name in ("weight", "bias")}
    head = model.grown(toy_domain(tmp_path, "white", 6, classes=("alpha", "box"))).head
    assert head.classes == ("alpha", "bar", "box", "cross")
    for name, own in before.items():
        average, now = getattr(head, f"average_{name}"), getattr(head, name)
        assert torch.equal(average[1:], own)
        assert not torch.equal(average[1:], now[1:])  # it lags
        assert torch.equal(average[0], now[0])  # a new row has been nothing else yet


@pytest.mark.parametrize("method", [CPrompt, KAPrompt])
def test_the_head_answers_as_it_was_on_average(method: type[Prompted], stream: DomainStream, images: Tensor) -> None:
    model = learned(method, stream)
    head = model.network.head
    assert not torch.equal(head.average_weight, head.weight)
    answers = [model.forward(images).log_probs, model.expert_logits(images, 1)]
    again = build(method)
    again.load_state(model.state())
    with torch.no_grad():
        for own in again.network.head.parameters():
            own.zero_()
    assert torch.equal(again.forward(images).log_probs, answers[0])
    assert torch.equal(again.expert_logits(images, 1), answers[1])
    features = torch.randn(2, 64)
    assert_close(head.steady(features), features @ head.average_weight.T + head.average_bias)


@pytest.mark.parametrize("method", [DualPrompt, CPrompt, KAPrompt])
def test_with_one_domain_it_answers_by_that_one(method: type[Prompted], stream: DomainStream, images: Tensor) -> None:
    model = learned(method, stream, 1)
    own, soft = model.compare(images, [Way(OWN), Way("soft")])
    assert_close(
        model.answer(model.network, images, model.backbone)[0], model.expert_logits(images, 0), rtol=0, atol=1e-6
    )
    assert_close(own.log_probs, soft.log_probs, rtol=0, atol=1e-6)
    assert torch.equal(own.domain_weights, torch.ones(5, 1, dtype=torch.float64))


# KA-Prompt


def test_the_cover_takes_what_adds_most() -> None:
    generator = torch.Generator().manual_seed(0)
    assert cover(SCORES, 3, generator) == [(2, 2), (0, 0), (1, 1)]  # sums 1.2, 1.2, 2.0; then gains 0.4, 0.3
    assert cover(SCORES, 1, generator) == [(2, 2)]


def test_where_nothing_adds_to_the_cover_pairs_of_those_taken_are_drawn() -> None:
    scores = SCORES.clone()
    scores[1] = torch.tensor([0.5, 0.4, 0.4, 0.3])  # nowhere better than the third
    pairs = cover(scores, 12, torch.Generator().manual_seed(0))
    assert pairs[:2] == [(2, 2), (0, 0)]
    assert len(pairs) == 12
    assert {row for pair in pairs for row in pair} == {0, 2}
    assert any(one != other for one, other in pairs[2:])
    assert cover(scores, 12, torch.Generator().manual_seed(0)) == pairs
    assert cover(SCORES[:1], 3, torch.Generator()) == [(0, 0)] * 3


def test_new_prompts_begin_as_old_ones(stream: DomainStream) -> None:
    model = learned(KAPrompt, stream, 1)
    old, network = model.network.slots[0], model.grown(stream.domains[1])
    model.prepare(network, stream.domains[1])
    new = network.slots[1]
    query = queries(model, seen(model, stream.domains[1]))
    scores = (F.normalize(old.keys, dim=1) @ F.normalize(query, dim=1).T + 1) / 2
    best = int(scores.sum(dim=1).argmax())
    assert torch.equal(new.keys[0], old.keys[best])
    assert torch.equal(new.prompts[0], old.prompts[best])
    pairs = [(one, other) for one in range(4) for other in range(4)]
    for key, prompt in zip(new.keys, new.prompts, strict=True):
        sources = [pair for pair in pairs if torch.allclose(old.keys[list(pair)].mean(dim=0), key)]
        assert any(torch.allclose(old.prompts[list(pair)].mean(dim=0), prompt) for pair in sources)


def test_the_first_domain_is_c_prompts(stream: DomainStream) -> None:
    alike = {"query": "mean", "optimisation": ADAMW | {"epochs": 2}}
    c_prompt, ka_prompt = (learned(method, stream, 1, **alike) for method in (CPrompt, KAPrompt))
    assert same(tensors(c_prompt), tensors(ka_prompt))
    for model in (c_prompt, ka_prompt):
        model.learn(stream.domains[1])
    assert not same(tensors(c_prompt), tensors(ka_prompt))


class Watched:
    """What KA-Prompt asks of the model before: of a network that is not the one that learns."""

    def __init__(self, learning: Composed, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[Composed, Tensor]] = []  # networks and prompts
        self.heads: list[AveragedHead] = []  # whose average was asked
        read, steady = Composed.read, AveragedHead.steady

        def watched_read(network: Composed, images: Tensor, prompts: Tensor, *more: Any) -> Tensor:
            if network is not learning:
                self.asked.append((network, prompts))
            return read(network, images, prompts, *more)

        def watched_steady(head: AveragedHead, features: Tensor) -> Tensor:
            self.heads.append(head)
            return steady(head, features)

        monkeypatch.setattr(Composed, "read", watched_read)
        monkeypatch.setattr(AveragedHead, "steady", watched_steady)

    @property
    def network(self) -> Composed:
        """The model before, which answered once and by its average."""
        ((network, _),) = self.asked
        assert self.heads == [network.head]
        return network

    @property
    def prompts(self) -> Tensor:
        return self.asked[0][1]


def aligned(
    model: Any, domain: Domain, keys: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Watched, Tensor]:
    """The network that is about to learn `domain`, what the model before was asked, and the weights as they should be.

    `keys` take the place of the old ones.
    """
    if keys is not None:
        with torch.no_grad():
            model.network.slots[0].keys.copy_(keys)
    network, images = model.grown(domain), seen(model, domain)
    model.prepare(network, domain)
    watched, loss = Watched(network, monkeypatch), model.loss(network, domain)
    if keys is None:  # something to tell new from old by
        with torch.no_grad():
            network.slots[1].prompts.add_(1.0)
            network.slots[1].keys.mul_(torch.linspace(0.5, 1.5, 64))
    loss(network, images, labels(domain)).sum().backward()
    query = queries(model, images)
    new, near = nearest_keys(query, network.slots[1].keys, 2)
    old, far = nearest_keys(query, model.network.slots[0].keys, 2)
    weights = ((far - near.amin(dim=1, keepdim=True)).clamp(max=0) / model.settings.temperature).exp()
    both = torch.cat([network.slots[1].prompts[new], model.network.slots[0].prompts[old]], dim=1)
    shares = torch.cat([torch.ones_like(near), weights], dim=1)[:, :, None, None, None]
    assert_close(watched.prompts, (shares * both).sum(dim=1) / shares.sum(dim=1))
    return network, watched, weights.detach()


def test_an_old_prompt_counts_less_the_worse_it_fits(stream: DomainStream, monkeypatch: pytest.MonkeyPatch) -> None:
    model = learned(KAPrompt, stream, 1, temperature=0.5)
    _, _, weights = aligned(model, stream.domains[1], None, monkeypatch)
    assert 0 < weights.min() < 1
    assert weights.max() <= 1


def test_an_old_prompt_that_fits_as_well_counts_as_much(stream: DomainStream, monkeypatch: pytest.MonkeyPatch) -> None:
    model = learned(KAPrompt, stream, 1)
    query = queries(model, seen(model, stream.domains[1]))
    one = F.normalize(query, dim=1).mean(dim=0).expand(4, -1)  # new keys begin as the old ones, which are all alike
    _, _, weights = aligned(model, stream.domains[1], one, monkeypatch)
    assert torch.equal(weights, torch.ones_like(weights))


@pytest.mark.parametrize("loaded", [False, True])
def test_alignment_teaches_the_new_prompts_alone(
    loaded: bool, stream: DomainStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = learned(KAPrompt, stream, 1)
    if loaded:
        again = build(KAPrompt)
        again.load_state(model.state())
        model = again
    model.network.zero_grad()
    network, watched, _ = aligned(model, stream.domains[1], None, monkeypatch)
    before = watched.network
    assert before is not model.network
    assert same(dict(before.state_dict()), dict(model.network.state_dict()))
    assert all(own.grad is None for own in (*network.slots[0].parameters(), *model.network.parameters()))
    assert all(own.grad is not None for own in (*network.slots[1].parameters(), network.shared, network.head.weight))
    assert all(own.grad is None for own in before.parameters())


def test_alignment_is_added_by_its_weight(stream: DomainStream) -> None:
    second = stream.domains[1]
    images = seen(build(KAPrompt), second)

    def losses(alignment: float) -> Tensor:
        model = learned(KAPrompt, stream, 1, alignment=alignment)
        network = model.grown(second)
        found: Tensor = model.loss(network, second)(network, images, labels(second))
        plain: Tensor = CPrompt.loss(model, network, second)(network, images, labels(second))
        (moved,) = torch.autograd.grad((found - plain).sum(), network.slots[1].keys)
        assert_close(moved, torch.zeros_like(moved), rtol=0, atol=1e-6)  # it teaches prompts, not keys
        return (found - plain).detach()

    assert torch.equal(losses(0.0), torch.zeros(12))
    assert (losses(0.1) > 0).all()
    assert_close(losses(0.2), 2 * losses(0.1), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("method", [DualPrompt, CPrompt])
def test_the_own_way_computes_as_it_is_told(method: type[DualPrompt | CPrompt], stream: DomainStream) -> None:
    model = learned(method, stream, 1)
    pixels = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    exact, rough = model.compare(pixels, [Way(OWN), Way(OWN, arithmetic="8-bit")])
    assert not torch.equal(exact.log_probs, rough.log_probs)
    assert_close(exact.log_probs, rough.log_probs, rtol=0, atol=0.5)
