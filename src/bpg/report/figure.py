"""Curves as SVG: inside a page, or as a picture of its own."""

from __future__ import annotations

import math
from html import escape

from bpg.report.blocks import Curves

WIDTH, HEIGHT, LEFT, BOTTOM, MARGIN = 640, 220, 44, 24, 8  # of a chart, in its own units
FEW = 20  # points of a line that are shown each by itself
LINE = 20  # of the legend
MOST_MARKS = 7
COLOURS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#64748b", "#0891b2", "#ca8a04", "#dc2626", "#4d7c0f")
STYLE = (
    "<style>svg{color:#1f2937;font:12px system-ui,sans-serif}text{fill:currentColor}"
    "@media(prefers-color-scheme:dark){svg{color:#e5e7eb}}</style>"
)


def colour(place: int) -> str:
    """Of the line, the domain or the method at this place of its list."""
    return COLOURS[place % len(COLOURS)]


def figure(curves: Curves) -> str:
    """A picture by itself: title, chart, legend."""
    high = HEIGHT + 48 + LINE * len(curves.lines)
    legend = "".join(
        f'<rect x="{LEFT}" y="{HEIGHT + 16 + LINE * place}" width="12" height="12" fill="{colour(place)}"/>'
        f'<text x="{LEFT + 20}" y="{HEIGHT + 27 + LINE * place}">{escape(name)}</text>'
        for place, name in enumerate(curves.lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 -24 {WIDTH} {high}" width="{WIDTH}" height="{high}">'
        f'{STYLE}<text x="{MARGIN}" y="-8">{escape(f"{curves.title} ({curves.what} by {curves.over})")}</text>'
        f"{chart(curves)}{legend}</svg>\n"
    )


def chart(curves: Curves) -> str:
    """Axes and lines, for a viewBox of WIDTH x HEIGHT."""
    points = [point for line in curves.lines.values() for point in line]
    across = _Axis([x for x, _ in points], LEFT, WIDTH - MARGIN, log="x" in curves.log)
    up = _Axis([y for _, y in points], HEIGHT - BOTTOM, MARGIN, log="y" in curves.log, top=curves.top)
    drawn = []
    for place, line in enumerate(curves.lines.values()):
        at = [(f"{across.place(x):.1f}", f"{up.place(y):.1f}") for x, y in line]
        way = " ".join(",".join(pair) for pair in at)
        drawn.append(f'<polyline fill="none" stroke="{colour(place)}" stroke-width="1.8" points="{way}"/>')
        if len(line) <= FEW:
            drawn += [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour(place)}"/>' for x, y in at]
    floor, right = HEIGHT - BOTTOM, WIDTH - MARGIN
    frame = [f'<path d="M{LEFT} {MARGIN}V{floor}H{right}" fill="none" stroke="currentColor" stroke-opacity=".4"/>']
    for value in up.marks():
        y = min(floor, up.place(value) + 4) if value else floor
        frame.append(f'<text x="{LEFT - 6}" y="{y:.1f}" text-anchor="end">{value:.3g}</text>')
    *inner, last = across.marks()[0 if across.log else 1 :]
    frame += [
        f'<text x="{across.place(x):.1f}" y="{HEIGHT - 6}" text-anchor="middle">{_short(x)}</text>' for x in inner
    ]
    unit = "" if inner else f" {escape(curves.over)}"  # there is room where nothing else stands
    frame.append(f'<text x="{right}" y="{HEIGHT - 6}" text-anchor="end">{_short(last)}{unit}</text>')
    return "".join(frame + drawn)


class _Axis:
    """From values to places between two ends; linear from 0, or logarithmic between the least and the greatest."""

    def __init__(self, values: list[float], begin: float, end: float, *, log: bool, top: float | None = None) -> None:
        self.log, self._begin, self._end = log, begin, end
        self.high = top or max(values, default=1.0) or 1.0
        self.low = min((value for value in values if value > 0), default=self.high) if log else 0.0
        self._own = sorted({max(value, self.low) for value in values}) or [self.low]

    def place(self, value: float) -> float:
        share = value / self.high
        if self.log:
            share = math.log(max(value, self.low) / self.low) / (math.log(self.high / self.low) or 1.0)
        return self._begin + (self._end - self._begin) * share

    def marks(self) -> list[float]:
        """Where a number stands: both ends; on a logarithmic axis every value if they are few, else 1, 2, 5, 10, ..."""
        if not self.log:
            return [0.0, self.high]
        if len(self._own) <= MOST_MARKS:
            return self._own
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        found = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
        found = [mark for mark in found if self.low <= mark <= self.high]
        return found[:: 1 + len(found) // (MOST_MARKS + 1)] or [self.low, self.high]


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 2000 else f"{value:.0f}"
