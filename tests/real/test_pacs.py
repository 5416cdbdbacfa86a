"""PACS with DeiT-Tiny, for real: what must hold whatever the seed, on part of the images."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from bpg import BPG
from bpg.experiments.records import Run, read_runs
from bpg.metrics import average_accuracy, forgetting
from tests.command import document, done, model_files

pytestmark = [pytest.mark.real, pytest.mark.slow]  # about twelve minutes on two cores

# Two fifths of the training images and half of the test images of three domains, in smaller batches and more epochs.
# Photos are left out: the backbone was trained on photos, and a probe of them has nothing left to gain.
SUBSET = (
    "--set", "data.order=['art_painting', 'cartoon', 'sketch']",
    "--set", "data.per_class=40", "--set", "data.test_per_class=18",
    "--set", "methods.bpg.optimisation.batch_size=16", "--set", "methods.bpg.optimisation.epochs=8",
    "--set", "methods.finetune.optimisation.batch_size=8", "--set", "methods.finetune.optimisation.lr=2e-3",
)  # fmt: skip


@pytest.fixture(scope="module")
def runs(deit_tiny_file: Path, pacs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The runs of the config, by label."""
    out = tmp_path_factory.mktemp("pacs")
    places = {"BPG_DATA": str(pacs.parent), "BPG_WEIGHTS": str(deit_tiny_file.parent), "BPG_CACHE": str(out / "cache")}
    done("run", "pacs-deit-tiny", "--seed", 0, "--out", out, *SUBSET, **places)
    return {run.label: run for run in read_runs([out])}


def by_domain(run: Run, way: str) -> np.ndarray:
    return run.counts(way).accuracies[-1]


def test_experts_are_worth_their_parameters(runs: dict[str, Run]) -> None:
    """Each told the domain: an expert against a linear probe on the same frozen features."""
    expert, probe = by_domain(runs["bpg"], "oracle"), by_domain(runs["linear_probe"], "oracle")
    assert expert.mean() - probe.mean() >= 3, (expert, probe)
    totals = runs["bpg"].counts("oracle").total
    for mine, theirs, total in zip(expert, probe, totals, strict=True):
        share = theirs / 100
        assert mine >= theirs - 100 * math.sqrt(share * (1 - share) / total), (expert, probe)


def test_what_is_learned_is_not_forgotten(runs: dict[str, Run]) -> None:
    lost = forgetting(runs["finetune"].counts("own"))
    for way in ("soft", "hard"):
        assert forgetting(runs["bpg"].counts(way)) < lost / 2, (way, lost)
    assert forgetting(runs["bpg"].counts("oracle")) == 0


def test_routing_costs_a_few_points(runs: dict[str, Run]) -> None:
    bound = average_accuracy(runs["bpg"].counts("oracle"))
    for way in ("soft", "hard"):
        assert average_accuracy(runs["bpg"].counts(way)) > bound - 6, way


def test_forget_and_merge_by_verb_are_what_python_promises(
    runs: dict[str, Run], deit_tiny_file: Path, tmp_path: Path
) -> None:
    whole = runs["bpg"].folder / "model"
    for name, gone in (("drawn", ("art_painting",)), ("painted", ("cartoon", "sketch"))):
        shutil.copytree(whole, tmp_path / name)
        model = BPG.load(whole, backbone=str(deit_tiny_file))
        for domain in gone:
            document("forget", tmp_path / name, domain)
            model.forget(domain)
        model.save(tmp_path / f"{name} in python")
        assert model_files(tmp_path / name) == model_files(tmp_path / f"{name} in python")
    document("merge", tmp_path / "both", tmp_path / "painted", tmp_path / "drawn")
    assert model_files(tmp_path / "both") == model_files(whole)
