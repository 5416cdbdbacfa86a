"""What learners hand around."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Prediction:
    """An answer for each image, and who gave it."""

    log_probs: Tensor  # (B, C), over the model's classes
    domain_weights: Tensor | None  # (B, T), over the model's domains; None where a method has no experts
    experts: Tensor  # (B,) how many experts spoke
    confidences: Tensor | None = None  # (B, T), what the router thought before fusion made weights of it
    unknown: Tensor | None = None  # (B,) from 0 to 1: how much the image looks like none of the domains; nan: not known

    @classmethod
    def of_one(cls, log_probs: Tensor) -> Prediction:
        """Of a model that has no experts to choose from."""
        return cls(log_probs, None, torch.ones(len(log_probs), dtype=torch.long))
