"""Ridge regression from features or many random channels of them onto classes: two sums over images, a closed form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from bpg.compute import as_float64
from bpg.randomness import generator_of

RIDGES = tuple(10.0**power for power in range(-8, 9))
CHUNK = 1024  # images at a time: the channels of all would not fit


class Ridge:
    """A regression onto classes from h = ReLU(f W), with a W that is drawn once and follows from the seed; without
    channels, from h = f.

    What is kept are two sums over all images so far, G = H^T H and Q = H^T Y: their order does not matter.
    """

    def __init__(self, width: int, channels: int, *, seed: int) -> None:
        self.seed, self.channels = seed, channels or width  # M
        self.map = torch.randn(width, channels, generator=generator_of(seed, "random map")) if channels else None
        self.classes: tuple[str, ...] = ()
        self.gram, self.cross = torch.empty(0, 0), torch.empty(0, 0)
        self.weights = torch.empty(0, 0)  # W_o (M, C)

    def lifted(self, features: Tensor) -> Tensor:
        return torch.relu(features @ self.map.to(features)) if self.map is not None else features

    def scores(self, features: Tensor) -> Tensor:
        """(B, C), about 1 for the right class and 0 for others."""
        h = as_float64(self.lifted(features))
        return h @ self.weights.to(h)

    def grown(self, features: Tensor, labels: Sequence[str], name: str) -> Ridge:
        """With the images of a domain `name` added: features (n, d) and the class of each."""
        made = copy(self)
        made.classes = tuple(sorted({*self.classes, *labels}))
        targets = torch.tensor([made.classes.index(label) for label in labels], device=features.device)
        order = torch.randperm(len(features), generator=generator_of(self.seed, name, "ridge")).to(features.device)
        few = max(1, len(order) // 5)
        held, rest = order[:few], order[few:]
        most, others = (self._sums(features[own], targets[own], len(made.classes)) for own in (rest, held))
        ridge = self._penalty(*most, features[held], targets[held]) if len(rest) else 1.0
        made.gram, made.cross = most[0] + others[0], most[1] + others[1]
        if self.classes:
            made.gram += self.gram
            made.cross[:, [made.classes.index(own) for own in self.classes]] += self.cross
        weights = solved(made.gram, made.cross, ridge)
        while weights is None:  # what one domain could do with may be too little for the sum
            ridge *= 10
            weights = solved(made.gram, made.cross, ridge)
        made.weights = weights
        return made

    def _chunks(self, features: Tensor, targets: Tensor, classes: int) -> Iterator[tuple[Tensor, Tensor]]:
        """H (n, M) and Y (n, C) of few images at a time."""
        for begin in range(0, len(features), CHUNK):
            h = self.lifted(features[begin : begin + CHUNK])
            yield h, F.one_hot(targets[begin : begin + CHUNK], classes).to(h)

    def _sums(self, features: Tensor, targets: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """G (M, M) and Q (M, C) of features (n, d), kept on the CPU."""
        device = features.device
        gram, cross = (torch.zeros(self.channels, n, device=device) for n in (self.channels, classes))
        for h, y in self._chunks(features, targets, classes):
            gram += h.T @ h
            cross += h.T @ y
        return gram.cpu(), cross.cpu()

    def _penalty(self, gram: Tensor, cross: Tensor, features: Tensor, targets: Tensor) -> float:
        """The one of RIDGES with the least squared error on images that were held out."""
        found = {ridge: solved(gram, cross, ridge) for ridge in RIDGES}
        weights = {ridge: own for ridge, own in found.items() if own is not None}
        errors = dict.fromkeys(weights, 0.0)
        for h, y in self._chunks(features, targets, cross.shape[1]):
            h, y = h.cpu().double(), y.cpu().double()
            for ridge, own in weights.items():
                errors[ridge] += float((h @ own.double() - y).square().sum())
        return min(errors, key=errors.__getitem__) if errors else 1.0

    def tensors(self) -> dict[str, Tensor]:
        """As the store keeps it; the map follows from the seed."""
        return {"gram": self.gram, "cross": self.cross, "weights": self.weights} if self.classes else {}

    def restore(self, tensors: Mapping[str, Tensor], classes: Sequence[str]) -> None:
        """Take up what `tensors` tells of `classes`."""
        self.classes = tuple(classes)
        if not self.classes and not tensors:
            return
        m, c = self.channels, len(self.classes)
        wanted = {"gram": (m, m), "cross": (m, c), "weights": (m, c)}
        if {name: tuple(own.shape) for name, own in tensors.items()} != wanted:
            raise ValueError("sums of other channels or classes")
        if not all(bool(own.isfinite().all()) for own in tensors.values()):
            raise ValueError("sums that are no numbers")
        self.gram, self.cross, self.weights = (tensors[name] for name in wanted)


def solved(gram: Tensor, cross: Tensor, ridge: float) -> Tensor | None:
    """W_o = (G + ridge)^-1 Q (M, C), or None where that cannot be inverted."""
    root, wrong = torch.linalg.cholesky_ex(gram.double() + ridge * torch.eye(len(gram), dtype=torch.float64))
    return None if int(wrong) else torch.cholesky_solve(cross.double(), root).float().contiguous()
