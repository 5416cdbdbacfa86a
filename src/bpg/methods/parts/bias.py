"""A network prefers the domain that it learned last: a scale and a shift of logits take that away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from bpg.data.domain import Domain
from bpg.methods.parts.heads import OF
from bpg.randomness import generator_of

Scales = Mapping[str, tuple[float, float]]  # alpha and beta, by domain


class Correction(nn.Module):
    """A scale and a shift of the logits of the newest rows."""

    new: Tensor

    def __init__(self, new: Tensor) -> None:
        super().__init__()
        self.register_buffer("new", new)  # (rows,)
        self.scale, self.shift = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(()))

    def forward(self, logits: Tensor) -> Tensor:
        return torch.where(self.new, self.scale * logits + self.shift, logits)


def corrected(logits: Tensor, rows: Sequence[str], scales: Scales) -> Tensor:
    """Logits (B, rows), each by the scale and the shift of its row's domain."""
    pairs = [scales.get(row.partition(OF)[2], (1.0, 0.0)) for row in rows]
    scale, shift = torch.tensor(pairs).to(logits).T
    found: Tensor = scale * logits + shift
    return found


def held_out(together: Domain, known: Sequence[str], *, share: float, seed: int) -> list[int]:
    """Some images of every row: of old ones a share, of each new one as many as of the old one that gives most."""
    own = together.train
    cells: dict[str, list[int]] = {}
    for at, label in enumerate(own.labels):
        cells.setdefault(own.classes[label], []).append(at)
    counts = {row: max(1, int(share * len(cell))) for row, cell in cells.items() if row in known}
    most = max(counts.values(), default=0)
    held = []
    for row, cell in sorted(cells.items()):
        order = torch.randperm(len(cell), generator=generator_of(seed, together.name, "held", row)).tolist()
        held += [cell[place] for place in order[: counts.get(row, min(most, len(cell) - 1))]]
    return held
