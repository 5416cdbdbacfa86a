"""How those who speak are fused: weighted logits of several experts to one answer.

A class that an expert never saw does not get its vote: it is left out there, and the others' weights make up for it.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from bpg.errors import WrongUse
from bpg.routing import survivors

Fusion = Literal["mean", "max", "threshold+mean", "threshold+l1", "threshold+l2"]
FUSIONS: tuple[str, ...] = get_args(Fusion)


def mixture_weights(confidence: Tensor, fusion: Fusion = "threshold+l1") -> Tensor:
    """w'_t (B, T): what is left of the confidences. A weight of 0 means that the expert need not run."""
    check_fusion(fusion)
    if fusion in ("mean", "max"):
        return torch.full_like(confidence, 1 / confidence.shape[1])
    kept = torch.where(survivors(confidence), confidence, 0.0)
    if fusion == "threshold+mean":
        kept = (kept > 0).to(confidence.dtype)
    norm: Tensor = torch.linalg.vector_norm(kept, ord=2 if fusion == "threshold+l2" else 1, dim=1, keepdim=True)
    return kept / norm


def check_fusion(fusion: str) -> None:
    """Raise WrongUse for a fusion that does not exist."""
    if fusion not in FUSIONS:
        raise WrongUse("no such fusion", wanted=", ".join(FUSIONS), came=repr(fusion), remedy="Choose one of them.")


def mix(logits: Tensor, weights: Tensor, known: Tensor, fusion: Fusion = "threshold+l1") -> Tensor:
    """y = sum_t w'_t y_t, (B, C), from the experts' `logits` (B, T, C) and `weights` (B, T).

    `known` (T, C) says which classes each expert has seen. A class that nobody who speaks knows gets minus infinity.
    """
    speaks = (weights > 0)[:, :, None] & known  # (B, T, C)
    if fusion == "max":
        return torch.where(speaks, logits.double(), -torch.inf).amax(dim=1)
    votes = torch.where(speaks, weights[:, :, None], 0.0)
    heard = votes.sum(dim=1)  # (B, C)
    mixed = (votes * torch.where(speaks, logits.double(), 0.0)).sum(dim=1)
    # Where all who speak know the class, the quotient is 1 and the sum stays as it is.
    whole = weights.sum(dim=1, keepdim=True)
    return torch.where(heard > 0, mixed * (whole / heard), -torch.inf)
