"""What the model before was: its answers, to be kept by the one that learns on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bpg.methods.parts.single import Single, SingleLoss


def held_to(
    teacher: Any,
    learner: Single,
    network: Any,
    *,
    strength: float,
    temperature: float,
    among: Tensor | None = None,
) -> SingleLoss | None:
    """The task of `network`, which also is to answer as its `teacher`, the network before; None if that knew nothing.

    The teacher sees the same crops. The task is to tell a class from all others, or from those `among` these rows
    (ascending) alone.
    """
    known = teacher.head.classes
    if not known:
        return None
    places = network.head.places(known)

    def loss(network: Any, images: Tensor, rows: Tensor) -> Tensor:
        logits = learner.logits(network, images)
        with torch.no_grad():
            wanted = learner.logits(teacher, images)
        kept = distillation(logits[:, places.to(logits.device)], wanted, temperature=temperature)
        if among is not None:
            own = among.to(logits.device)
            logits, rows = logits[:, own], torch.searchsorted(own, rows)
        return learner.named(logits, rows) + strength * kept

    return loss


def distillation(logits: Tensor, wanted: Tensor, *, temperature: float) -> Tensor:
    """The cross-entropy (B,) of `logits` against the answers that the logits `wanted` give at a temperature.

    Without the factor of the temperature's square, as in PyCIL and PILOT.
    """
    return -(torch.softmax(wanted / temperature, dim=1) * torch.log_softmax(logits / temperature, dim=1)).sum(dim=1)
