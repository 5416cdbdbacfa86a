"""A head that all domains share, and that new classes may be added to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bpg.experts.head import LinearHead
from bpg.randomness import generator_of


class GrowingHead(nn.Module):
    """One linear map over all classes seen, in the order of their names."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.classes: tuple[str, ...] = ()
        self.weight = nn.Parameter(torch.empty(0, width))
        self.bias = nn.Parameter(torch.empty(0))

    def grow(self, names: Sequence[str], *, seed: int) -> None:
        """Take in classes that are new; the weights of the others stay as they are."""
        classes = tuple(sorted({*self.classes, *names}))
        if classes == self.classes:
            return
        rows = dict(zip(self.classes, zip(self.weight.detach(), self.bias.detach(), strict=True), strict=True))
        for name in set(classes) - set(self.classes):
            fresh = LinearHead(self.width, 1, generator=generator_of(seed, name, "head")).linear.to(self.weight)
            rows[name] = (fresh.weight.detach()[0], fresh.bias.detach()[0])
        self.weight = nn.Parameter(torch.stack([rows[name][0] for name in classes]))
        self.bias = nn.Parameter(torch.stack([rows[name][1] for name in classes]))
        self.classes = classes

    def places(self, names: Sequence[str]) -> Tensor:
        """Where these classes stand, (len(names),)."""
        return torch.tensor([self.classes.index(name) for name in names])

    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.linear(features, self.weight, self.bias)
