"""The parallel bottleneck adapter of the paper, and LoRA in its place.

Houlsby et al., "Parameter-Efficient Transfer Learning for NLP", 2019, arXiv 1902.00751.
Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021, arXiv 2106.09685.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Adapter(nn.Module):
    """Adapter_t(u) = ReLU(u W_down^T + b) W_up^T + b (eq:adapter_def), beside the MLP; it begins as nothing.

    The equation shows no biases; the paper's parameter counts hold with both.
    """

    def __init__(self, width: int, rank: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank)
        self.up = nn.Linear(rank, width)
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5), generator=generator)
        for nought in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(nought)

    def forward(self, u: Tensor) -> Tensor:
        lifted: Tensor = self.up(torch.relu(self.down(u)))
        return lifted


class LinearAdapter(nn.Module):
    """A linear map of rank r and its biases, without an activation between its two halves (PINA, SOYO)."""

    def __init__(self, width: int, rank: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank)
        self.up = nn.Linear(rank, width)
        for linear in (self.down, self.up):
            nn.init.xavier_uniform_(linear.weight, generator=generator)
            nn.init.zeros_(linear.bias)

    def forward(self, z: Tensor) -> Tensor:
        lifted: Tensor = self.up(self.down(z))
        return lifted


class LoRA(nn.Module):
    """A change of rank r of one linear map, with alpha = r, so that its scale is 1; it begins as nothing."""

    def __init__(self, inputs: int, outputs: int, rank: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(rank, inputs))
        self.up = nn.Parameter(torch.zeros(outputs, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5), generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.down.T @ self.up.T
