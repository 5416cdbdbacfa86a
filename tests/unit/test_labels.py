"""Label modes: one row of the head for each class, or one for each domain that a class is in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import bpg
from bpg.config import later, settings
from bpg.data.domain import DomainStream
from bpg.errors import SettingsError
from bpg.methods.base import Learner
from bpg.methods.parts.heads import OF, per_class
from bpg.methods.parts.identity import as_json
from bpg.registry import METHODS
from bpg.training import cross_entropy
from tests.toy import CLASSES, FAST, GENTLE, toy_backbone, toy_stream
from tests.unit.test_rehearsal import caught, seen

KEPT: dict[str, Any] = {"memory": {"images": 9}}
OWN: dict[str, dict[str, Any]] = {
    "finetune": {},
    "joint": {},
    "lwf": {},
    "ewc": {"images": 6},
    "er": KEPT,
    "derpp": KEPT,
    "gdumb": {"memory": {"images": 18, "choice": "balanced"}},
}
TRAINED: dict[str, Any] = {"optimisation": FAST | {"lr": 0.005, "epochs": 2}, "augmentation": GENTLE}


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> DomainStream:
    return toy_stream(tmp_path_factory.mktemp("toy"), count=12)


def learned(name: str, stream: DomainStream, **changes: Any) -> Learner:
    own = {} if name == "ncm" else TRAINED | OWN[name]
    learner: Learner = METHODS[name](toy_backbone(), **own | changes)
    for domain in stream.domains[:2]:
        learner.learn(domain)
    return learner


def rows_of(learner: Learner) -> list[str]:
    return list(learner.state().facts["classes"])


@pytest.mark.parametrize("name", [*OWN, "ncm"])
def test_every_domain_may_have_rows_of_its_own(name: str, stream: DomainStream, tmp_path: Path) -> None:
    learner = learned(name, stream, labels="expanded")
    assert rows_of(learner) == sorted(f"{own}{OF}{domain}" for own in CLASSES for domain in ("red", "blue"))
    assert rows_of(learned(name, stream)) == list(CLASSES)
    assert learner.classes == CLASSES
    images = stream.tests[0].images
    found = learner.predict_proba(images)
    assert found.shape == (len(images), 3)
    learner.save(tmp_path / "model")
    again = bpg.load(tmp_path / "model", backbone=toy_backbone())
    assert torch.equal(torch.as_tensor(again.predict_proba(images)), torch.as_tensor(found))


def test_rows_of_the_first_domain_stay_where_ewc_holds_them(stream: DomainStream) -> None:
    def moved(strength: float) -> Tensor:
        learner: Any = METHODS["ewc"](toy_backbone(), labels="expanded", strength=strength, **TRAINED | {"images": 12})
        learner.learn(stream.domains[0])
        before = learner.network.head.weight.clone()
        learner.learn(stream.domains[1])
        head = learner.network.head
        return (head.weight[head.places([f"{name}{OF}red" for name in CLASSES])] - before).abs().mean()

    assert moved(1e6) < 0.5 * moved(0.0)


def test_lwf_labels_train_the_new_rows_alone(stream: DomainStream) -> None:
    learner: Any = METHODS["lwf"](toy_backbone(), labels="expanded", strength=0.0, **TRAINED)
    learner.learn(stream.domains[0])
    now = caught(learner, stream.domains[1])
    images, rows = seen(learner, now.domain.train), learner.rows(now.network, now.domain)
    labels = rows[torch.tensor(now.domain.train.labels)]
    now.network.requires_grad_(True)
    found = now.loss(now.network, images, labels)
    assert_close(found, cross_entropy(now.network(images)[:, rows], torch.tensor(now.domain.train.labels)))
    found.sum().backward()
    moved = now.network.head.weight.grad.abs().sum(dim=1) > 0
    assert [row for row, own in zip(now.network.head.classes, moved, strict=True) if own] == [
        f"{name}{OF}blue" for name in CLASSES
    ]


@pytest.mark.parametrize("name", ["er", "derpp"])
def test_kept_images_come_back_under_their_own_domains_rows(name: str, stream: DomainStream) -> None:
    learner: Any = METHODS[name](toy_backbone(), labels="expanded", **TRAINED | OWN[name])
    learner.learn(stream.domains[0])
    network = learner.grown(stream.domains[1])
    rows = learner.replayed(network, stream.domains[1])["rows"]
    named = [network.head.classes[row] for row in rows]
    assert named[:3] == [f"{own}{OF}blue" for own in CLASSES]
    assert named[3:] == [f"{each.name}{OF}red" for each in learner.memory.kept]


def test_logits_that_were_not_known_take_nothing_from_those_that_were(stream: DomainStream) -> None:
    def pull(labels: str) -> Tensor:
        learner: Any = METHODS["derpp"](toy_backbone(), labels=labels, beta=0.0, **TRAINED | KEPT)
        learner.learn(stream.domains[0])
        learner._logits = learner._logits + 1.0  # each known one is off by one
        now = caught(learner, stream.domains[1])
        kept = seen(learner, learner.memory.images())
        found: Tensor = now.loss(now.network, kept, torch.arange(3, 3 + len(kept)))
        return found.detach()

    assert_close(pull("expanded"), pull("shared"), rtol=1e-3, atol=1e-3)  # 3 alpha, whatever the rows


def test_in_one_domain_nearest_means_are_the_same_in_both_modes(stream: DomainStream) -> None:
    shared, own = METHODS["ncm"](toy_backbone()), METHODS["ncm"](toy_backbone(), labels="expanded")
    for learner in (shared, own):
        learner.learn(stream.domains[0])
    images = stream.tests[1].images
    assert (shared.predict_proba(images) == own.predict_proba(images)).all()


def test_the_best_row_of_a_class_answers_and_classes_stand_in_their_own_order() -> None:
    one = per_class(torch.tensor([[1.0, 3.0]]), [f"ab{OF}x", f"a{OF}x"])  # the separator sorts behind letters
    assert_close(one.exp(), torch.softmax(torch.tensor([[3.0, 1.0]]), dim=1))
    two = per_class(torch.tensor([[1.0, 2.0, 5.0]]), [f"a{OF}x", f"a{OF}y", f"b{OF}x"])
    assert_close(two.exp(), torch.softmax(torch.tensor([[2.0, 5.0]]), dim=1))


def test_bic_has_rows_for_each_domain_and_no_other_way() -> None:
    assert METHODS["bic"](toy_backbone()).expanded
    with pytest.raises(SettingsError, match="labels"):
        METHODS["bic"](toy_backbone(), labels="shared")


def test_a_setting_that_came_later_is_not_named_until_it_is_used() -> None:
    @settings
    class Own:
        rate: float = 1.0
        extra: int = later(3)

    assert as_json(Own()) == as_json(Own(extra=3)) == {"rate": 1.0}
    assert as_json(Own(extra=4)) == {"rate": 1.0, "extra": 4}
