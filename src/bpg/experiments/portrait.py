"""A look into a model that routes: a few test images with who spoke for them, and a map of where the domains lie."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bpg.data.domain import TestSet
from bpg.data.images import ImageSet
from bpg.experiments.evaluation import own_way
from bpg.experiments.manifest import below
from bpg.methods.base import Learner, Routable, prepared
from bpg.randomness import generator_of

ANSWERS = 3  # images of a test set, of different classes
POINTS = 80  # images of a test set on the map
DIGITS = 4


def portrait(model: Learner, tests: Sequence[TestSet], root: Path) -> dict[str, Any] | None:
    """What the report shows of `model`, as JSON; None for one that has no experts to choose from."""
    if not isinstance(model, Routable):
        return None
    return {"answers": [answer for test in tests for answer in _answers(model, test, root)], "map": _map(model, tests)}


def _answers(model: Routable, test: TestSet, root: Path) -> list[dict[str, Any]]:
    images = _spread(test.images, test.name, ANSWERS)
    (batch,) = prepared(model.backbone, images, len(images))
    (answer,) = model.compare(batch, list(own_way(model).values()))
    assert answer.domain_weights is not None  # it has experts
    found = []
    for place, (path, label) in enumerate(zip(images.paths, images.labels, strict=True)):
        best = int(answer.log_probs[place].argmax())
        weights = answer.domain_weights[place].tolist()
        found.append(
            {
                "test": test.name,
                "path": below(path, root),
                "true": images.classes[label],
                "label": model.classes[best],
                "probability": round(float(answer.log_probs[place, best].exp()), DIGITS),
                "weights": {name: round(w, DIGITS) for name, w in zip(model.domains, weights, strict=True)},
            }
        )
    return found


def _map(model: Routable, tests: Sequence[TestSet]) -> dict[str, Any]:
    """Frozen features and prototypes, seen so that the domains' centres lie as far apart as they can."""
    features = {}
    for test in tests:
        images = _spread(test.images, test.name, POINTS)
        batches = [model.embed(batch).cpu().double() for batch in prepared(model.backbone, images, 32)]
        features[test.name] = torch.cat(batches)
    centres = {name: centre.cpu().double() for name, centre in zip(model.domains, model.prototypes, strict=True)}
    middle = torch.stack([centre.mean(dim=0) for centre in centres.values()])
    origin = middle.mean(dim=0)
    everything = torch.cat([*features.values(), *centres.values()])
    axes = _axes(middle - origin, everything - origin)
    return {
        "points": {name: _rounded((found - origin) @ axes) for name, found in features.items()},
        "prototypes": {name: _rounded((centre - origin) @ axes) for name, centre in centres.items()},
    }


def _axes(between: Tensor, everything: Tensor) -> Tensor:
    """Two directions (d, 2): in which the centres differ most, and where there are too few of them, the images."""
    _, _, directions = torch.linalg.svd(between, full_matrices=False)
    axes = directions[: min(2, len(between) - 1)]
    if len(axes) < 2:
        _, _, more = torch.linalg.svd(everything - everything @ axes.T @ axes, full_matrices=False)
        axes = torch.cat([axes, more])[:2]
    largest = axes.gather(1, axes.abs().argmax(dim=1, keepdim=True))
    turned: Tensor = axes * largest.sign()  # a direction and its opposite are one: always the same of the two
    return turned.T


def _spread(images: ImageSet, name: str, most: int) -> ImageSet:
    """At most `most` of the images, of as many classes as there are, always the same."""
    order = torch.randperm(len(images), generator=generator_of(0, name, "portrait")).tolist()
    taken: dict[int, int] = {}
    ranks = {}
    for index in order:  # the first of each class, then the second of each
        label = images.labels[index]
        ranks[index] = taken[label] = taken.get(label, -1) + 1
    return images.subset(sorted(order, key=lambda index: ranks[index])[:most])


def _rounded(points: Tensor) -> list[list[float]]:
    return [[round(x, DIGITS), round(y, DIGITS)] for x, y in points.tolist()]
