"""Limiting cases in which a method is another one, or has an answer that is known: what proves each of them right."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from bpg.data.batches import Batches
from bpg.data.domain import Domain, DomainStream, TestSet
from bpg.data.images import ImageSet
from bpg.methods.base import Learner
from bpg.methods.derpp import DERpp
from bpg.methods.er import ER
from bpg.methods.ewc import EWC
from bpg.methods.icarl import ICaRL
from bpg.methods.joint import Joint
from bpg.methods.lucir import LUCIR
from bpg.methods.lwf import LwF
from bpg.methods.parts.heads import OF
from bpg.methods.parts.teacher import distillation
from bpg.methods.parts.whole import Network, Whole
from bpg.registry import METHODS
from bpg.training import cross_entropy, fit
from tests.contract.test_methods import build
from tests.toy import COLOURS, FAST, toy_backbone, toy_domain, toy_images, toy_stream
from tests.unit.test_regularised import loss_and_task, moved
from tests.unit.test_rehearsal import COMMON, CPU, HERDED, caught, equal, learned, seen

STILL: dict[str, Any] = {"area": (1.0, 1.0), "ratio": (1.0, 1.0), "flip": False}  # every crop is the whole image
PLAIN: dict[str, Any] = {"batch_size": 12, "momentum": 0.0, "weight_decay": 0.0, "schedule": "constant"}
WHOLE = [name for name in METHODS if issubclass(METHODS[name], Whole)]
STRONG: dict[str, dict[str, Any]] = {"ewc": {"strength": 1e4}, "lwf": {"strength": 4.0}}  # a toy needs as much
NOT_ASKED = ("finetune", "l2p", "s_liprompts")  # L2P has one pool for all domains; S-liPrompts needs a CLIP
FROZEN = ["linear_probe", "sequential_probe", "ncm", "ranpac"]


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> DomainStream:
    return toy_stream(tmp_path_factory.mktemp("toy"), count=12)


def named_files(images: ImageSet) -> Counter[tuple[bytes, str]]:
    """Which images there are, and how they are called."""
    names = [images.classes[label].partition(OF)[0] for label in images.labels]
    return Counter((images.encoded(index), name) for index, name in enumerate(names))


def at_rate(learner: Any, lr: float) -> None:
    """Let it learn at another rate from now on."""
    learner.settings = replace(learner.settings, optimisation=replace(learner.settings.optimisation, lr=lr))


# EWC


class Drawn(EWC):
    """EWC with a task that is a quadratic: it draws every parameter to its `goal`."""

    stiffness = 2.0
    goal: dict[str, Tensor]

    def task(self, network: Network, images: Tensor, rows: Tensor) -> Tensor:
        del images
        away = [(own - self.goal[name]).square().sum() for name, own in network.named_parameters()]
        return (self.stiffness / 2 * torch.stack(away).sum()).expand(len(rows))


def test_ewc_ends_at_the_mean_of_old_and_new_optima_by_their_precision(stream: DomainStream) -> None:
    lr, strength = 0.25, 0.5
    options: dict[str, Any] = {"optimisation": PLAIN | {"epochs": 24, "lr": lr}, "augmentation": STILL}
    model = Drawn(toy_backbone(), strength=strength, **options)
    begin, generator = caught(model, stream.domains[0]).network, torch.Generator().manual_seed(0)
    for domain in stream.domains:
        before = dict(model.network.named_parameters()) if model.classes else {}
        stored = model.state().shared
        model.goal = {
            name: own.detach() + 0.05 * torch.randn(own.shape, generator=generator)
            for name, own in begin.named_parameters()
        }
        model.learn(domain)
        for name, own in model.network.named_parameters():
            goal, k = model.goal[name], model.stiffness
            if before:
                held = strength * stored[f"fisher/{name}"]
                assert held.max() < 1 / lr  # no entry is cut
                goal = (k * goal + held * before[name]) / (k + held)
            assert_close(own, goal, rtol=0, atol=1e-5)
    assert (model.network.head.weight - model.goal["head.weight"]).abs().max() > 0.01


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_one_penalty_is_the_sum_of_all_domains_own_while_the_weights_stay(decay: float, stream: DomainStream) -> None:
    *old, new = stream.domains
    still = COMMON | {"optimisation": COMMON["optimisation"] | {"lr": 0.0}}

    def penalty(*domains: Domain) -> Tensor:
        model = EWC(toy_backbone(), strength=300.0, decay=decay, **still)
        for domain in domains:
            model.learn(domain)
        now = caught(model, new)
        moved(now.network)
        loss, task = loss_and_task(model, now)
        return loss - task

    apart = [penalty(domain) for domain in old]
    assert all((own > 1).all() for own in apart)
    assert_close(penalty(*old), decay * apart[0] + apart[1], rtol=1e-4, atol=0)


# LwF


def test_where_a_domain_is_the_last_one_again_the_teacher_pulls_nowhere(stream: DomainStream) -> None:
    model = LwF(toy_backbone(), strength=0.7, temperature=2.0, **COMMON)
    red = stream.domains[0]
    model.learn(red)
    now = caught(model, replace(red, name="again"))
    images, rows = seen(model, red.train), torch.tensor(red.train.labels)

    def pull() -> tuple[Tensor, float]:
        """What distillation costs above the least it can, and how steep it is."""
        with torch.no_grad():
            wanted = model.network(images)
            least = distillation(wanted, wanted, temperature=2.0)
        kept = now.loss(now.network, images, rows) - cross_entropy(now.network(images), rows)
        slopes = torch.autograd.grad(kept.mean(), list(now.network.parameters()))
        return kept.detach() - 0.7 * least, max(float(own.abs().max()) for own in slopes)

    above, slope = pull()
    assert_close(above, torch.zeros(12), rtol=0, atol=1e-5)
    assert slope < 1e-5
    moved(now.network)
    above, slope = pull()
    assert above.mean() > 1e-3
    assert slope > 1e-2


# ER


def test_er_with_room_for_all_learns_from_what_joint_training_does(stream: DomainStream) -> None:
    *old, new = stream.domains
    keeper, joint = ER(toy_backbone(), memory={"images": 1000}, **COMMON), Joint(toy_backbone(), **COMMON)
    for domain in old:
        keeper.learn(domain)
        joint.learn(domain)
    batches = keeper.replayed(keeper.network, new)["batches"]
    found = named_files(batches.own.domain.train) + named_files(batches.memory.images())
    assert found == named_files(caught(joint, new).domain.train)


def test_er_with_room_for_all_sees_an_old_image_as_often_as_a_new_one(stream: DomainStream) -> None:
    epochs, (red, blue) = 40, stream.domains[:2]
    learner = ER(toy_backbone(), memory={"images": 1000}, **COMMON)
    learner.learn(red)
    many = replace(learner.settings.optimisation, epochs=epochs)
    learner.settings = replace(learner.settings, optimisation=many)
    batches = learner.replayed(learner.network, blue)["batches"]
    own, old = torch.zeros(12), torch.zeros(12)
    for step, (_, labels, _) in enumerate(batches.stream(0)):
        mine = batches.own.indices(step)
        own += torch.bincount(torch.tensor(mine), minlength=12)
        old += torch.bincount(labels[len(mine) :] - 3, minlength=12)
    assert own.tolist() == [epochs] * 12
    assert old.sum() == own.sum()
    assert ((old - epochs) ** 2 / epochs).sum() < 31.3  # exceeded once in a thousand, of 11 degrees of freedom


def test_a_step_of_er_is_one_of_the_mean_over_new_and_old_images(stream: DomainStream) -> None:
    red, blue = stream.domains[:2]
    once = COMMON | {"optimisation": PLAIN | {"epochs": 1, "lr": 0.01}}
    learner = ER(toy_backbone(), memory={"images": 5}, **once)
    learner.learn(red)
    network, batches = deepcopy(learner.network), learner.replayed(learner.network, blue)["batches"]
    ((images, labels, _),) = batches.stream(0)
    names = [blue.train.classes[blue.train.labels[index]] for index in batches.own.indices(0)]
    names += [learner.memory.kept[int(label) - 3].name for label in labels[12:]]
    before = list(network.requires_grad_(True).parameters())
    slopes = torch.autograd.grad(F.cross_entropy(network(images), network.head.places(names)), before)
    learner.learn(blue)
    assert len(names) == 24
    for own, slope, found in zip(before, slopes, learner.network.parameters(), strict=True):
        assert_close(found, own - 0.01 * slope, rtol=0, atol=1e-6)


# DER++


def test_derpp_without_logits_is_er_at_twice_the_rate(stream: DomainStream) -> None:
    red, blue = stream.domains[:2]
    one: dict[str, Any] = {"augmentation": STILL, "memory": {"images": 1}}  # every draw is the same
    one["optimisation"] = {"epochs": 2, "batch_size": 8, "lr": 0.01, "weight_decay": 0.0}
    plain = learned(ER(toy_backbone(), **one), red, blue)

    def halved(**values: Any) -> dict[str, Tensor]:
        learner = DERpp(toy_backbone(), **one, **values)
        learner.learn(red)
        at_rate(learner, 0.005)
        return learned(learner, blue)

    same, other = halved(alpha=0.0, beta=1.0), halved(alpha=0.3, beta=1.0)
    assert plain.keys() == same.keys()
    for name, tensor in plain.items():
        assert_close(same[name], tensor, rtol=0, atol=1e-6)
    assert max(float((other[name] - tensor).abs().max()) for name, tensor in plain.items()) > 1e-4


# iCaRL


def test_icarl_that_keeps_all_and_is_held_to_nothing_is_joint_training(stream: DomainStream) -> None:
    still = COMMON | {"optimisation": COMMON["optimisation"] | {"lr": 0.0}}

    def after(learner: Learner) -> dict[str, Tensor]:
        learner.learn(stream.domains[0])  # which leaves the network where joint training begins
        at_rate(learner, 0.005)
        return learned(learner, stream.domains[1])

    free, held = (
        after(ICaRL(toy_backbone(), labels="shared", strength=strength, memory={"images": 1000}, **still))
        for strength in (0.0, 1.0)
    )
    joint = after(Joint(toy_backbone(), **still))
    assert equal(free, joint)
    assert not equal(held, joint)


# LUCIR


@pytest.mark.parametrize("before", [0, 1])
def test_directions_answer_at_first_as_the_nearest_mean_does(before: int, stream: DomainStream) -> None:
    learner = LUCIR(toy_backbone(), **HERDED)
    for domain in stream.domains[:before]:
        learner.learn(domain)
    domain = stream.domains[before]
    now = caught(learner, domain)
    own = torch.tensor(domain.train.labels)
    others = torch.cat([seen(learner, test.images) for test in stream.tests])
    with torch.no_grad():
        features = F.normalize(now.network.net(seen(learner, domain.train)), dim=1)
        means = torch.stack([F.normalize(features[own == label].mean(dim=0), dim=0) for label in range(3)])
        found = now.network.net(others)
        distance = torch.cdist(F.normalize(found, dim=1), means)
        rows = now.network.head.places([learner.row(name, domain.name) for name in domain.classes])
        answers = now.network.head(found)[:, rows]
        cosines = answers / now.network.head.scale
    assert answers.argmax(dim=1).tolist() == distance.argmin(dim=1).tolist()
    assert_close(cosines, 1 - distance.square() / 2, rtol=0, atol=1e-5)


# Joint training


def test_joint_training_ends_alike_whatever_the_order_of_domains(stream: DomainStream) -> None:
    all_at_once = FAST | {"epochs": 3, "batch_size": 36, "lr": 0.005}
    files, networks = [], []
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        *old, last = (stream.domains[at] for at in order)
        learner = Joint(toy_backbone(), optimisation=all_at_once, augmentation=STILL)
        for domain in old:
            learner.learn(domain)
        files.append(named_files(caught(learner, last).domain.train))
        networks.append(learned(learner, last))
    assert files[0] == files[1] == files[2]
    assert sum(files[0].values()) == 36
    for other in networks[1:]:
        for name, tensor in networks[0].items():
            assert_close(other[name], tensor, rtol=0, atol=1e-5)  # the same sums, in another order


# One domain


@pytest.mark.parametrize("name", WHOLE)
def test_one_domain_is_plain_training_of_the_same_network(name: str, stream: DomainStream) -> None:
    red, learner = stream.domains[0], build(name, **COMMON)
    assert isinstance(learner, Whole)
    now = caught(learner, red)
    assert named_files(now.domain.train) == named_files(red.train)
    network, o = now.network, learner.settings.optimisation
    rows = network.head.places([learner.row(own.partition(OF)[0], "red") for own in now.domain.classes])
    augmentation, pixels = learner.settings.augmentation, learner.backbone.preprocessing
    batches = Batches(now.domain, pixels, augmentation, learner.settings.seed, o.batch_size, o.epochs)
    fit(network, lambda x, y: cross_entropy(network(x), rows[y]), batches, o, device=CPU)
    learner.learn(red)
    for wanted, found in zip(network.parameters(), learner.network.parameters(), strict=True):
        assert_close(found, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["ewc", "lwf", "er", "derpp", "icarl-shared"])  # other heads begin elsewhere
def test_on_one_domain_it_is_fine_tuning(name: str, stream: DomainStream) -> None:
    plain, same = (learned(build(own, **COMMON), stream.domains[0]) for own in ("finetune", name))
    assert equal(plain, same)


# Two domains


@pytest.fixture(scope="module")
def contrary(tmp_path_factory: pytest.TempPathFactory) -> DomainStream:
    """Red images, and violet ones, which look alike and are called otherwise."""
    folder, names = tmp_path_factory.mktemp("contrary"), ("red", "violet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(COLOURS, "violet", (170, 30, 150))
        red, violet = (toy_domain(folder, name, 12) for name in names)
        tests = [toy_images(folder, name, 24, part="test") for name in names]

    def turned(images: ImageSet) -> ImageSet:
        return replace(images, labels=tuple((label + 1) % 3 for label in images.labels))

    sets = (TestSet(tests[0], "red"), TestSet(turned(tests[1]), "violet"))
    return DomainStream("contrary", (red, replace(violet, train=turned(violet.train))), sets)


def patient(name: str, **values: Any) -> Learner:
    """A method that goes over the images often enough for the toy."""
    first = build(name, **values)
    if "optimisation" not in first.Settings.__dataclass_fields__:
        return first
    return build(name, optimisation=replace(first.settings.optimisation, epochs=12), **values)


@pytest.mark.parametrize("name", [*WHOLE, *FROZEN])
def test_a_domain_that_comes_again_under_another_name_does_no_harm(name: str, contrary: DomainStream) -> None:
    learner, red, unseen = patient(name), contrary.domains[0], contrary.tests[0].images
    learner.learn(red)
    before = learner.score(unseen)
    learner.learn(replace(red, name="again"))
    assert before > 0.8
    assert learner.score(unseen) > before - 0.1


def outcome(name: str, stream: DomainStream) -> tuple[float, float]:
    """The mean accuracy after two domains, and what is lost of the first one's."""
    learner, (first, second) = patient(name, **STRONG.get(name, {})), stream.domains
    learner.learn(first)
    before = learner.score(stream.tests[0].images)
    learner.learn(second)
    after = [learner.score(test.images) for test in stream.tests]
    return sum(after) / 2, before - after[0]


@pytest.fixture(scope="module")
def fine_tuned(contrary: DomainStream) -> tuple[float, float]:
    return outcome("finetune", contrary)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in NOT_ASKED])
def test_it_keeps_what_fine_tuning_forgets(name: str, contrary: DomainStream, fine_tuned: tuple[float, float]) -> None:
    (accuracy, lost), (plain, much) = outcome(name, contrary), fine_tuned
    assert much > 0.6
    assert lost < much - 0.3
    assert accuracy > plain
