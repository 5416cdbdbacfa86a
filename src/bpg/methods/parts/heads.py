"""Heads that all domains share, and that new classes may be added to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bpg.experts.head import LinearHead
from bpg.randomness import generator_of


class GrowingHead(nn.Module):
    """One linear map over all classes seen, in the order of their names."""

    bias: nn.Parameter | None

    def __init__(self, width: int, *, zero: bool = False) -> None:
        super().__init__()
        self.width, self.zero = width, zero  # whether new rows begin as nothing
        self.classes: tuple[str, ...] = ()
        self.weight = nn.Parameter(torch.empty(0, width))
        self.bias = nn.Parameter(torch.empty(0))

    def grow(self, names: Sequence[str], *, seed: int) -> None:
        """Take in classes that are new; the weights of the others stay as they are."""
        classes = tuple(sorted({*self.classes, *names}))
        if classes == self.classes:
            return
        known = {name: place for place, name in enumerate(self.classes)}
        fresh = {}
        for name in set(classes) - set(known):
            linear = LinearHead(self.width, 1, generator=generator_of(seed, name, "head")).linear.to(self.weight)
            fresh[name] = {own: 0 * row[0] if self.zero else row[0] for own, row in linear.state_dict().items()}
        for own in ("weight", "bias"):
            old = getattr(self, own)
            if old is not None:
                rows = [old.detach()[known[name]] if name in known else fresh[name][own] for name in classes]
                setattr(self, own, nn.Parameter(torch.stack(rows)))
        self.classes = classes

    def places(self, names: Sequence[str]) -> Tensor:
        """Where these classes stand, (len(names),)."""
        return torch.tensor([self.classes.index(name) for name in names], dtype=torch.long)

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight, self.bias)


class CosineHead(GrowingHead):
    """The cosine of feature and row, times a scale that is learned."""

    def __init__(self, width: int, *, scale: float) -> None:
        super().__init__(width)
        self.bias = None
        self.scale = nn.Parameter(torch.tensor(float(scale)))

    def cosines(self, features: Tensor, weight: Tensor | None = None) -> Tensor:
        """(B, rows), by other rows where a `weight` is given."""
        rows = self.weight if weight is None else weight
        return F.normalize(features, dim=-1) @ F.normalize(rows, dim=-1).T

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * self.cosines(features)
