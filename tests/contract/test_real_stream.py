"""On real images and a trained backbone, every method is above chance on a domain when it has just learned it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from bpg.backbones.backbone import Backbone
from bpg.backbones.weights import load_backbone
from bpg.data.domain import Domain, TestSet
from bpg.data.images import ImageSet
from bpg.experiments.manifest import find
from bpg.experiments.spec import Cell, DataSpec, cells, read_spec

CELLS = {cell.label: cell for cell in cells(read_spec("emoji", ["seeds=[0]"]))}
STYLES = ("google", "openmoji-black")
FEW = 6  # classes


def few(images: ImageSet) -> ImageSet:
    return images.subset(at for at, label in enumerate(images.labels) if label < FEW)


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load_backbone("bpg-vit-nano")


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
    for domain, test in stream:
        learner.learn(domain)
        counts = test.images.counts()
        chance = max(counts.values()) / len(test.images)
        margin = 2 * math.sqrt(chance * (1 - chance) / len(test.images))
        assert learner.score(test.images) > chance + margin
    learner.save(tmp_path / "model")
