"""Runs chosen experts on chosen images."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

ExpertLogits = Callable[[Tensor, int], Tensor]  # images, expert -> logits (B, C_t)


def run_experts(
    images: Tensor, weights: Tensor, logits_of: ExpertLogits, columns: Sequence[Tensor], classes: int
) -> Tensor:
    """Logits (B, T, C) of every image by every expert with a weight for it; 0 elsewhere.

    `columns[t]` (C_t,) says where expert t's classes stand among the model's. An expert that nobody needs does not run.
    """
    found = torch.zeros(len(images), len(columns), classes, dtype=torch.float64, device=images.device)
    for expert, places in enumerate(columns):
        chosen = (weights[:, expert] > 0).nonzero()[:, 0]
        if len(chosen):
            logits = logits_of(images[chosen], expert).double()
            found[chosen[:, None], expert, places.to(images.device)] = logits
    return found
