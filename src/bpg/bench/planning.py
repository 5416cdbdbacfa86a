"""What a grid would take on this machine and on GPUs: a few forward passes are timed, nothing else is run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bpg.backbones.backbone import Backbone
from bpg.bench.mixtures import random_backbone
from bpg.compute import wait_for_devices
from bpg.errors import UnknownName
from bpg.experiments.cost import GPUS, UTILISATION, forward_operations, kept_bytes, passes_of, sizes_of
from bpg.experiments.scale import Job
from bpg.experiments.workshop import backbone_of
from bpg.experts.expert import Expert, ExpertSettings
from bpg.methods.parts.whole import Whole
from bpg.randomness import generator_of
from bpg.registry import METHODS

IMAGES, SECONDS, LEAST_ROUNDS = 2, 1.0, 2  # that pass forward at a time, and for how long


def million_passes(jobs: Sequence[Job]) -> float | None:
    """Of all jobs; None where nobody knows how many images there are."""
    sizes = [sizes_of(job.spec()[0]) for job in jobs]
    known = all(size.train for size in sizes)
    return sum(passes_of(job, size) for job, size in zip(jobs, sizes, strict=True)) / 1e6 if known else None


@dataclass(frozen=True)
class Probe:
    """What a plan measures of a backbone."""

    seconds: float  # of a plain forward of an image, here, with all cores
    operations: float  # of it
    kept: int  # bytes of an image until the backward pass of an expert
    kept_whole: int  # likewise, where the whole network is trained
    weights: int  # bytes

    @classmethod
    def of(cls, job: Job, device: torch.device) -> Probe:
        """Of the backbone that `job` runs on."""
        spec, _ = job.spec()
        source, size = spec.backbone.source, spec.backbone.image_size
        try:
            backbone = random_backbone(source, device, size)  # a known shape needs no weights, which may not be here
        except UnknownName:
            backbone = backbone_of(spec, device)
        classes = [f"class {n}" for n in range(100)]
        expert = Expert(backbone, classes, rank=64, settings=ExpertSettings(), generator=generator_of(0))
        weights = 4 * sum(p.numel() for p in backbone.parameters())
        operations = forward_operations(backbone.vit.config)
        spent, kept = seconds_an_image(backbone), kept_bytes(expert, backbone)
        backbone.requires_grad_(True)
        return cls(spent, operations, kept, kept_bytes(expert, backbone), weights)

    def _memory(self, job: Job) -> tuple[int, int]:
        """Images a step, and the bytes that a step takes: of a whole network gradients, momentum and a teacher, too."""
        _, cell = job.spec()
        o = getattr(METHODS[cell.method].Settings(**cell.values), "optimisation", None)
        if o is None:
            return 0, self.weights
        whole = issubclass(METHODS[cell.method], Whole)
        return o.batch_size, o.batch_size * (self.kept_whole if whole else self.kept) + self.weights * (
            4 if whole else 1
        )

    def planned(self, jobs: Sequence[Job], open_jobs: Sequence[Job]) -> dict[str, Any]:
        """A row of the plan: what the jobs of one stream would take."""
        million = million_passes(open_jobs)
        hours = None if million is None else million * 1e6 / 3600
        needs = [self._memory(job) for job in jobs if job.kind == "run"]
        most = max((size for _, size in needs), default=self.weights) / 1e9
        speeds = {gpu.name: gpu.teraflops * 1e12 * UTILISATION for gpu in GPUS}
        return {
            "jobs": len(jobs),
            "done": len(jobs) - len(open_jobs),
            "million passes": million,
            "hours here": None if hours is None else hours * self.seconds,
            "gpu_hours": {
                name: None if hours is None else hours * self.operations / speed for name, speed in speeds.items()
            },
            "MB an image": self.kept / 1e6,
            "batch": max((batch for batch, _ in needs), default=0),
            "GB to train": most,
            "fits": [gpu.name for gpu in GPUS if most <= gpu.gigabytes],
            "GB on disk": len(open_jobs) * 2 * self.weights / 1e9,
        }


@torch.no_grad()
def seconds_an_image(backbone: Backbone) -> float:
    """Of a plain forward, the least of a few rounds.

    On a CPU, one thread's processor time over the cores in use: the clock tells nothing while others compute, too.
    """
    size, device = backbone.preprocessing.size, backbone.device
    images = torch.zeros(IMAGES, 3, size, size, device=device)
    cores, on_cpu = torch.get_num_threads(), device.type == "cpu"
    clock = time.process_time if on_cpu else time.perf_counter
    rounds: list[float] = []
    try:
        torch.set_num_threads(1 if on_cpu else cores)
        while len(rounds) < LEAST_ROUNDS or sum(rounds) < SECONDS:
            began = clock()
            backbone(images)
            wait_for_devices()
            rounds.append(clock() - began)
    finally:
        torch.set_num_threads(cores)
    return min(rounds) / IMAGES / (cores if on_cpu else 1)
