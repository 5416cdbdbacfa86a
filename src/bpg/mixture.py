"""How those who speak are fused: weighted logits of several experts to one answer.

A class that an expert never saw does not get its vote. Where logits are fused, the others' weights make up for it.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from bpg.errors import WrongUse
from bpg.routing import candidates, survivors

Fusion = Literal["mean", "max", "threshold+mean", "threshold+l1", "threshold+l2", "probabilities"]
FUSIONS: tuple[str, ...] = get_args(Fusion)


def mixture_weights(confidence: Tensor, fusion: Fusion = "threshold+l1", *, most: int | None = None) -> Tensor:
    """w'_t (B, T): what is left of the confidences. A weight of 0 means that the expert need not run.

    At `most` so many are left, the likeliest; of equally likely ones, the first by name.
    """
    check_fusion(fusion)
    stays = torch.ones_like(confidence, dtype=torch.bool)
    if fusion == "probabilities":
        stays = candidates(confidence)
    elif fusion not in ("mean", "max"):
        stays = survivors(confidence)
    if most is not None:
        order = confidence.argsort(dim=1, descending=True, stable=True)
        stays &= torch.zeros_like(stays).scatter(1, order[:, :most], True)
    if fusion in ("mean", "max"):
        return stays / stays.sum(dim=1, keepdim=True, dtype=confidence.dtype)
    kept = torch.where(stays, confidence, 0.0)
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
    if fusion == "probabilities":
        return _mix_probabilities(logits, weights, speaks)
    if fusion == "max":
        return torch.where(speaks, logits.double(), -torch.inf).amax(dim=1)
    votes = torch.where(speaks, weights[:, :, None], 0.0)
    heard = votes.sum(dim=1)  # (B, C)
    mixed = (votes * torch.where(speaks, logits.double(), 0.0)).sum(dim=1)
    # Where all who speak know the class, the quotient is 1 and the sum stays as it is.
    whole = weights.sum(dim=1, keepdim=True)
    return torch.where(heard > 0, mixed * (whole / heard), -torch.inf)


def _mix_probabilities(logits: Tensor, weights: Tensor, speaks: Tensor) -> Tensor:
    """log sum_t w'_t softmax(y_t), (B, C); an expert gives nothing to a class that it never saw.

    A probability has no scale of its own as logits have: no expert is heard for being loud. Nor for being alone in
    knowing a class: its weight is all it has to give.
    """
    own = torch.where(speaks, logits.double(), -torch.inf)
    log_probs = own - own.logsumexp(dim=2, keepdim=True).nan_to_num(neginf=0.0)  # (B, T, C)
    votes = torch.where(speaks, weights[:, :, None], 0.0)
    return (votes.log() + log_probs).logsumexp(dim=1)
