"""Points of many dimensions on a plane: exact t-SNE.

L. van der Maaten, G. Hinton. Visualizing Data using t-SNE. Journal of Machine Learning Research 9, 2008.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

EXAGGERATION = 12.0  # of the affinities at first, so that clusters can pass each other
EARLY = 250  # steps with exaggeration and little momentum
SPREAD = 1e-4  # standard deviation of the start along its longer axis
LEAST = 1e-12  # a probability is not smaller, so that its logarithm exists
HALVINGS = 64  # of the interval in which a width is sought: down to the last bit
FEW = 4  # points that have no neighbourhoods to keep


def tsne(points: ArrayLike, *, perplexity: float = 30.0, steps: int = 1000) -> Floats:
    """`points` (n, d) on a plane (n, 2), neighbours beside each other. The same points give the same plane.

    It starts from the first two principal components instead of chance (Kobak & Berens 2019), with the step size of
    Belkina et al. 2019. The perplexity is at most (n - 1) / 3: fewer points have fewer neighbours. Up to four points
    stay where the principal components put them. Time and memory grow with n squared: 300 points take half a second,
    1,500 a quarter of a minute.
    """
    features = np.asarray(points, dtype=np.float64)
    count = len(features)
    places: Floats = _start(features)
    if count <= FEW:
        return places
    joint = affinities(features, perplexity)
    pace = max(count / EXAGGERATION / 4, 50.0)
    moved, gains = np.zeros_like(places), np.ones_like(places)
    for step in range(steps):
        early = step < EARLY
        slope = _slope(EXAGGERATION * joint if early else joint, places)
        turned = slope * moved > 0  # the last move went uphill
        gains = np.maximum(np.where(turned, 0.8 * gains, gains + 0.2), 0.01)
        moved = (0.5 if early else 0.8) * moved - pace * gains * slope
        places = places + moved
    places -= places.mean(0)
    return places


def affinities(points: ArrayLike, perplexity: float = 30.0) -> Floats:
    """p_ij (n, n), symmetric with sum 1: how likely i and j are neighbours, each seeing `perplexity` others."""
    features = np.asarray(points, dtype=np.float64)
    count = len(features)
    apart = _squares(features - features.mean(0))  # far from the origin, squares lose digits
    apart /= apart.mean() or 1.0  # widths are sought on a scale that does not depend on the features' own
    np.fill_diagonal(apart, np.inf)
    apart -= apart.min(1, keepdims=True)  # the nearest has weight 1, however narrow the width
    wanted = np.log(max(min(perplexity, (count - 1) / 3), 1.0))
    low, high = np.full((count, 1), -30.0), np.full((count, 1), 30.0)  # ln of 1 / (2 sigma_i^2)
    near = np.zeros_like(apart)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        near = np.exp(-np.exp(middle) * apart)
        near /= near.sum(1, keepdims=True)
        entropy = -(near * np.log(np.maximum(near, LEAST))).sum(1, keepdims=True)
        wide = entropy > wanted
        low, high = np.where(wide, middle, low), np.where(wide, high, middle)
    return (near + near.T) / (2 * count)


def divergence(joint: Floats, places: Floats) -> float:
    """KL(P || Q) of the affinities `joint` and those of `places` on the plane: what t-SNE makes small."""
    heavy = _heavy(places)
    seen = np.maximum(heavy / heavy.sum(), LEAST)
    return float((joint * np.log(np.maximum(joint, LEAST) / seen)).sum())


def _slope(joint: Floats, places: Floats) -> Floats:
    """Of the divergence, at each place: 4 sum_j (p_ij - q_ij) (y_i - y_j) / (1 + |y_i - y_j|^2)."""
    heavy = _heavy(places)
    pull = (joint - heavy / heavy.sum()) * heavy
    slope: Floats = 4 * (pull.sum(1, keepdims=True) * places - pull @ places)
    return slope


def _heavy(places: Floats) -> Floats:
    """Student's t with one degree of freedom, not yet a distribution; nobody is a neighbour of itself."""
    heavy: Floats = 1 / (1 + _squares(places))
    np.fill_diagonal(heavy, 0.0)
    return heavy


def _squares(points: Floats) -> Floats:
    lengths = (points**2).sum(1)
    squares: Floats = np.maximum(lengths[:, None] + lengths[None, :] - 2 * points @ points.T, 0.0)
    return squares


def _start(features: Floats) -> Floats:
    """Small, in the plane of the two principal components; each points where its largest entry is positive."""
    places = np.zeros((len(features), 2))
    if len(features) > 1:
        centred = features - features.mean(0)
        _, _, axes = np.linalg.svd(centred, full_matrices=False)
        axes = axes[:2]
        largest = np.abs(axes).argmax(1)
        axes = axes * np.sign(axes[np.arange(len(axes)), largest])[:, None]
        places[:, : len(axes)] = centred @ axes.T
        places *= SPREAD / (places[:, 0].std() or 1.0)
    return places
