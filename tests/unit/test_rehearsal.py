"""Rehearsal: what is kept, how it comes back, and what each method that keeps images does with it."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from bpg.data.batches import Batches, FeatureBatches, order_of
from bpg.data.check import check
from bpg.data.domain import Domain, DomainStream
from bpg.data.images import ImageSet
from bpg.data.transforms import Augmentation, Preprocessing
from bpg.errors import WrongUse
from bpg.methods.base import Learner, prepared
from bpg.methods.bic import BiC, BiCSettings
from bpg.methods.derpp import DERpp
from bpg.methods.er import ER
from bpg.methods.ewc import EWC
from bpg.methods.finetune import FineTune
from bpg.methods.gdumb import GDumb
from bpg.methods.icarl import ICaRL
from bpg.methods.joint import Joint
from bpg.methods.lucir import LUCIR
from bpg.methods.parts.bias import Correction, held_out
from bpg.methods.parts.heads import OF, CosineHead
from bpg.methods.parts.memory import Memory, MemorySettings, Replayed, herding, shares
from bpg.methods.parts.single import SingleLoss
from bpg.methods.parts.teacher import distillation
from bpg.methods.parts.whole import Network, Whole
from bpg.training import cross_entropy, fit
from tests.toy import FAST, GENTLE, toy_backbone, toy_clip_backbone, toy_domain, toy_stream

COMMON: dict[str, Any] = {"optimisation": FAST | {"lr": 0.005, "epochs": 2}, "augmentation": GENTLE}
HERDED: dict[str, Any] = COMMON | {"memory": {"images": 9, "choice": "herding"}}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> DomainStream:
    return toy_stream(tmp_path_factory.mktemp("toy"), count=12)


class Caught(Exception):
    """What a method would have trained: it is looked at where training begins."""

    def __init__(self, network: Network, domain: Domain, loss: SingleLoss) -> None:
        super().__init__()
        self.network, self.domain, self.loss = network, domain, loss


def caught(learner: Whole, domain: Domain) -> Caught:
    def train(network: Network, domain: Domain, loss: SingleLoss | None = None, **_: object) -> None:
        raise Caught(network, domain, loss or learner.task)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learner, "train", train)
        with pytest.raises(Caught) as found:
            learner.learn(domain)
    return found.value


def learned(learner: Learner, *domains: Domain) -> dict[str, Tensor]:
    """The network's tensors when these domains are learned."""
    for domain in domains:
        learner.learn(domain)
    return {name: tensor for name, tensor in learner.state().shared.items() if name.startswith("network/")}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def named_images(name: str, count: int, classes: tuple[str, ...] = ("c",)) -> Domain:
    """A domain whose files are never opened."""
    labels = tuple(index % len(classes) for index in range(count))
    return Domain(name, ImageSet(tuple(Path(f"{name}/{index}") for index in range(count)), labels, classes))


def kept_files(memory: Memory) -> list[bytes]:
    images = memory.images()
    return [images.encoded(index) for index in range(len(images))]


def seen(learner: Whole, images: ImageSet) -> Tensor:
    return torch.cat(list(prepared(learner.backbone, images, 32)))


# The memory


