"""Where a domain lies: k-means centres of its frozen features, and how far its own images are from them.

Lloyd's algorithm from k-means++ seeds (Arthur and Vassilvitskii 2007), the best of several restarts, in float64 and in
file order, so that the same features give the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bpg.errors import WrongUse

Floats = NDArray[np.float64]
RESTARTS, STEPS = 10, 300
FOLDS, FOLD_RESTARTS, MOST_HELD_OUT = 5, 2, 4096
LEVELS = 21  # quantiles: 0, 0.05, ... 1


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a domain lies, and how far from there its own images are.

    The distances are those of training images to prototypes that were fitted without them: to their own ones, images
    are nearer than any new image will be.
    """

    prototypes: Tensor  # (k, d) float64
    reach: Tensor  # (21,) float64: quantiles of the distances, from the least to the greatest

    @property
    def varies(self) -> bool:
        """Whether own images are at different distances. Those of one or two images, or of copies of one, are not:
        nothing follows from them for other images.
        """
        return bool(self.reach[0] < self.reach[-1])

    @property
    def variance(self) -> float:
        """Of the distances, taken as spread evenly between one quantile and the next."""
        low, high = self.reach[:-1], self.reach[1:]
        mean = (low + high).mean() / 2
        return float((low**2 + low * high + high**2).mean() / 3 - mean**2)


def located(features: Tensor, *, k: int = 5, seed: int = 0) -> Place:
    """Where the domain of these features (n, d) lies."""
    return Place(prototypes(features, k=k, seed=seed), _reach(features, k, seed))


def _reach(features: Tensor, k: int, seed: int) -> Tensor:
    """Quantiles of the held-out distances; zeros for a single image, of which nothing can be held out."""
    x = features[:: -(-len(features) // MOST_HELD_OUT)].cpu().double()
    if len(x) < 2:
        return torch.zeros(LEVELS, dtype=torch.float64)
    fold = torch.arange(len(x)) % FOLDS  # files stand class by class: every fold has its share of each
    found = []
    for out in range(min(FOLDS, len(x))):
        centres = prototypes(x[fold != out], k=k, seed=seed, restarts=FOLD_RESTARTS)
        found.append(torch.cdist(x[fold == out], centres).amin(dim=1))
    return torch.quantile(torch.cat(found), torch.linspace(0, 1, LEVELS, dtype=torch.float64))


def prototypes(features: Tensor, *, k: int = 5, seed: int = 0, restarts: int = RESTARTS) -> Tensor:
    """The prototypes nu_{t,j} (k, d) of a domain's features (n, d), float64; fewer where fewer are distinct."""
    if k < 1 or features.ndim != 2 or not len(features):
        raise WrongUse(
            "no prototypes of this",
            wanted="features (n, d) of at least one image, and k of 1 or more",
            came=f"shape {tuple(features.shape)}, k {k}",
            remedy="Check the set of images.",
        )
    raw = features.cpu().double().numpy()
    middle = raw.mean(axis=0)
    x = raw - middle  # near zero, squared distances lose nothing to cancellation
    if _few_distinct(x, k):
        return torch.from_numpy(np.unique(raw, axis=0))
    best: tuple[float, Floats] | None = None
    for restart in range(restarts):
        found = _lloyd(x, _seeds(x, k, np.random.default_rng([seed, restart])))
        if best is None or found[0] < best[0]:
            best = found
    assert best is not None
    centres = best[1] + middle
    return torch.from_numpy(centres[np.lexsort(centres.T[::-1])])  # an order of their own, not that of the draw


def _few_distinct(x: Floats, k: int) -> bool:
    """Whether there are not more than k different rows. To sort all of them would take as long as the clustering."""
    for _ in range(k):
        x = x[(x != x[0]).any(axis=1)]
        if not len(x):
            return True
    return False


def _seeds(x: Floats, k: int, generator: np.random.Generator) -> Floats:
    """k-means++: next centres are drawn in proportion to the squared distance from those before; the best stays."""
    centres = [x[generator.integers(len(x))]]
    distance = ((x - centres[0]) ** 2).sum(axis=1)
    sizes = (x**2).sum(axis=1)
    trials = 2 + int(np.log(k))
    for _ in range(k - 1):
        drawn = np.searchsorted(np.cumsum(distance), generator.random(trials) * distance.sum(), side="right")
        candidates = x[np.minimum(drawn, len(x) - 1)]
        left = np.minimum(distance[:, None], _squared(x, candidates, sizes))  # (n, trials)
        best = int(left.sum(axis=0).argmin())
        centres.append(candidates[best])
        distance = left[:, best]
    return np.stack(centres)


def _lloyd(x: Floats, centres: Floats) -> tuple[float, Floats]:
    """Inertia and centres when no image changes its centre any more."""
    nearest: NDArray[np.int64] | None = None
    sizes = (x**2).sum(axis=1)
    for _ in range(STEPS):
        distance = _squared(x, centres, sizes)
        now = distance.argmin(axis=1)
        if nearest is not None and np.array_equal(now, nearest):
            break
        nearest = now
        belongs = nearest[:, None] == np.arange(len(centres))  # (n, k)
        counts = belongs.sum(axis=0)
        centres = (belongs.T.astype(np.float64) @ x) / np.maximum(counts, 1)[:, None]
        if not counts.all():
            # An empty centre moves to the image that is worst served, a second one to the next.
            worst = distance.min(axis=1).argsort()[::-1]
            empty = np.flatnonzero(counts == 0)
            centres[empty] = x[worst[: len(empty)]]
    return float(_squared(x, centres, sizes).min(axis=1).sum()), centres


def _squared(x: Floats, centres: Floats, sizes: Floats) -> Floats:
    """Squared distances (n, k); `sizes` (n,) are the squared lengths of x."""
    squared: Floats = np.maximum(sizes[:, None] - x @ (2 * centres).T + (centres**2).sum(axis=1), 0)
    return squared
