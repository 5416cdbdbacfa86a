"""Ridge regression from many random channels of a feature onto classes: two sums over images, and a closed form."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bpg.randomness import generator_of

RIDGES = tuple(10.0**power for power in range(-8, 9))
CHUNK = 1024  # images at a time: the channels of all would not fit


class RandomChannels:
    """h = ReLU(f W) with a W that is drawn once, and follows from the seed."""

    def __init__(self, width: int, channels: int, *, seed: int) -> None:
        self.map = torch.randn(width, channels, generator=generator_of(seed, "random map"))

    def __call__(self, features: Tensor) -> Tensor:
        return torch.relu(features @ self.map.to(features))

    def sums(self, features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """G = H^T H (M, M) and Q = H^T Y (M, C) of features (n, d), on the CPU."""
        channels = self.map.shape[1]
        gram, cross = torch.zeros(channels, channels), torch.zeros(channels, classes)
        for begin in range(0, len(features), CHUNK):
            h = self(features[begin : begin + CHUNK])
            gram += h.T @ h
            cross += h.T @ F.one_hot(labels[begin : begin + CHUNK], classes).float()
        return gram, cross

    def penalty(self, features: Tensor, labels: Tensor, classes: int, generator: torch.Generator) -> float:
        """The one of RIDGES with the least squared error on a fifth that is held out."""
        order = torch.randperm(len(features), generator=generator)
        few = max(1, len(order) // 5)
        held, rest = order[:few], order[few:]
        if not len(rest):
            return 1.0
        gram, cross = self.sums(features[rest], labels[rest], classes)
        h, y = self(features[held]).double(), F.one_hot(labels[held], classes).double()
        errors = {}
        for ridge in RIDGES:
            weights = solved(gram, cross, ridge)
            if weights is not None:
                errors[ridge] = float((h @ weights.double() - y).square().mean())
        return min(errors, key=errors.__getitem__)


def solved(gram: Tensor, cross: Tensor, ridge: float) -> Tensor | None:
    """W_o = (G + ridge)^-1 Q (M, C), or None where that cannot be inverted."""
    root, wrong = torch.linalg.cholesky_ex(gram.double() + ridge * torch.eye(len(gram), dtype=torch.float64))
    return None if int(wrong) else torch.cholesky_solve(cross.double(), root).float().contiguous()
