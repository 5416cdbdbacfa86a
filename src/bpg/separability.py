"""How well a domain's classes lie apart in the frozen features: s_t, from which its capacity follows."""

from __future__ import annotations

import warnings
from typing import Literal

import torch

from bpg.backbones.survey import Scatter
from bpg.errors import WrongUse

Estimator = Literal["plain", "corrected"]


def separability(scatter: Scatter, *, estimator: Estimator = "plain", epsilon: float = 1e-6) -> float:
    """s_t = bcs / (wcs + epsilon) of one domain (eq:separability). Higher means easier.

    Classes weigh the same whatever their size; a class with no image in this domain does not count. The plain estimator
    is the paper's. With n images a class it is biased: wcs shrinks by (n - 1) / n, bcs grows by wcs / n. The corrected
    one takes both out. s_0 and s_t must come from the same estimator.
    """
    between, within = between_within(scatter, estimator=estimator)
    return between / (within + epsilon)


def between_within(scatter: Scatter, *, estimator: Estimator = "plain") -> tuple[float, float]:
    """R^bcs_t and R^wcs_t by the chosen estimator."""
    classes = int(scatter.present.sum())
    if classes < 2:
        raise WrongUse(
            "separability needs classes to separate",
            wanted="two classes with an image",
            came=f"{classes}",
            remedy="Set the capacity of this domain by hand (`rank`), or give it another class.",
        )
    if estimator == "plain":
        return scatter.between, scatter.within
    counts = scatter.counts[scatter.present].double()
    several = counts > 1
    if not bool(several.any()):
        raise WrongUse(
            "the corrected estimator needs a class with two images",
            wanted="at least two images of some class",
            came="one image a class",
            remedy="Use the plain estimator, or more images.",
        )
    spreads = scatter.spreads[scatter.present]
    # A lone image says nothing of its class's spread: the others speak for it.
    variances = torch.where(several, spreads / (counts - 1).clamp(min=1), 0.0)
    variances = torch.where(several, variances, variances[several].mean())
    within = float(variances.mean())
    # E|mean_c - mean|^2 over C classes holds (C - 1) / C of the class means' own variances.
    noise = float((variances / counts).mean()) * (classes - 1) / classes
    between = scatter.between - noise
    if between <= 0:
        warnings.warn(
            "the class means lie no further apart than chance would put them: separability is taken as 0", stacklevel=2
        )
    return max(between, 0.0), within
