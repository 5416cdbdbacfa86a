"""On real images and a trained backbone, every method is above chance on a domain when it has just learned it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from bpg.backbones.backbone import Backbone
from bpg.backbones.clip import TextConfig, TextTower
from bpg.backbones.weights import load_backbone
from bpg.data.domain import Domain, TestSet
from bpg.data.images import ImageSet
from bpg.experiments.manifest import find
from bpg.experiments.spec import Cell, DataSpec, cells, read_spec
from bpg.methods.base import Learner
from bpg.registry import METHODS
from tests.conftest import shaken

CELLS = {cell.label: cell for cell in cells(read_spec("emoji", ["seeds=[0]"]))}
STYLES = ("google", "openmoji-black")
FEW = 6  # classes
BRISK: dict[str, Any] = {
    "optimisation": {"epochs": 1, "batch_size": 16, "optimizer": "adamw", "lr": 0.03, "weight_decay": 0.0},
    "augmentation": {"area": (0.8, 1.0)},
    "context": 4,
}
TEXT: dict[str, Any] = BRISK | {"head": "text", "where": "shallow"}
WITH_NAMES = {"s_liprompts": BRISK, "pina": TEXT, "soyo": TEXT}  # methods that classify by the names of classes


def test_no_method_is_left_out() -> None:
    assert {cell.method for cell in CELLS.values()} | set(WITH_NAMES) == set(METHODS._shipped)  # without plug-ins


def few(images: ImageSet) -> ImageSet:
    return images.subset(at for at, label in enumerate(images.labels) if label < FEW)


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load_backbone("bpg-vit-nano")


@pytest.fixture(scope="module")
def clip(backbone: Backbone) -> Backbone:
    """The trained ViT beside a small text tower of random weights."""
    words = TextConfig(width=32, depth=2, heads=2, hidden=64, projection=backbone.feature_width)
    torch.manual_seed(0)
    text = shaken(TextTower(words), scale=0.2)
    return Backbone(backbone.vit, backbone.preprocessing, name="nano-clip", text=text, logit_scale=100.0)


@pytest.fixture(scope="module")
def stream() -> list[tuple[Domain, TestSet]]:
    found = find(DataSpec(benchmark="emoji", order=STYLES)).stream(name="emoji")
    tests = {test.domain: test for test in found.tests}
    return [
        (Domain(domain.name, few(domain.train)), TestSet(few(tests[domain.name].images), domain.name))
        for domain in found.domains
        if domain.name in STYLES
    ]


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS.values(), ids=list(CELLS))
def test_a_domain_is_above_chance_when_it_is_learned(
    cell: Cell, backbone: Backbone, stream: list[tuple[Domain, TestSet]], tmp_path: Path
) -> None:
    learner = cell.build(backbone)
    check_above_chance(learner, stream)
    learner.save(tmp_path / "model")


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_NAMES)
def test_so_it_is_where_classes_are_known_by_their_names(
    name: str, clip: Backbone, stream: list[tuple[Domain, TestSet]]
) -> None:
    check_above_chance(METHODS[name](clip, **WITH_NAMES[name]), stream)


def check_above_chance(learner: Learner, stream: list[tuple[Domain, TestSet]]) -> None:
    """Learn the domains, and score each of them at once."""
    for domain, test in stream:
        learner.learn(domain)
        counts = test.images.counts()
        chance = max(counts.values()) / len(test.images)
        margin = 2 * math.sqrt(chance * (1 - chance) / len(test.images))
        assert learner.score(test.images) > chance + margin