def test_a_reservoir_keeps_every_image_with_the_same_chance() -> None:
    deciles: Counter[int] = Counter()
    domains = [named_images(name, 5000) for name in ("red", "blue")]
    for seed in range(10):
        memory = Memory(MemorySettings(images=100, keep="references"))
        for domain in domains:
            memory = memory.after(domain, seed=seed)
        assert len(memory) == 100
        for number, domain in enumerate(domains):  # where in the stream each kept image came
            place = {index: at for at, index in enumerate(order_of(seed, domain.name, 0, 5000))}
            own = [int(Path(each.path).name) for each in memory.kept if each.domain == domain.name]
            deciles.update((5000 * number + place[index]) // 1000 for index in own)
    chi_square = sum((deciles[decile] - 100) ** 2 / 100 for decile in range(10))
    assert chi_square < 27.9  # exceeded once in a thousand, of 9 degrees of freedom


def test_the_first_images_take_the_slots_in_their_order() -> None:
    memory = Memory(MemorySettings(images=40, keep="references")).after(named_images("red", 30), seed=1)
    assert [int(Path(each.path).name) for each in memory.kept] == order_of(1, "red", 0, 30)
    more = memory.after(named_images("blue", 30), seed=1)
    places = {index: at for at, index in enumerate(order_of(1, "blue", 0, 30))}
    assert len(more) == 40
    for slot, each in enumerate(more.kept):
        at = int(Path(each.path).name)
        assert slot < 30 if each.domain == "red" else 30 + places[at] >= slot  # a slot's image never came before it


@pytest.mark.parametrize("choice", ["reservoir", "herding", "balanced"])
@pytest.mark.parametrize("most", [0, 1, 4, 10, 50])
def test_the_memory_never_holds_more_than_it_may(choice: Any, most: int) -> None:
    def features(images: ImageSet) -> Tensor:
        return torch.randn(len(images), 4, generator=torch.Generator().manual_seed(len(images)))

    memory = Memory(MemorySettings(images=most, choice=choice, keep="references"))
    came = 0
    for name, classes in (("red", ("a", "b", "c")), ("blue", ("a", "c")), ("green", ("b",))):  # cells are missing
        whole = named_images(name, 8, classes)
        domain = replace(whole, train=replace(whole.train, classes=(*classes, "never")))  # a class without images
        memory, came = memory.after(domain, seed=0, features=features), came + 8
        assert len(memory) == min(most, came)
        assert len({(each.domain, each.path) for each in memory.kept}) == len(memory)
        assert not any(each.name == "never" for each in memory.kept)


def test_herded_means_come_nearer_to_the_mean_than_random_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(60, 2, generator=generator) * torch.tensor([3.0, 1.0])
    order = herding(points, most=60)
    assert sorted(order) == list(range(60))
    assert herding(points, most=7) == order[:7]
    mean = points.mean(dim=0)
    for count in range(1, 21):
        herded = (points[order[:count]].mean(dim=0) - mean).norm()
        drawn = [
            (points[torch.randperm(60, generator=generator)[:count]].mean(dim=0) - mean).norm() for _ in range(200)
        ]
        assert herded < 0.5 * torch.stack(drawn).mean()


def test_what_a_cell_gives_up_is_its_last(stream: DomainStream) -> None:
    learner = ICaRL(toy_backbone(), **HERDED)
    learner.learn(stream.domains[0])
    before = learner.memory.kept
    learner.learn(stream.domains[1])
    for name in learner.classes:
        first = [each for each in before if each.name == name]
        left = [each for each in learner.memory.kept if (each.domain, each.name) == ("red", name)]
        assert 0 < len(left) < len(first)
        assert left == first[: len(left)]


@pytest.mark.parametrize("total", [0, 1, 5, 11, 40, 1000])
def test_shares_are_equal_where_cells_are_large_enough(total: int) -> None:
    large = shares(dict.fromkeys("abcdefg", 200), total)
    assert sum(large.values()) == min(total, 1400)
    assert max(large.values()) - min(large.values()) <= 1
    sizes = {"a": 100, "b": 2, "c": 100, "d": 0, "e": 5}
    given = shares(sizes, total)
    assert sum(given.values()) == min(total, 207)
    assert all(given[cell] <= size for cell, size in sizes.items())
    full = [given[cell] for cell, size in sizes.items() if given[cell] < size]
    assert not full or max(full) - min(full) <= 1  # who has not given all has as much as the others


def test_classes_of_different_sizes_are_kept_alike() -> None:
    memory = Memory(MemorySettings(images=20, choice="balanced", keep="references"))
    for name in ("red", "blue"):
        labels = (0,) * 50 + (1,) * 10 + (2,) * 20
        paths = tuple(Path(f"{name}/{index}") for index in range(80))
        memory = memory.after(Domain(name, ImageSet(paths, labels, ("a", "b", "c"))), seed=0)
    counts = Counter((each.domain, each.name) for each in memory.kept)
    assert len(counts) == 6
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("keep", ["images", "references"])
@pytest.mark.parametrize("most", [0, 5])
def test_a_memory_is_the_same_after_it_was_stored(keep: Any, most: int, stream: DomainStream) -> None:
    memory = Memory(MemorySettings(images=most, keep=keep)).after(stream.domains[0], seed=0)
    again = Memory(memory.wanted)
    again.restore({name.removeprefix("memory/"): tensor for name, tensor in memory.tensors().items()}, memory.facts())
    assert again.kept == memory.kept
    assert (again.seen, again.digest()) == (memory.seen, memory.digest())
    assert kept_files(again) == kept_files(memory)
    assert set(kept_files(memory)) <= {stream.domains[0].train.encoded(index) for index in range(12)}
    one, other = (each.after(stream.domains[1], seed=0) for each in (memory, again))
    assert one.kept == other.kept


def test_kept_images_stand_behind_each_batch_under_their_own_names(stream: DomainStream) -> None:
    learner = ER(toy_backbone(), memory={"images": 5}, **COMMON)
    learner.learn(stream.domains[0])
    domain, network, kept = stream.domains[1], learner.network, learner.memory.kept
    replay = learner.replayed(network, domain, draws=2)
    own, rows = replay["batches"].own, replay["rows"]
    assert replay["batches"].steps == own.steps == 4
    sizes = []
    for step, (images, labels, whole) in enumerate(replay["batches"].stream(0)):
        mine = own.indices(step)
        names = [domain.train.classes[domain.train.labels[index]] for index in mine]
        names += [kept[(int(label) - 3) % 5].name for label in labels[len(mine) :]]
        assert [learner.classes[int(row)] for row in rows[labels]] == names
        assert (len(images), whole) == (3 * len(mine), 3 * len(mine))
        assert ((labels[len(mine) : 2 * len(mine)] - 3) // 5 == 0).all()
        assert ((labels[2 * len(mine) :] - 3) // 5 == 1).all()
        red, _, blue = images.mean(dim=(2, 3)).T  # opposite colours fill half of an image or less
        assert (blue - red)[: len(mine)].mean() > 0 > (blue - red)[len(mine) :].mean()
        sizes.append(len(mine))
    assert sizes == [8, 4, 8, 4]


# Joint training and ER


def test_joint_training_on_one_domain_is_fine_tuning(stream: DomainStream) -> None:
    plain, joint = (learned(method(toy_backbone(), **COMMON), stream.domains[0]) for method in (FineTune, Joint))
    assert equal(plain, joint)


def test_joint_training_sees_all_images_so_far(stream: DomainStream) -> None:
    learner = Joint(toy_backbone(), **COMMON)
    learner.learn(stream.domains[0])
    both = caught(learner, stream.domains[1]).domain.train
    files = Counter(both.encoded(index) for index in range(len(both)))
    wanted = Counter(domain.train.encoded(index) for domain in stream.domains[:2] for index in range(12))
    assert files == wanted


@pytest.mark.parametrize("method", [Joint, GDumb])
def test_a_network_that_is_trained_anew_owes_nothing_to_the_last(
    method: type[Joint | GDumb], stream: DomainStream
) -> None:
    learner, other = (method(toy_backbone(), **COMMON) for _ in range(2))
    learner.learn(stream.domains[0])
    other.learn(stream.domains[0])
    with torch.no_grad():
        for parameter in other.network.parameters():
            parameter.add_(1.0)
    assert equal(learned(learner, stream.domains[1]), learned(other, stream.domains[1]))


def test_er_without_a_memory_is_fine_tuning(stream: DomainStream) -> None:
    plain = learned(FineTune(toy_backbone(), **COMMON), *stream.domains)
    assert equal(plain, learned(ER(toy_backbone(), memory={"images": 0}, **COMMON), *stream.domains))
    kept = ER(toy_backbone(), memory={"images": 4}, **COMMON)
    assert not equal(plain, learned(kept, *stream.domains))


# DER++


def test_derpp_without_its_two_terms_is_fine_tuning(stream: DomainStream) -> None:
    plain = learned(FineTune(toy_backbone(), **COMMON), *stream.domains[:2])
    free = learned(DERpp(toy_backbone(), alpha=0.0, beta=0.0, memory={"images": 4}, **COMMON), *stream.domains[:2])
    held = learned(DERpp(toy_backbone(), memory={"images": 4}, **COMMON), *stream.domains[:2])
    for name, tensor in plain.items():
        assert_close(free[name], tensor, rtol=0, atol=1e-6)  # 3 / (3 B) is 1 / B but for rounding
    assert max(float((held[name] - tensor).abs().max()) for name, tensor in plain.items()) > 1e-4


def test_the_stored_logits_are_the_answers_of_their_time(stream: DomainStream) -> None:
    learner = DERpp(toy_backbone(), memory={"images": 8}, **COMMON)
    learner.learn(stream.domains[0])
    memory, stored = learner.memory, learner.state().shared["logits"]
    with torch.no_grad():
        assert_close(stored, learner.network(seen(learner, memory.images())))
    assert not stored.requires_grad
    learner.learn(stream.domains[1])
    now, later = learner.memory, learner.state().shared["logits"]
    old = [(at, memory.kept.index(each)) for at, each in enumerate(now.kept) if each in memory.kept]
    assert 0 < len(old) < 8
    assert all(torch.equal(later[at], stored[before]) for at, before in old)
    new = [at for at, each in enumerate(now.kept) if each.domain == "blue"]
    with torch.no_grad():
        assert_close(later[new], learner.network(seen(learner, now.images().subset(new))))


def test_derpp_weighs_labels_and_logits_of_two_draws(stream: DomainStream) -> None:
    learner = DERpp(toy_backbone(), alpha=0.3, beta=0.5, memory={"images": 5}, **COMMON)
    learner.learn(stream.domains[0])
    memory, stored = learner.memory, learner.state().shared["logits"]
    now = caught(learner, stream.domains[1])
    images = seen(learner, memory.images())
    truth = now.network.head.places([each.name for each in memory.kept])
    moved = images + 0.1
    with torch.no_grad():
        as_new = now.loss(now.network, images, truth)  # the classes of the domain are the first labels
        again = now.loss(now.network, images, 3 + torch.arange(5))
        logits = now.loss(now.network, moved, 3 + torch.arange(5))
        labels = now.loss(now.network, images, 8 + torch.arange(5))
        task = cross_entropy(now.network(images), truth)
        apart = (now.network(moved) - stored).square().mean(dim=1)
    assert_close(as_new / 3, task)
    assert_close(again, torch.zeros(5), rtol=0, atol=1e-6)  # nothing was learned since
    assert_close(logits / 3, 0.3 * apart)
    assert_close(labels / 3, 0.5 * task)


def test_old_logits_know_nothing_of_new_classes(stream: DomainStream, tmp_path: Path) -> None:
    learner = DERpp(toy_backbone(), memory={"images": 8}, allow_new_classes=True, **COMMON)
    learner.learn(stream.domains[0])
    learner.learn(toy_domain(tmp_path, "white", 12, classes=("bar", "ring")))
    known = learner.state().shared["logits"].isfinite()
    for each, row in zip(learner.memory.kept, known, strict=True):
        assert row.tolist() == [True, True, True, each.domain == "white"]


# GDumb


def test_gdumb_is_fine_tuning_on_its_memory(stream: DomainStream) -> None:
    learner = GDumb(toy_backbone(), memory={"images": 6, "choice": "balanced"}, **COMMON)
    found = learned(learner, stream.domains[0])
    few = replace(stream.domains[0], train=learner.memory.images())
    assert Counter(each.name for each in learner.memory.kept) == {"bar": 2, "box": 2, "cross": 2}
    assert equal(found, learned(FineTune(toy_backbone(), **COMMON), few))


# iCaRL


class Colours(nn.Module):
    """The mean of each channel as a feature."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean(dim=(2, 3))


def test_the_nearest_mean_answers() -> None:
    learner = ICaRL(toy_backbone(), **HERDED)
    rows = [f"{name}{OF}{domain}" for name in ("a", "b", "none") for domain in ("one", "two")]
    centres = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0, -1, 0], [0, 0, 0], [0, 0, 0]])
    learner.network.head.grow(rows, seed=0)
    learner.network.net = Colours()  # type: ignore[assignment]
    learner._means = centres
    clusters = torch.arange(4).repeat(10)
    noise = 0.2 * torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    lengths = torch.linspace(0.5, 8, 40)[:, None]  # which do not matter
    images = (lengths * (centres[clusters] + noise))[:, :, None, None].expand(-1, 3, 4, 4)
    found = learner.forward(images).log_probs
    assert learner.classes == ("a", "b", "none")
    assert found.argmax(dim=1).tolist() == (clusters // 2).tolist()
    assert (found[:, 2] < -1000).all()  # of a class without kept images there is no mean


@pytest.mark.parametrize("labels", ["expanded", "shared"])
def test_means_are_those_of_kept_images_as_the_network_sees_them_now(labels: str, stream: DomainStream) -> None:
    learner = ICaRL(toy_backbone(), labels=labels, **HERDED)
    for domain in stream.domains[:2]:
        learner.learn(domain)
    memory = learner.memory
    with torch.no_grad():
        features = F.normalize(learner.network.net(seen(learner, memory.images())), dim=1)
    for row, mean in zip(learner.network.head.classes, learner.state().shared["means"], strict=True):
        name, _, own = row.partition(OF)
        cells = []
        for domain_name in (own,) if own else ("blue", "red"):
            members = [at for at, each in enumerate(memory.kept) if (each.name, each.domain) == (name, domain_name)]
            cells.append(F.normalize(features[members].mean(dim=0), dim=0))
        assert_close(mean, F.normalize(torch.stack(cells).mean(dim=0), dim=0))


def test_icarl_distils_the_old_rows_on_all_images(stream: DomainStream) -> None:
    learner = ICaRL(toy_backbone(), strength=0.7, **HERDED)
    learner.learn(stream.domains[0])
    teacher, now = learner.network, caught(learner, stream.domains[1])
    images = seen(learner, now.domain.train)
    rows = now.network.head.places([now.domain.train.classes[label] for label in now.domain.train.labels])
    assert len(images) == 12 + 9
    with torch.no_grad():
        found, logits = now.loss(now.network, images, rows), now.network(images)
        old = now.network.head.places(teacher.head.classes)
        kept = distillation(logits[:, old], teacher(images), temperature=2.0)
        assert_close(found, cross_entropy(logits, rows) + 0.7 * kept)
        assert_close(logits[:, old], teacher(images))  # training begins where the teacher is


def test_icarl_says_which_classes_it_cannot_answer(stream: DomainStream) -> None:
    def keeping(images: int) -> ICaRL:
        return ICaRL(toy_backbone(), memory={"images": images, "choice": "herding"}, **COMMON)

    with pytest.raises(WrongUse, match="iCaRL keeps no images"):
        keeping(0).learn(stream.domains[0])
    few = keeping(2)
    with pytest.warns(UserWarning, match="no image is kept of 1 of 3 classes") as told:
        few.learn(stream.domains[0])
    (missing,) = set(few.classes) - {each.name for each in few.memory.kept}
    assert f": {missing}. Raise memory.images." in str(told[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        keeping(3).learn(stream.domains[0])


# LUCIR


def lucir_at_second(stream: DomainStream, **values: Any) -> tuple[LUCIR, Caught]:
    learner = LUCIR(toy_backbone(), **HERDED | values)
    learner.learn(stream.domains[0])
    return learner, caught(learner, stream.domains[1])


def losses(learner: LUCIR, now: Caught, network: Network | None = None) -> Tensor:
    images = seen(learner, now.domain.train)
    rows = now.network.head.places([now.domain.train.classes[label] for label in now.domain.train.labels])
    with torch.no_grad():
        return now.loss(network or now.network, images, rows)


def test_features_that_have_not_moved_cost_nothing(stream: DomainStream) -> None:
    free, held = (lucir_at_second(stream, keep=keep, ranking=0.0) for keep in (0.0, 5.0))
    assert_close(losses(*free), losses(*held))
    learner, now = held
    with torch.no_grad():
        for parameter in now.network.net.parameters():
            parameter.mul_(1.1)
        for parameter, same in zip(free[1].network.net.parameters(), now.network.net.parameters(), strict=True):
            parameter.copy_(same)
        images = seen(learner, now.domain.train)
        apart = 1 - F.cosine_similarity(now.network.net(images), learner.network.net(images))
    assert (apart > 1e-4).all()
    assert_close(losses(*held) - losses(*free), 5.0 * apart, rtol=1e-3, atol=1e-5)  # of one old domain


def test_features_are_held_by_the_root_of_the_number_of_old_domains(stream: DomainStream) -> None:
    learner = LUCIR(toy_backbone(), ranking=0.0, **HERDED)
    for domain in stream.domains[:2]:
        learner.learn(domain)
    found = []
    for keep in (0.0, 5.0):
        learner.settings = replace(learner.settings, keep=keep)
        now = caught(learner, stream.domains[2])
        with torch.no_grad():
            for parameter in now.network.net.parameters():
                parameter.mul_(1.1)
        found.append(losses(learner, now))
    images = seen(learner, now.domain.train)
    with torch.no_grad():
        apart = 1 - F.cosine_similarity(now.network.net(images), learner.network.net(images))
    assert (apart > 1e-4).all()
    assert_close(found[1] - found[0], 5.0 * 2**0.5 * apart, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("most", [1, 2, 5])
def test_the_margin_is_for_kept_images_and_from_other_classes_of_the_new_domain(
    most: int, stream: DomainStream
) -> None:
    (learner, free), (other, held) = (lucir_at_second(stream, ranking=own, rivals=most) for own in (0.0, 1.0))
    ranked = losses(other, held) - losses(learner, free)
    rows = [held.domain.train.classes[label] for label in held.domain.train.labels]
    names = held.network.head.classes
    head = held.network.head
    assert isinstance(head, CosineHead)
    with torch.no_grad():
        cosines = head.cosines(held.network.net(seen(other, held.domain.train)))
    wanted = torch.zeros(len(rows))
    for at, row in enumerate(rows):
        name, _, domain = row.partition(OF)
        if domain == "red":
            rivals = [place for place, its in enumerate(names) if its.endswith("blue") and not its.startswith(name)]
            assert len(rivals) == 2  # there are no more to keep from, however many may be
            nearest = cosines[at, rivals].topk(min(most, 2)).values
            wanted[at] = torch.relu(0.5 - cosines[at, names.index(row)] + nearest).mean()
    assert len(rows) == 12 + 9
    assert 0 < int((wanted > 0).sum()) <= 9
    assert_close(ranked, wanted * 21 / 9, rtol=1e-3, atol=1e-5)  # a mean over the kept ones, where the loop has all


def test_a_margin_that_is_kept_costs_nothing(stream: DomainStream) -> None:
    free, held = (lucir_at_second(stream, ranking=ranking, margin=0.0) for ranking in (0.0, 1.0))
    with torch.no_grad():
        for _, now in (free, held):
            own = torch.tensor([row.endswith("blue") for row in now.network.head.classes])
            now.network.head.weight[own] = -now.network.net(seen(free[0], now.domain.train)).mean(dim=0)
    assert_close(losses(*free), losses(*held))


def test_new_directions_begin_at_the_mean_feature(stream: DomainStream) -> None:
    learner, now = lucir_at_second(stream)
    own = stream.domains[1].train
    with torch.no_grad():
        features = F.normalize(now.network.net(seen(learner, own)), dim=1)
    old = now.network.head.places([f"{name}{OF}red" for name in own.classes])
    length = now.network.head.weight[old].norm(dim=1).mean()
    assert_close(now.network.head.weight[old], learner.network.head.weight)
    for label, name in enumerate(own.classes):
        row = now.network.head.weight[now.network.head.classes.index(f"{name}{OF}blue")]
        mean = features[[at for at, its in enumerate(own.labels) if its == label]].mean(dim=0)
        assert_close(row.detach(), length.detach() * F.normalize(mean, dim=0))


def test_old_directions_stay_until_the_last_stage_which_leaves_features_alone(stream: DomainStream) -> None:
    def after(lr: float, labels: str = "expanded") -> tuple[Tensor, LUCIR]:
        learner = LUCIR(toy_backbone(), balancing={"epochs": 1, "lr": lr}, labels=labels, **HERDED)
        learner.learn(stream.domains[0])
        before = learner.network.head.weight.detach().clone()
        learner.learn(stream.domains[1])
        return before, learner

    first, still = after(0.0)
    old = still.network.head.places([f"{name}{OF}red" for name in still.classes])
    assert torch.equal(still.network.head.weight[old], first)
    before, shared = after(0.0, "shared")
    assert not torch.equal(shared.network.head.weight, before)
    before, moved = after(0.1)
    assert torch.equal(before, first)  # with one domain there is nothing to balance
    assert not torch.equal(moved.network.head.weight[old], still.network.head.weight[old])
    one, other = (learned(learner) for learner in (moved, still))
    assert {name for name in one if not torch.equal(one[name], other[name])} == {"network/head.weight"}


# BiC


def shifted_logits(count: int, shift: float) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of six rows, the same with the last three shifted, and labels that the unshifted ones are right about."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(count, 6, generator=generator)
    labels = torch.multinomial(torch.softmax(logits, dim=1), 1, generator=generator)[:, 0]
    return logits, logits + shift * (torch.arange(6) >= 3), labels


def corrected(shifted: Tensor, labels: Tensor) -> Correction:
    wanted = BiCSettings().correction
    found = Correction(torch.arange(6) >= 3)
    assert {name for name, _ in found.named_parameters()} == {"scale", "shift"}
    assert torch.equal(found(shifted), shifted)  # it begins as nothing
    batches = FeatureBatches(shifted, labels, "blue", 0, wanted.batch_size, wanted.epochs)
    fit(found, lambda x, y: cross_entropy(found(x), y), batches, wanted, device=CPU)
    return found


def test_a_shift_of_the_newest_rows_is_found() -> None:
    logits, shifted, labels = shifted_logits(1000, 3.0)
    found = corrected(shifted, labels)
    assert found.shift.item() == pytest.approx(-3.0, abs=0.4)
    assert found.scale.item() == pytest.approx(1.0, abs=0.15)
    right = [(each.argmax(dim=1) == labels).float().mean().item() for each in (logits, shifted, found(shifted))]
    assert right[2] == pytest.approx(right[0], abs=0.02)
    assert right[1] < right[0] - 0.1


def test_images_that_are_held_out_are_not_trained_on(stream: DomainStream, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = BiC(toy_backbone(), **HERDED)
    learner.learn(stream.domains[0])
    assert learner.state().facts["scales"] == {}  # with one domain nothing is preferred
    kept = kept_files(learner.memory)
    trained: list[bytes] = []
    held: list[bytes] = []
    train, bias = learner.train, learner._bias

    def watched(network: Network, domain: Domain, loss: SingleLoss) -> Any:
        trained.extend(domain.train.encoded(index) for index in range(len(domain.train)))
        return train(network, domain, loss)

    def watched_bias(network: Network, domain: Domain, known: Any) -> tuple[float, float]:
        held.extend(domain.train.encoded(index) for index in range(len(domain.train)))
        assert Counter(domain.train.counts().values()) == {1: 6}  # of each class of both domains
        return bias(network, domain, known)

    monkeypatch.setattr(learner, "train", watched)
    monkeypatch.setattr(learner, "_bias", watched_bias)
    learner.learn(stream.domains[1])
    own = [stream.domains[1].train.encoded(index) for index in range(12)]
    assert Counter(trained + held) == Counter(kept + own)
    assert not set(trained) & set(held)
    assert list(learner.state().facts["scales"]) == ["blue"]


def test_distillation_weighs_as_much_as_there_are_old_rows(stream: DomainStream) -> None:
    learner = BiC(toy_backbone(), **HERDED)
    learner.learn(stream.domains[0])
    teacher, now = learner.network, caught(learner, stream.domains[1])
    images = seen(learner, now.domain.train)
    rows = now.network.head.places([now.domain.train.classes[label] for label in now.domain.train.labels])
    with torch.no_grad():
        logits = now.network(images)
        kept = distillation(logits[:, now.network.head.places(teacher.head.classes)], teacher(images), temperature=2.0)
        assert_close(now.loss(now.network, images, rows), cross_entropy(logits, rows) / 2 + kept / 2)


def test_a_correction_changes_its_own_domains_logits_alone(stream: DomainStream) -> None:
    learner = BiC(toy_backbone(), **HERDED)
    for domain in stream.domains[:2]:
        learner.learn(domain)
    images, new = seen(learner, stream.tests[0].images), [OF + "blue" in row for row in learner.network.head.classes]
    learner._scales = {"blue": (0.5, -3.0)}
    with torch.no_grad():
        plain, found = learner.network(images), learner.logits(learner.network, images)
    assert_close(found, torch.where(torch.tensor(new), 0.5 * plain - 3, plain))
    learner._scales = {"blue": (1.0, 0.0)}
    with torch.no_grad():
        assert torch.equal(learner.logits(learner.network, images), plain)


def test_a_student_that_is_the_corrected_teacher_feels_no_pull(stream: DomainStream) -> None:
    learner = BiC(toy_backbone(), **HERDED)
    for domain in stream.domains[:2]:
        learner.learn(domain)
    learner._scales = {"blue": (1.0, -3.0)}
    now = caught(learner, stream.domains[2])
    images = seen(learner, now.domain.train)
    rows = now.network.head.places([now.domain.train.classes[label] for label in now.domain.train.labels])
    with torch.no_grad():
        wanted = learner.logits(learner.network, images)
        least = distillation(wanted, wanted, temperature=2.0)  # the entropy of the teacher's answers
        task = cross_entropy(learner.logits(now.network, images), rows)
        assert_close(now.loss(now.network, images, rows), task / 3 + 2 / 3 * least)


def test_images_are_held_out_of_old_and_new_domains_alike() -> None:
    known = [f"{name}{OF}{domain}" for name in "abc" for domain in ("one", "two")]
    rows = (*known, *(f"{name}{OF}three" for name in "abc"))
    for kept, most in ((1, 1), (2, 1), (15, 1), (40, 4)):  # images of each old row, and held ones of them
        labels = tuple(index % 6 for index in range(6 * kept)) + tuple(6 + index % 3 for index in range(60))
        together = Domain("three", ImageSet(tuple(Path(str(at)) for at in range(len(labels))), labels, rows))
        held = Counter(labels[at] for at in held_out(together, known, share=0.1, seed=0))
        assert held == dict.fromkeys(range(9), most)


def test_few_held_out_images_are_enough_to_find_a_shift() -> None:
    logits, shifted, labels = shifted_logits(100, 3.0)
    found = corrected(shifted, labels)
    with torch.no_grad():
        assert cross_entropy(found(shifted), labels).mean() < cross_entropy(logits, labels).mean() + 0.01


# A domain that is learned twice, and what else a memory must bear


def test_a_domain_that_is_learned_twice_is_not_joined_with_itself(stream: DomainStream) -> None:
    learner = Joint(toy_backbone(), **COMMON)
    for domain in stream.domains[:2]:
        learner.learn(domain)
    assert len(caught(learner, stream.domains[0]).domain.train) == 24


def test_bic_learns_from_the_labels_of_a_domain_that_comes_again(stream: DomainStream) -> None:
    learner = BiC(toy_backbone(), **HERDED | {"optimisation": FAST | {"lr": 0.005}})
    for domain in stream.domains[:2]:
        learner.learn(domain)
    train = stream.domains[1].train
    other = replace(stream.domains[1], train=replace(train, labels=tuple((label + 1) % 3 for label in train.labels)))
    for _ in range(3):
        learner.learn(other)
    assert learner.score(other.train) > 0.6


def test_a_reservoir_counts_a_domain_that_is_learned_twice_once() -> None:
    early = late = 0
    for seed in range(100):
        memory = Memory(MemorySettings(images=10, keep="references"))
        for name in ("red", "blue", "blue"):
            memory = memory.after(named_images(name, 100), seed=seed)
        first = {f"blue/{index}" for index in order_of(seed, "blue", 0, 100)[:5]}
        blue = [each.path for each in memory.kept if each.domain == "blue"]
        early, late = early + sum(path in first for path in blue), late + len(blue)
    assert early < 0.15 * late  # 5 in 100, had each the same chance


@pytest.mark.parametrize("again", ["red", "blue"])
def test_a_domain_that_is_learned_twice_keeps_its_share_of_a_reservoir(again: str) -> None:
    sizes = {"red": 60, "blue": 120, "green": 60}
    counts: Counter[str] = Counter()
    for seed in range(200):
        memory = Memory(MemorySettings(images=10, keep="references"))
        for name in ("red", "blue"):
            memory = memory.after(named_images(name, sizes[name]), seed=seed)
        others = [each for each in memory.kept if each.domain != again]
        memory = memory.after(named_images(again, sizes[again]), seed=seed)
        assert [each for each in memory.kept if each.domain != again] == others
        assert len(memory) == len({each.path for each in memory.kept}) == 10
        memory = memory.after(named_images("green", 60), seed=seed)
        assert len(memory) == 10
        counts.update(each.domain for each in memory.kept)
    for name, size in sizes.items():
        assert counts[name] / 2000 == pytest.approx(size / 240, abs=0.04)  # three standard errors


def test_a_domain_that_comes_again_is_not_replayed_beside_itself(stream: DomainStream) -> None:
    red, blue = stream.domains[:2]
    learner = DERpp(toy_backbone(), alpha=0.3, beta=0.5, memory={"images": 8}, **COMMON)
    for domain in (red, blue):
        learner.learn(domain)
    memory, stored = learner.memory, learner.state().shared["logits"]
    old = [at for at, each in enumerate(memory.kept) if each.domain == "red"]
    assert 0 < len(old) < 8
    assert old != list(range(len(old)))  # they do not stand at the beginning by chance
    replay = learner.replayed(learner.network, blue)
    assert replay["batches"].memory.kept == [memory.kept[at] for at in old]
    now, images = caught(learner, blue), seen(learner, memory.images().subset(old)) + 0.1
    with torch.no_grad():
        logits = now.loss(now.network, images, 3 + torch.arange(len(old)))
        labels = now.loss(now.network, images, 3 + len(old) + torch.arange(len(old)))
        apart = (now.network(images) - stored[old]).square().mean(dim=1)
        task = cross_entropy(now.network(images), now.network.head.places([memory.kept[at].name for at in old]))
    assert_close(logits / 3, 0.3 * apart)
    assert_close(labels / 3, 0.5 * task)
    learner.learn(blue)
    assert all(torch.equal(row, stored[old[at]]) for at, row in enumerate(learner.state().shared["logits"][: len(old)]))

    plain = learned(FineTune(toy_backbone(), **COMMON), red, red)
    assert equal(plain, learned(ER(toy_backbone(), memory={"images": 8}, **COMMON), red, red))


def test_the_two_draws_crop_an_image_each_in_its_own_way(stream: DomainStream) -> None:
    memory = Memory(MemorySettings(images=1)).after(stream.domains[0], seed=0)
    own = Batches(stream.domains[1], Preprocessing(size=32), Augmentation(), 0, 4, 1)
    images, _, _ = next(Replayed(own, memory, 2).stream(0))
    assert not torch.equal(images[4], images[8])


def test_the_last_stages_have_label_smoothing_of_their_own(stream: DomainStream) -> None:
    plain, smooth = (
        LUCIR(toy_backbone(), balancing={"epochs": 2, "lr": 0.1, "label_smoothing": smoothing}, **HERDED)
        for smoothing in (0.0, 0.5)
    )
    assert equal(learned(plain, stream.domains[0]), learned(smooth, stream.domains[0]))  # there is no last stage yet
    assert not equal(learned(plain, stream.domains[1]), learned(smooth, stream.domains[1]))


@pytest.mark.parametrize("method", [FineTune, EWC])
def test_of_a_clip_the_images_side_alone_is_trained(method: type[FineTune | EWC], stream: DomainStream) -> None:
    found = learned(method(toy_clip_backbone(), **COMMON), *stream.domains[:2])
    assert not any("text" in name for name in found)


def test_lucir_learns_a_domain_that_comes_again(stream: DomainStream) -> None:
    model = LUCIR(toy_backbone(), **COMMON, memory={"images": 6, "choice": "herding"})
    first, second = stream.domains[:2]
    for domain in (first, second):
        model.learn(domain)
    before = model.network.head.weight.detach().clone()
    model.learn(second)
    mine = model.network.head.places([model.row(name, second.name) for name in second.classes])
    assert not torch.equal(model.network.head.weight[mine], before[mine])


def test_without_kept_images_a_loaded_model_goes_on_alike(stream: DomainStream) -> None:
    def made() -> LUCIR:
        return LUCIR(toy_backbone(), **COMMON, memory={"images": 0, "choice": "herding"})

    one, other = made(), made()
    one.learn(stream.domains[0])
    other.load_state(one.state())
    for model in (one, other):
        model.learn(stream.domains[1])
    ours, its = one.state().shared, other.state().shared
    assert ours.keys() == its.keys()
    assert all(torch.equal(ours[name], its[name]) for name in ours)


def test_a_model_knows_what_it_learned_from_and_older_ones_are_loaded(stream: DomainStream) -> None:
    model, again = (Joint(toy_backbone(), **COMMON) for _ in range(2))
    for domain in stream.domains[:2]:
        model.learn(domain)
    state = model.state()
    assert state.facts["images_sha256"] == {domain.name: check(domain.train).sha256 for domain in stream.domains[:2]}
    again.load_state(state)
    assert again.state().facts == state.facts
    again.load_state(replace(state, facts={key: own for key, own in state.facts.items() if key != "images_sha256"}))
    again.learn(stream.domains[2])
    assert list(again.state().facts["images_sha256"]) == ["green"]


def test_a_domain_that_was_not_learned_to_the_end_is_not_known(stream: DomainStream) -> None:
    model = EWC(toy_backbone(), **COMMON)
    caught(model, stream.domains[0])
    assert model.state().facts["images_sha256"] == {}
