"""Colours of figures, on paper and on a dark screen.

Some are those of Okabe and Ito (2008), the rest was sought so that the two closest of the twelve are further apart than
the two closest of theirs, for normal sight and for eyes that lack red or green cones. A test measures it.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Theme:
    """What a figure is drawn with."""

    paper: str
    ink: str  # words, frames
    quiet: str  # axes, second thoughts
    faint: str  # grids, tracks of bars
    right: str
    wrong: str
    colours: Sequence[str]  # the first six stand out as thin lines, all twelve as dots


LIGHT = Theme(
    paper="#ffffff",
    ink="#1f2937",
    quiet="#6b7280",
    faint="#e5e7eb",
    right="#00724f",
    wrong="#b34700",
    colours=(
        *("#0072b2", "#d55e00", "#009e73", "#5a2db4", "#965a78", "#960000"),
        *("#e69f00", "#56b4e9", "#004b69", "#9678ff", "#4b0f2d", "#1e0087"),
    ),
)
DARK = Theme(
    paper="#0d1117",
    ink="#e5e7eb",
    quiet="#9ca3af",
    faint="#30363d",
    right="#3ddba8",
    wrong="#ff8a5c",
    colours=(
        *("#5ab4f0", "#f0693c", "#2db487", "#d2d2ff", "#e1a500", "#9678a5"),
        *("#f0e13c", "#4b78ff", "#a53cb4", "#3cffb4", "#007869", "#a55a00"),
    ),
)


def colour_of(place: int, count: int, theme: Theme) -> str:
    """Of class `place` of `count`: its own of the twelve, or a hue where there are more."""
    if count <= len(theme.colours):
        return theme.colours[place]
    light = (0.42, 0.58) if theme is LIGHT else (0.55, 0.72)
    red, green, blue = colorsys.hls_to_rgb(place / count, light[place % 2], 0.7)  # neighbours differ in lightness, too
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
