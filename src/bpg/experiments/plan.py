"""What learning would cost, before anything is trained: s_t, r_t, parameters and time of each domain."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch

from bpg.data.domain import Domain
from bpg.experts.expert import parameter_count
from bpg.methods.bpg import BPG
from bpg.progress import Progress
from bpg.randomness import generator_of
from bpg.training import cross_entropy

TRIAL_IMAGES, TRIALS = 8, 3


@dataclass(frozen=True, slots=True)
class Planned:
    """What one domain would get and cost."""

    domain: str
    classes: int
    images: int
    separability: float | None  # s_t
    rank: int  # r_t
    parameters: int
    megabytes: float  # of float32
    seconds: float  # of training on this machine, as it is now


def plan(model: BPG, domains: Sequence[Domain]) -> list[Planned]:
    """Survey each domain, and time a few training steps with an expert of its size."""
    found: list[Planned] = []
    began = time.monotonic()
    for domain in domains:
        found.append(_planned(model, domain))
        if model.progress is not None:
            seen = sum(planned.images for planned in found)
            model.progress(Progress(len(found), len(domains), seen, None, time.monotonic() - began, "plan"))
    return found


def _planned(model: BPG, domain: Domain) -> Planned:
    rank, measured = model.capacity(domain, model.survey(domain))
    classes = len(domain.classes)
    parameters = parameter_count(model.backbone, classes, rank=rank, settings=model.settings.expert)
    seen = len(domain.train) * model.settings.optimisation.epochs
    return Planned(
        domain=domain.name,
        classes=classes,
        images=len(domain.train),
        separability=measured["separability"],
        rank=rank,
        parameters=parameters,
        megabytes=parameters * 4 / 1e6,
        seconds=seen * _seconds_an_image(model, domain.classes, rank),
    )


def _seconds_an_image(model: BPG, classes: Sequence[str], rank: int) -> float:
    """Of a training step, the median of a few; the first, which allocates, does not count."""
    device, size = model.backbone.device, model.backbone.preprocessing.size
    expert = model.expert(classes, rank, generator_of(0))
    images = torch.zeros(TRIAL_IMAGES, 3, size, size, device=device)
    labels = torch.zeros(TRIAL_IMAGES, dtype=torch.long, device=device)
    taken = []
    for _ in range(TRIALS + 1):
        began = time.monotonic()
        cross_entropy(expert(images, model.backbone), labels).sum().backward()  # type: ignore[no-untyped-call]
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append((time.monotonic() - began) / TRIAL_IMAGES)
    return median(taken[1:])
