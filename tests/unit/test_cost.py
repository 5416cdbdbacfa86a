"""What a plan counts, against counts of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bpg.bench.planning import Probe
from bpg.bench.timing import UNCOUNTED
from bpg.experiments.cost import GPUS, Sizes, forward_operations, kept_bytes, passes_of, published_sizes
from bpg.experiments.scale import Job
from bpg.experiments.spec import DataSpec
from bpg.experts.expert import Expert, ExpertSettings
from bpg.randomness import generator_of
from tests.conftest import ROOT
from tests.toy import toy_backbone

SIZES = Sizes((100, 200), (10, 20))


def job(method: str, kind: Any = "run", backbone: Mapping[str, Any] | None = None, **settings: Any) -> Job:
    data, backbone = {"root": "nowhere"}, backbone or {"source": "nothing"}
    return Job(kind, {"name": "n", "data": data, "backbone": backbone, "methods": {method: settings}, "seeds": [0]})


@pytest.mark.parametrize(
    ("counted", "passes"),
    [
        # Each epoch a forward and two backward; after each domain, a pass of every test image so far.
        (job("finetune", optimisation={"epochs": 2}), 3 * 2 * 300 + 10 + 30),
        # All images so far, again and again.
        (job("joint", optimisation={"epochs": 2}), 3 * 2 * (100 + 300) + 10 + 30),
        (job("ncm"), 300 + 10 + 30),
        # One pass to survey, 2.3 an epoch; of a test image the routing pass and 0.6 of the experts.
        (job("bpg", rank=4, optimisation={"epochs": 2}), 300 + 2.3 * 2 * 300 + 10 * 1.6 + 30 * 2.2),
        # Measured under fusions that hear all experts.
        (job("bpg", rank=4, optimisation={"epochs": 2}, ways=["mean"]), 300 + 2.3 * 2 * 300 + 10 * 2 + 30 * 3),
        (job("bpg", "survey"), 300),
    ],
)
def test_passes_follow_from_images_epochs_and_method(counted: Job, passes: float) -> None:
    assert passes_of(counted, SIZES) == pytest.approx(passes)


def test_a_test_set_of_no_domain_is_passed_after_each() -> None:
    assert passes_of(job("ncm"), Sizes((100, 200), (30,))) == 300 + 2 * 30


def test_operations_of_a_forward_are_those_that_torch_counts() -> None:
    backbone = toy_backbone()
    size = backbone.preprocessing.size
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=UNCOUNTED) as counter:
        backbone(torch.zeros(1, 3, size, size))
    assert forward_operations(backbone.vit.config) == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_a_plan_is_for_the_size_of_the_images_and_for_what_is_trained() -> None:
    backbone = {"source": "bpg-vit-nano", "image_size": 32}
    half = Probe.of(job("bpg", rank=4, backbone=backbone), torch.device("cpu"))
    whole = Probe.of(job("bpg", rank=4, backbone={"source": "bpg-vit-nano"}), torch.device("cpu"))
    assert 3 * half.operations < whole.operations < 5 * half.operations  # 16 patches in the place of 64
    assert 2 * half.kept < whole.kept
    expert, network = (whole.planned([each], [])["GB to train"] for each in (job("bpg", rank=4), job("finetune")))
    weights = 4 * 2.7e6 / 1e9  # and as much again of gradients, momentum and a teacher
    assert network > expert + 3 * weights


def test_domainnet_has_its_published_size() -> None:
    sizes = published_sizes(DataSpec(root="domainnet", benchmark="domainnet"))
    assert (sum(sizes.train), sum(sizes.test)) == (409832, 176743)
    assert len(sizes.train) == len(sizes.test) == 6


def test_a_folder_called_after_a_benchmark_has_its_size_cut_as_asked_and_another_none() -> None:
    assert published_sizes(DataSpec(root="somewhere/pacs", per_class=40)).train == (7 * 40,) * 4
    assert published_sizes(DataSpec(root="somewhere/else")) == Sizes((), ())


def test_kept_bytes_grow_with_depth_and_leave_out_weights() -> None:
    kept = []
    for depth in (2, 3, 4):
        backbone = toy_backbone(depth=depth)
        expert = Expert(backbone, ["a", "b"], rank=4, settings=ExpertSettings(), generator=generator_of(0))
        kept.append(kept_bytes(expert, backbone))
    config = toy_backbone().vit.config
    tokens = (config.image_size // config.patch_size) ** 2 + 1
    assert kept[0] > 2 * 4 * tokens * config.width  # of each block at the least its input
    block = kept[1] - kept[0]
    assert kept[2] - kept[1] == pytest.approx(block, rel=0.01)
    assert kept[0] < 2 * block  # the last one works for the class token alone


def test_the_gpus_of_a_plan_are_those_of_the_docs() -> None:
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    for gpu in GPUS:
        assert f"| {gpu.name} | {gpu.teraflops:g} | {gpu.gigabytes:g} |" in page
