"""What each way to answer faster costs: accuracy, agreement with the exact answer, and images a second."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from bpg.backbones.faster import Arithmetic
from bpg.compute import wait_for_devices
from bpg.data.domain import TestSet
from bpg.methods.base import Routable, prepared
from bpg.methods.parts.ways import OWN, Way
from bpg.progress import Progress, counted
from bpg.routing import stops

MOST_IMAGES = 512  # that are looked at


@dataclass(frozen=True, slots=True)
class Profile:
    """How a choice did."""

    choice: str
    images: int  # looked at
    accuracy: float  # percent
    agreement: float  # percent of the images that get the same answer as from the first choice
    domain_found: float | None  # percent of the images of known domains
    experts: float  # per image
    images_per_second: float
    time: float  # as a share of the first choice's

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def choices(model: Routable) -> dict[str, Way]:
    """The exact answer, then what trades some of it for speed."""
    exact = replace(model.way, route_depth=0, max_experts=None, arithmetic="exact")
    device = model.backbone.device.type
    found = {"exact": exact}
    own = model.way.router == OWN  # which is not routed early or capped
    depths = [] if own else [probe.depth for probe in stops(model.backbone.depth)[1:]]
    found |= {f"route_depth {depth}": replace(exact, route_depth=depth) for depth in depths}
    found |= {f"max_experts {most}": replace(exact, max_experts=most) for most in (() if own else (1, 2))}
    if device in ("cpu", "cuda"):
        rough: Arithmetic = "8-bit" if device == "cpu" else "half"
        found[rough] = replace(exact, arithmetic=rough)
        found |= {f"route_depth {d}, {rough}": replace(exact, route_depth=d, arithmetic=rough) for d in depths}
    if device == "cpu":
        found["graph"] = replace(exact, arithmetic="graph")
    return found


def profile(
    model: Routable,
    tests: Sequence[TestSet],
    choices: Mapping[str, Way],
    *,
    batch_size: int = 32,
    progress: Callable[[Progress], None] | None = None,
) -> list[Profile]:
    """Ask every choice about the same images, batch by batch in turns, so that a slow moment slows all of them."""
    share = max(1, -(-sum(len(test.images) for test in tests) // MOST_IMAGES))
    few = [replace(test, images=test.images.subset(range(0, len(test.images), share))) for test in tests]
    total, done = sum(len(test.images) for test in few), 0
    tell = counted(progress, "profile") if progress is not None else None
    answers: list[list[Tensor]] = [[] for _ in choices]
    taken: list[list[float]] = [[] for _ in choices]
    experts, right_domains, known = [0] * len(choices), [0] * len(choices), 0
    truth: list[int] = []
    for test in few:
        names = [test.images.classes[label] for label in test.images.labels]
        truth += [model.classes.index(name) if name in model.classes else -1 for name in names]
        place = model.domains.index(test.domain) if test.domain in model.domains else None
        known += len(test.images) if place is not None else 0
        for batch in prepared(model.backbone, test.images, batch_size):
            for at, way in enumerate(choices.values()):
                if not answers[at]:
                    model.compare(batch, [way])  # the first call allocates
                wait_for_devices()
                began = time.perf_counter()
                (answer,) = model.compare(batch, [way])
                wait_for_devices()
                taken[at].append((time.perf_counter() - began) / len(batch))
                answers[at].append(answer.log_probs.argmax(dim=1).cpu())
                experts[at] += int(answer.experts.sum())
                if place is not None and answer.confidences is not None:
                    right_domains[at] += int((answer.confidences.argmax(dim=1) == place).sum())
            done += len(batch)
            if tell is not None:
                tell(done, total)
    labels, said = torch.tensor(truth), [torch.cat(own) for own in answers]
    found = []
    for at, name in enumerate(choices):
        ratio = median(mine / its for mine, its in zip(taken[at], taken[0], strict=True))
        found.append(
            Profile(
                name,
                total,
                100 * float((said[at] == labels).double().mean()),
                100 * float((said[at] == said[0]).double().mean()),
                100 * right_domains[at] / known if known else None,
                experts[at] / total,
                1 / median(taken[at]),
                ratio,
            )
        )
    return found


def recommended(found: Sequence[Profile]) -> Profile:
    """The fastest of those that are not less accurate than the first beyond what chance explains."""
    exact = found[0]

    def is_as_good(other: Profile) -> bool:
        changed = (100 - other.agreement) / 100 * other.images  # only these can tell the two apart
        return exact.accuracy - other.accuracy <= 100 * math.sqrt(max(changed, 1)) / other.images

    return min((other for other in found if is_as_good(other)), key=lambda other: other.time)
