"""What the model before was: its answers, to be kept by the one that learns on."""

from __future__ import annotations

import torch
from torch import Tensor


def distillation(logits: Tensor, wanted: Tensor, *, temperature: float) -> Tensor:
    """The cross-entropy (B,) of `logits` against the answers that the logits `wanted` give at a temperature.

    Without the factor of the temperature's square, as in PyCIL and PILOT.
    """
    return -(torch.softmax(wanted / temperature, dim=1) * torch.log_softmax(logits / temperature, dim=1)).sum(dim=1)
