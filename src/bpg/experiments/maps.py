"""What the frozen backbone and each expert make of the test images, on planes; and images between two domains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bpg.data.domain import TestSet
from bpg.data.images import ImageSet
from bpg.experiments.evaluation import STANDARD
from bpg.experiments.manifest import below
from bpg.experiments.tsne import tsne
from bpg.methods.base import Learner, Routable, prepared
from bpg.types import Prediction

POINTS = 240  # images of a test set on a map
BORDER, SEARCHED = 4, 40  # images between two domains; of each test set, those that are looked at
DIGITS = 4


def maps_of(model: Learner, tests: Sequence[TestSet], root: Path) -> dict[str, Any]:
    """Of each test set of a learned domain, the images as points: frozen features, and those of its own expert.

    {"tests": {name: {"labels": [...], "frozen": [[x, y], ...], "expert": [[x, y], ...]}}, "border": [...]}; the labels
    are of the set's classes in their order. `border` has the images that the prototypes can tell least, see `_border`.
    """
    if not isinstance(model, Routable) or not hasattr(model, "pool"):
        return {"tests": {}, "border": []}
    found = {}
    for test in tests:
        if test.domain not in model.domains:
            continue
        images = spread_out(test.images, POINTS)
        expert = model.pool[test.domain].expert
        frozen, own = [], []
        with torch.no_grad():
            for batch in prepared(model.backbone, images, 32):
                frozen.append(model.embed(batch))
                if hasattr(expert, "tuning"):
                    own.append(torch.nn.functional.normalize(model.backbone(batch, expert.tuning()), dim=-1))
        found[test.name] = {"classes": list(images.classes), "labels": list(images.labels), "frozen": _plane(frozen)}
        if own:
            found[test.name]["expert"] = _plane(own)
    return {"tests": found, "border": _border(model, [t for t in tests if t.domain in model.domains], root)}


def spread_out(images: ImageSet, most: int) -> ImageSet:
    """At `most` so many of the images, evenly over their order."""
    step = max(1, -(-len(images) // most))
    return images.subset(range(0, len(images), step))


def _plane(features: Sequence[Tensor]) -> list[list[float]]:
    points = tsne(torch.cat(list(features)))
    return [[round(x, DIGITS), round(y, DIGITS)] for x, y in points.tolist()]


def _border(model: Routable, tests: Sequence[TestSet], root: Path) -> list[dict[str, Any]]:
    """The test images of which the two likeliest domains are nearest to equally likely, one a test set, the closest
    first: with who would speak, and what hard selection and the mixture answer. They are chosen by that alone, whether
    the answers are right or wrong.
    """
    if len(model.domains) < 2:
        return []
    found = []
    for test in tests:
        images, start = spread_out(test.images, SEARCHED), 0
        closest: tuple[float, dict[str, Any]] | None = None
        for batch in prepared(model.backbone, images, 32):
            hard, soft = model.compare(batch, [STANDARD["hard"], STANDARD["soft"]])
            assert soft.confidences is not None  # it routes
            best = soft.confidences.topk(2, dim=1).values
            gaps = best[:, 0] - best[:, 1]
            at = int(gaps.argmin())
            if closest is None or float(gaps[at]) < closest[0]:
                index = start + at
                truth = images.classes[images.labels[index]]
                closest = (
                    float(gaps[at]),
                    {
                        "test": test.name,
                        "path": below(images.paths[index], root),
                        "true": truth,
                        "hard": _said(model, hard, at),
                        "soft": _said(model, soft, at),
                    },
                )
            start += len(batch)
        if closest is not None:
            found.append(closest)
    return [answer for _, answer in sorted(found, key=lambda pair: pair[0])[:BORDER]]


def _said(model: Routable, answer: Prediction, at: int) -> dict[str, Any]:
    assert answer.domain_weights is not None  # it routes
    weights = zip(model.domains, answer.domain_weights[at].tolist(), strict=True)
    return {
        "label": model.classes[int(answer.log_probs[at].argmax())],
        "weights": {name: round(weight, DIGITS) for name, weight in weights},
    }
