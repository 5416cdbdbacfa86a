"""Who may speak: from an image's distances to the domains to a weight for each of them. All in float64.

A router turns distances (B, T) into confidences (B, T) that sum to one; `survivors` then says which of them count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bpg.errors import WrongUse

Router = Callable[[Tensor], Tensor]  # distances (B, T) -> confidences (B, T)


def distances(features: Tensor, prototypes: Sequence[Tensor]) -> Tensor:
    """a_t = min_j |z - nu_tj| (eq:nearest_distance) of features (B, d) to each domain's prototypes (k_t, d): (B, T)."""
    if not prototypes:
        raise WrongUse("no domain is known", wanted="at least one", came="none", remedy="Learn a domain first.")
    z = features.double()
    every = torch.cat([nu.to(z) for nu in prototypes])
    # Each pair by itself, not through a matrix product: then no result depends on who else is in the batch.
    each = torch.cdist(z, every, compute_mode="donot_use_mm_for_euclid_dist")
    parts = torch.split(each, [len(nu) for nu in prototypes], dim=1)
    return torch.stack([part.amin(dim=1) for part in parts], dim=1)


def confidences(distance: Tensor, *, temperature: float = 1.0) -> Tensor:
    """w = softmax(-a) over the domains (eq:softmax_confidence), (B, T)."""
    return torch.softmax(-distance.double() / temperature, dim=1)


def hard(distance: Tensor) -> Tensor:
    """All weight on the nearest domain; of equally near ones, on the first by name."""
    return torch.nn.functional.one_hot(distance.argmin(dim=1), distance.shape[1]).double()


def oracle(domain: Tensor, count: int) -> Tensor:
    """All weight on the true domain (B,), of `count`. The only router that is told; for measurements."""
    return torch.nn.functional.one_hot(domain, count).double()


def survivors(confidence: Tensor) -> Tensor:
    """Who is at least as likely as chance: w_t >= 1 / T, (B, T) bool. The likeliest always stays."""
    least = 1 / confidence.shape[1]
    # T equal confidences are each 1 / T but for rounding, and all stay.
    return (confidence >= least * (1 - 1e-12)) | (confidence == confidence.amax(dim=1, keepdim=True))
