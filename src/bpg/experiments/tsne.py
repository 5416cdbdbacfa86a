"""Points of many dimensions on a plane: exact t-SNE.

L. van der Maaten, G. Hinton. Visualizing Data using t-SNE. Journal of Machine Learning Research 9, 2008.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

EXAGGERATION = 12.0  # of the affinities at first, so that clusters can pass each other
EARLY = 250  # steps with exaggeration and little momentum
SPREAD = 1e-4  # standard deviation of the start along its longer axis
LEAST = 1e-12  # a probability is not smaller, so that its logarithm exists
HALVINGS = 64  # of the interval in which a width is sought: down to the last bit
FEW = 4  # points that have no neighbourhoods to keep


def tsne(points: Tensor, *, perplexity: float = 30.0, steps: int = 1000) -> Tensor:
    """`points` (n, d) on a plane (n, 2) in float64, neighbours beside each other. The same points give the same plane.

    It starts from the first two principal components instead of chance (Kobak & Berens 2019), with the step size of
    Belkina et al. 2019. The perplexity is at most (n - 1) / 3: fewer points have fewer neighbours. Up to four points
    stay where the principal components put them. Time and memory grow with n squared: 300 points take half a second,
    1,500 a quarter of a minute.
    """
    features = points.detach().cpu().double()
    count = len(features)
    places = _start(features)
    if count <= FEW:
        return places
    joint = affinities(features, perplexity)
    pace = max(count / EXAGGERATION / 4, 50.0)
    moved, gains = torch.zeros_like(places), torch.ones_like(places)
    for step in range(steps):
        early = step < EARLY
        slope = _slope(EXAGGERATION * joint if early else joint, places)
        turned = slope * moved > 0  # the last move went uphill
        gains = torch.where(turned, 0.8 * gains, gains + 0.2).clamp(min=0.01)
        moved = (0.5 if early else 0.8) * moved - pace * gains * slope
        places = places + moved
    return places - places.mean(0)


def affinities(points: Tensor, perplexity: float = 30.0) -> Tensor:
    """p_ij (n, n), symmetric with sum 1: how likely i and j of `points` (n, d) are neighbours, each seeing `perplexity`
    others.
    """
    count = len(points)
    apart = _squares(points - points.mean(0))  # far from the origin, squares lose digits
    apart /= float(apart.mean()) or 1.0  # widths are sought on a scale that does not depend on the features' own
    apart.fill_diagonal_(math.inf)
    apart -= apart.amin(1, keepdim=True)  # the nearest has weight 1, however narrow the width
    wanted = math.log(max(min(perplexity, (count - 1) / 3), 1.0))
    low, high = points.new_full((count, 1), -30.0), points.new_full((count, 1), 30.0)  # ln of 1 / (2 sigma_i^2)
    near = torch.zeros_like(apart)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        near = torch.exp(-middle.exp() * apart)
        near /= near.sum(1, keepdim=True)
        entropy = -(near * near.clamp(min=LEAST).log()).sum(1, keepdim=True)
        wide = entropy > wanted
        low, high = torch.where(wide, middle, low), torch.where(wide, high, middle)
    return (near + near.T) / (2 * count)


def divergence(joint: Tensor, places: Tensor) -> float:
    """KL(P || Q) of the affinities `joint` and those of `places` on the plane: what t-SNE makes small."""
    heavy = _heavy(places)
    seen = (heavy / heavy.sum()).clamp(min=LEAST)
    return float((joint * (joint.clamp(min=LEAST) / seen).log()).sum())


def _slope(joint: Tensor, places: Tensor) -> Tensor:
    """Of the divergence, at each place: 4 sum_j (p_ij - q_ij) (y_i - y_j) / (1 + |y_i - y_j|^2)."""
    heavy = _heavy(places)
    pull = (joint - heavy / heavy.sum()) * heavy
    return 4 * (pull.sum(1, keepdim=True) * places - pull @ places)


def _heavy(places: Tensor) -> Tensor:
    """Student's t with one degree of freedom, not yet a distribution; nobody is a neighbour of itself."""
    return (1 / (1 + _squares(places))).fill_diagonal_(0.0)


def _squares(points: Tensor) -> Tensor:
    lengths = points.square().sum(1)
    return (lengths[:, None] + lengths[None, :] - 2 * points @ points.T).clamp(min=0)


def _start(features: Tensor) -> Tensor:
    """Small, in the plane of the two principal components; each points where its largest entry is positive."""
    places = features.new_zeros(len(features), 2)
    if len(features) > 1:
        centred = features - features.mean(0)
        _, _, axes = torch.linalg.svd(centred, full_matrices=False)
        axes = axes[:2]
        axes = axes * axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()
        places[:, : len(axes)] = centred @ axes.T
        places *= SPREAD / (float(places[:, 0].std(correction=0)) or 1.0)
    return places
