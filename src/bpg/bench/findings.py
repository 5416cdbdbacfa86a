"""What a part of the benchmark finds, as it is printed, kept as JSON and drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from bpg.bench.timing import Ratio, Taken
from bpg.report.blocks import Curves


@dataclass(frozen=True, slots=True)
class Setting:
    """What the parts are measured with."""

    device: torch.device
    rounds: int | None = None  # each part has its own number if not given
    large: str = "vit_base_patch16_224.augreg_in21k_ft_in1k"  # architecture; weights are random
    small: str = "deit_tiny_patch16_224"  # where many sizes are measured

    def times(self, usual: int = 7) -> int:
        """How often a work is measured, where nobody said."""
        return self.rounds or usual


@dataclass(frozen=True, slots=True)
class Row:
    """One work, over each of the table's others."""

    name: str
    over: dict[str, Ratio]
    wanted: dict[str, float]  # at most, by the same names
    seconds: float | None = None
    gigaflops: float | None = None
    rounds: int = 1


@dataclass(frozen=True, slots=True)
class Ratios:
    """Works beside each other."""

    title: str
    rows: list[Row]

    @property
    def baselines(self) -> list[str]:
        """In the order in which they were asked for: a baseline itself has no column of its own."""
        return max((list(row.over) for row in self.rows), key=len)


@dataclass(frozen=True, slots=True)
class Found:
    """What a part found, and on which machine."""

    tables: list[Ratios] = field(default_factory=list)
    figures: list[Curves] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)


def ratios(
    title: str,
    taken: Mapping[str, Taken],
    *,
    over: Mapping[str, str],
    wanted: Mapping[str, Mapping[str, float]] | None = None,
) -> Ratios:
    """A table of what was `taken` over the works named in `over`, each with the heading of its column.

    `wanted` says, by work and heading, which ratios should be at most how large.
    """
    rows = [
        Row(
            name,
            {heading: own.over(taken[base]) for base, heading in over.items() if base != name},
            dict((wanted or {}).get(name, {})),
            own.seconds,
            own.gigaflops or None,
            len(own.rounds),
        )
        for name, own in taken.items()
    ]
    return Ratios(title, rows)
