"""Where a domain lies: k-means centres of its frozen features, and how far its own images are from them.

Lloyd's algorithm from k-means++ seeds (Arthur and Vassilvitskii 2007), the best of several restarts, in float64 and in
file order, so that the same features give the same bytes. By torch alone, whose threads are as many as were asked for:
numpy's products would take every core, and small ones wait longer for each other than they compute.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bpg.errors import WrongUse

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
    raw = features.detach().cpu().double()
    middle = raw.mean(dim=0)
    x = raw - middle  # near zero, squared distances lose nothing to cancellation
    if _few_distinct(x, k):
        return torch.from_numpy(np.unique(raw.numpy(), axis=0))
    best: tuple[float, Tensor] | None = None
    for restart in range(restarts):
        found = _lloyd(x, _seeds(x, k, np.random.default_rng([seed, restart])))
        if best is None or found[0] < best[0]:
            best = found
    assert best is not None
    centres = best[1] + middle
    return centres[np.lexsort(centres.numpy().T[::-1])]  # an order of their own, not that of the draw


def _few_distinct(x: Tensor, k: int) -> bool:
    """Whether there are not more than k different rows. To sort all of them would take as long as the clustering."""
    for _ in range(k):
        x = x[(x != x[0]).any(dim=1)]
        if not len(x):
            return True
    return False


def _seeds(x: Tensor, k: int, generator: np.random.Generator) -> Tensor:
    """k-means++: next centres are drawn in proportion to the squared distance from those before; the best stays."""
    centres = [x[int(generator.integers(len(x)))]]
    distance = (x - centres[0]).square().sum(dim=1)
    sizes = x.square().sum(dim=1)
    trials = 2 + int(np.log(k))
    for _ in range(k - 1):
        points = torch.from_numpy(generator.random(trials)) * distance.sum()
        drawn = torch.searchsorted(distance.cumsum(dim=0), points, right=True)
        candidates = x[drawn.clamp(max=len(x) - 1)]
        left = torch.minimum(distance[:, None], _squared(x, candidates, sizes))  # (n, trials)
        best = int(left.sum(dim=0).argmin())
        centres.append(candidates[best])
        distance = left[:, best].contiguous()
    return torch.stack(centres)


def _lloyd(x: Tensor, centres: Tensor) -> tuple[float, Tensor]:
    """Inertia and centres when no image changes its centre any more."""
    nearest: Tensor | None = None
    sizes = x.square().sum(dim=1)
    for _ in range(STEPS):
        distance = _squared(x, centres, sizes)
        now = distance.argmin(dim=1)
        if nearest is not None and now.equal(nearest):
            break
        nearest = now
        belongs = nearest[:, None] == torch.arange(len(centres))  # (n, k)
        counts = belongs.sum(dim=0)
        centres = (belongs.T.double() @ x) / counts.clamp(min=1)[:, None]
        empty = (counts == 0).nonzero().flatten()
        if len(empty):
            # An empty centre moves to the image that is worst served, a second one to the next.
            worst = distance.amin(dim=1).argsort(descending=True, stable=True)
            centres[empty] = x[worst[: len(empty)]]
    return float(_squared(x, centres, sizes).amin(dim=1).sum()), centres


def _squared(x: Tensor, centres: Tensor, sizes: Tensor) -> Tensor:
    """Squared distances (n, k); `sizes` (n,) are the squared lengths of x."""
    return (sizes[:, None] - x @ (2 * centres).T + centres.square().sum(dim=1)).clamp(min=0)
