"""The parallel bottleneck adapter of the paper, LoRA in its place, and the linear adapter that others have.

Houlsby et al., "Parameter-Efficient Transfer Learning for NLP", 2019, arXiv 1902.00751.
Chen et al., "AdaptFormer: Adapting Vision Transformers for Scalable Visual Recognition", 2022, arXiv 2205.13535.
Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021, arXiv 2106.09685.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bpg.backbones.tuning import Part, Tuning


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


class Adapters(nn.Module):
    """An adapter beside every MLP that reads the stream before the norm, as AdaptFormer has them, times a scale."""

    def __init__(self, width: int, depth: int, rank: int, *, scale: float, generator: torch.Generator) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Adapter(width, rank, generator=generator) for _ in range(depth))
        self.scale = scale

    def tuning(self) -> Tuning:
        """What they do to the frozen ViT."""

        def scaled(part: nn.Module) -> Part:
            return lambda h: self.scale * part(h)

        return Tuning(branch={block: {"residual": scaled(part)} for block, part in enumerate(self.parts)})


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
