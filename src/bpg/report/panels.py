"""Each kind of panel, drawn into its part of a figure; `plots.py` lays them out."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch, Rectangle
from matplotlib.path import Path as Outline
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from numpy.typing import NDArray
from PIL import Image

from bpg.report.blocks import Bars, Cases, Cloud, Clouds, Line, Lines, Panel, Point, Strips
from bpg.report.palette import Theme, colour_of

if TYPE_CHECKING:
    from bpg.report.blocks import Pixels

SMALL, LARGE = 8.0, 9.0  # points, of words and of titles
LETTER = 0.068  # inches, the mean width of a small letter
MARKERS = "os^DvPX*"
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (5, 1.5, 1, 1.5)), (0, (1, 1.2)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))
HATCHES = ("", "////", "....", "xxxx", "----", "\\\\\\\\")
MANY = 12  # points of a line whose errors are a band, not bars
SIDE = 160  # pixels of an image
SHAPED = 6  # classes of a shape: colours that are near to one another then differ in it
RIGHT, WRONG = "✓", "✗"
SOLID, DASHED = "-", (0, (3.5, 2))


@dataclass(frozen=True, slots=True)
class Note:
    """A word beside a point, to be put where there is room once everything else has its place."""

    axes: Axes
    text: str
    point: tuple[float, float]
    colour: str


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a panel leaves to be placed with the others: entries of the legend, and notes."""

    legend: Sequence[tuple[str, Artist]] = ()
    notes: Sequence[Note] = ()


def height(panel: Panel, width: float) -> float:
    """Inches that a panel of this width likes to have, without its title and legend."""
    if isinstance(panel, Lines):
        return min(max(0.62 * width, 1.8), 2.6)
    if isinstance(panel, Clouds):
        titles = max(_wrapped(name, _side(panel, width)).count("\n") + 1 for name in panel.columns)
        return len(panel.clouds) * (_side(panel, width) + 0.04) + 0.14 * titles + 0.04
    if isinstance(panel, Strips):
        across, down = _tiles(panel)
        return (width / len(panel.strips) - 0.08) * down / across + 0.18
    if isinstance(panel, Cases):
        ways = len(panel.cases[0].votes)
        return 0.4 + _picture(panel, width) + ways * (0.3 + 0.15 * len(panel.domains))
    return 0.45 + len(panel.groups) * (0.17 * len(panel.bars) + 0.1)


def paint(panel: Panel, part: SubFigure, theme: Theme, width: float) -> Drawn:
    """Draw `panel` into `part`, which is `width` inches wide."""
    if isinstance(panel, Lines):
        return _lines(panel, part, theme)
    if isinstance(panel, Clouds):
        return _clouds(panel, part, theme, width)
    if isinstance(panel, Strips):
        return _strips(panel, part, theme)
    if isinstance(panel, Cases):
        return _cases(panel, part, theme, width)
    return _bars(panel, part, theme)


def _lines(panel: Lines, part: SubFigure, theme: Theme) -> Drawn:
    axes = part.subplots()
    _calm(axes, theme)
    axes.grid(axis="y", color=theme.faint, linewidth=0.7)
    legend: list[tuple[str, Artist]] = []
    notes: list[Note] = []
    for place, given in enumerate(panel.lines):
        line = _beside(_relative(given, panel), panel, place)
        style: dict[str, Any] = {
            "color": theme.colours[place % len(theme.colours)],
            "linestyle": DASHES[place % len(DASHES)],
            "marker": MARKERS[place % len(MARKERS)],
            "markeredgecolor": theme.paper,
            "markeredgewidth": 0.6,
        }
        x, y, spread = (np.array([getattr(p, what) for p in line.points], dtype=float) for what in ("x", "y", "spread"))
        (drawn,) = axes.plot(x, y, zorder=3, **style)
        legend.append((line.name, drawn))
        if len(x) > MANY:
            axes.fill_between(x, y - spread, y + spread, color=style["color"], alpha=0.2, linewidth=0)
        elif spread.any():
            axes.errorbar(x, y, spread, fmt="none", ecolor=style["color"], elinewidth=1, capsize=2.5, zorder=2)
        if panel.best and line.points:
            top = _best(line, panel).y
            ties = [p.x for p in line.points if p.y == top]
            size = 11 + 4 * place  # rings at one place stand around each other
            axes.plot(
                ties, [top] * len(ties), "o", markersize=size, markerfacecolor="none", color=style["color"], zorder=4
            )
        notes += [Note(axes, plain(p.note), (p.x, p.y), style["color"]) for p in line.points if p.note]
    if panel.best:
        ring = Line2D([], [], linestyle="", marker="o", markersize=9, markerfacecolor="none", color=theme.ink)
        legend.append(("best", ring))
    if panel.level is not None:
        name, value = panel.level
        dotted = axes.axhline(value, color=theme.quiet, linestyle=(0, (1, 2)), linewidth=1.4)
        legend.append((name, dotted))
    if panel.log2 and any(line.points for line in panel.lines):
        _octaves(axes, [p.x for line in panel.lines for p in line.points])
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.margins(x=0.06, y=0.14 if notes or panel.best else 0.08)
    axes.set_xlabel(panel.across)
    axes.set_ylabel(panel.up)
    return Drawn(legend, notes)


def _relative(line: Line, panel: Lines) -> Line:
    if not panel.relative or not line.points:
        return line
    top = _best(line, panel).y
    return replace(line, points=[replace(point, y=point.y - top) for point in line.points])


def _beside(line: Line, panel: Lines, place: int) -> Line:
    """The line a little to the right of those before it, on an axis of powers of two."""
    aside = 2.0 ** (0.14 * place) if panel.beside and panel.log2 else 1.0
    return replace(line, points=[replace(point, x=point.x * aside) for point in line.points])


def _best(line: Line, panel: Lines) -> Point:
    choose = min if panel.best == "lowest" else max
    return choose(line.points, key=lambda point: point.y)


def _octaves(axes: Axes, values: Sequence[float]) -> None:
    """Powers of two below a logarithmic axis; every second one has a number if there are many."""
    axes.set_xscale("log", base=2)
    low, high = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
    every = 1 if high - low <= 6 else 2
    axes.xaxis.set_major_locator(FixedLocator([2.0**power for power in range(low, high + 1, every)]))
    axes.xaxis.set_minor_locator(FixedLocator([2.0**power for power in range(low, high + 1)]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _clouds(panel: Clouds, part: SubFigure, theme: Theme, width: float) -> Drawn:
    grid = part.subplots(len(panel.clouds), len(panel.columns), squeeze=False)
    side = _side(panel, width)
    count = max(
        [len(panel.names), *(1 + max(c.classes, default=0) for row in panel.clouds for c in row if c is not None)]
    )
    frames = _frames(panel) if panel.framed else {}
    for r, row in enumerate(panel.clouds):
        for c, cloud in enumerate(row):
            axes = grid[r, c]
            axes.set(xticks=[], yticks=[])
            axes.set_box_aspect(1)
            frame = frames.get((r, c))
            for edge in axes.spines.values():
                edge.set(color=theme.ink if frame else theme.faint, linewidth=1.6 if frame else 0.8)
                edge.set_linestyle(frame or SOLID)
            if cloud is not None:
                _cloud(axes, cloud, theme, count, side)
            if r == 0:
                axes.set_title(_wrapped(panel.columns[c], side), pad=3)
        grid[r, 0].set_ylabel(panel.rows[r], labelpad=4)
    if not panel.names or count > len(theme.colours):
        return Drawn()
    dots = [
        Line2D([], [], linestyle="", marker="os"[place // SHAPED % 2], markersize=4.5, markeredgewidth=0, color=colour)
        for place, colour in enumerate(theme.colours[: len(panel.names)])
    ]
    return Drawn([(plain(name), dot) for name, dot in zip(panel.names, dots, strict=True)])


def _cloud(axes: Axes, cloud: Cloud, theme: Theme, count: int, side: float) -> None:
    """Dots, as large as their number allows; the value has a strip of its own at the bottom."""
    points = np.asarray(cloud.points, dtype=float).reshape(-1, 2)
    classes = np.asarray(cloud.classes, dtype=int)
    size = min(max(30 * side / math.sqrt(max(len(points), 1)), 1.2), 4.5)  # points across
    middle = (points.max(0) + points.min(0)) / 2 if len(points) else np.zeros(2)
    reach = 1.07 * float(np.abs(points - middle).max(initial=0.0)) or 1.0
    low = reach * (1 + 2 * 0.19 / side if cloud.value is not None else 1)
    extra = (low - reach) / 2  # the plane keeps equal scales
    axes.set_xlim(middle[0] - reach - extra, middle[0] + reach + extra)
    axes.set_ylim(middle[1] - low, middle[1] + reach)
    for place in np.unique(classes):
        colour = colour_of(int(place), count, theme)
        axes.add_patch(_dots(points[classes == place], colour, size, 1e-3 * reach, square=place // SHAPED % 2 == 1))
    if cloud.value is not None:
        axes.text(0.96, 0.03, f"{cloud.value:.1f}", transform=axes.transAxes, ha="right", va="bottom", color=theme.ink)


def _dots(points: NDArray[np.float64], colour: str, size: float, short: float, *, square: bool) -> PathPatch:
    """Dots as one path of short strokes, a tenth of the bytes of a marker each; the ends of a stroke give its shape."""
    ends = np.repeat(points, 2, axis=0)
    ends[1::2, 0] += short
    path = Outline(ends, np.tile([Outline.MOVETO, Outline.LINETO], len(points)))
    ends_in: Any = "projecting" if square else "round"
    return PathPatch(path, fill=False, edgecolor=colour, linewidth=size, capstyle=ends_in, alpha=0.85, snap=False)


def _frames(panel: Clouds) -> dict[tuple[int, int], Any]:
    """Solid around the highest value of each column, dashed around the second highest; equals share."""
    frames: dict[tuple[int, int], Any] = {}
    for c in range(len(panel.columns)):
        column = {r: cloud.value for r, row in enumerate(panel.clouds) if (cloud := row[c]) and cloud.value is not None}
        best = sorted(set(column.values()), reverse=True)[:2]
        if len(column) > 1:
            frames |= {(r, c): (SOLID, DASHED)[best.index(value)] for r, value in column.items() if value in best}
    return frames


def _side(panel: Clouds, width: float) -> float:
    return (width - (0.25 if any(panel.rows) else 0.05)) / len(panel.columns) - 0.06


def _strips(panel: Strips, part: SubFigure, theme: Theme) -> Drawn:
    across, down = _tiles(panel)
    grid = part.subplots(1, len(panel.strips), squeeze=False)[0]
    for axes, (name, images) in zip(grid, panel.strips.items(), strict=True):
        for place, image in enumerate(images):
            left, top = place % across, down - place // across
            _show(axes, image, (left, left + 0.94, top - 0.94, top), theme)
        axes.set(xlim=(-0.02, across - 0.04), ylim=(0.04, down + 0.02), aspect="equal", anchor="N")
        axes.axis("off")
        axes.set_title(plain(name), pad=3)
    return Drawn()


def _tiles(panel: Strips) -> tuple[int, int]:
    """Images across and down, nearly a square."""
    most = max(len(images) for images in panel.strips.values())
    across = math.ceil(math.sqrt(most))
    return across, math.ceil(most / across)


def _show(axes: Axes, image: Pixels, extent: tuple[float, float, float, float], theme: Theme) -> None:
    """The middle square of an image in a thin frame, what is transparent on white."""
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    if picture.mode in ("RGBA", "LA", "P"):
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture.convert("RGBA"))
    picture = picture.convert("RGB")
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    square = picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS, (left, top, left + side, top + side))
    axes.imshow(np.asarray(square), extent=extent, interpolation="lanczos")
    x0, x1, y0, y1 = extent
    axes.add_patch(
        Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor=theme.faint, linewidth=0.6, clip_on=False)
    )


def _cases(panel: Cases, part: SubFigure, theme: Theme, width: float) -> Drawn:
    ways = list(panel.cases[0].votes)
    bars = 0.16 * len(panel.domains)
    ratios = [_picture(panel, width), *(bars for _ in ways)]
    grid = part.subplots(1 + len(ways), len(panel.cases), squeeze=False, height_ratios=ratios)
    room = _column(panel, width)
    for c, case in enumerate(panel.cases):
        _show(grid[0, c], case.image, (0, 1, 0, 1), theme)
        grid[0, c].axis("off")
        grid[0, c].set_title(_wrapped(plain(case.true), room), pad=3)
        for axes, way in zip(grid[1:, c], ways, strict=True):
            vote = case.votes[way]
            right = vote.label == case.true
            _weights(
                axes, [vote.weights.get(name, 0.0) for name in panel.domains], panel.domains.index(case.origin), theme
            )
            sign = RIGHT if right else WRONG
            axes.set_title(
                _wrapped(f"{sign} {plain(vote.label)}", room), pad=2, color=theme.right if right else theme.wrong
            )
            if c == 0:
                axes.set_yticks(range(len(panel.domains)), [plain(name) for name in panel.domains])
                axes.set_ylabel(way, fontsize=LARGE)
    own, other = (Patch(facecolor=colour) for colour in (theme.colours[0], theme.quiet))
    return Drawn([("the image's own domain (bold)", own), ("another", other)])


def _weights(axes: Axes, weights: Sequence[float], own: int, theme: Theme) -> None:
    axes.barh(range(len(weights)), 1.0, height=0.62, color=theme.faint)
    colours = [theme.colours[0] if place == own else theme.quiet for place in range(len(weights))]
    axes.barh(range(len(weights)), weights, height=0.62, color=colours)
    for place, weight in enumerate(weights):
        if weight >= 0.005 or place == own:
            bold = "bold" if place == own else "normal"
            axes.text(1.05, place, f"{weight:.2f}", va="center", ha="left", weight=bold)
    axes.set(xlim=(0, 1.5), ylim=(len(weights) - 0.4, -0.6), xticks=[], yticks=[])
    axes.tick_params(length=0)
    for edge in axes.spines.values():
        edge.set_visible(False)


def _column(panel: Cases, width: float) -> float:
    return (width - LETTER * max(map(len, panel.domains)) - 0.3) / len(panel.cases)


def _picture(panel: Cases, width: float) -> float:
    return min(max(_column(panel, width) - 0.1, 0.4), 1.0)


def _bars(panel: Bars, part: SubFigure, theme: Theme) -> Drawn:
    axes = part.subplots()
    _calm(axes, theme)
    axes.grid(axis="x", color=theme.faint, linewidth=0.7)
    axes.spines["left"].set_visible(False)
    thick = min(0.84 / len(panel.bars), 0.6)
    first = (1 - len(panel.bars)) / 2 * thick  # of a group, from its middle
    legend: list[tuple[str, Artist]] = []
    for place, (name, values) in enumerate(panel.bars.items()):
        colour, hatch = theme.colours[place % len(theme.colours)], HATCHES[place % len(HATCHES)]
        style: dict[str, Any] = {"facecolor": colour, "hatch": hatch, "edgecolor": theme.paper, "linewidth": 0}
        marker = MARKERS[place % len(MARKERS)]
        legend.append(
            (name, Line2D([], [], linestyle="", marker=marker, color=colour) if panel.log else Patch(**style))
        )
        for group, pair in enumerate(values):
            if pair is None:
                continue
            at = group + first + place * thick
            value, spread = pair
            if panel.log:  # a logarithmic axis has no zero that a bar could begin at
                axes.plot(value, at, marker, color=colour, zorder=3)
            else:
                axes.barh(at, value, height=0.92 * thick, zorder=2, **style)
            if spread:
                ink = colour if panel.log else theme.ink
                axes.errorbar(value, at, xerr=spread, fmt="none", ecolor=ink, elinewidth=1, capsize=2, zorder=3)
            axes.annotate(f"{value:.3g}", (value + spread, at), (7, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(panel.groups)), [plain(group) for group in panel.groups])
    axes.set_ylim(len(panel.groups) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    if panel.log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.margins(x=0.14)
    axes.set_xlabel(panel.across)
    return Drawn(legend if len(panel.bars) > 1 else ())


def _calm(axes: Axes, theme: Theme) -> None:
    axes.set_axisbelow(True)
    for edge in ("top", "right"):
        axes.spines[edge].set_visible(False)
    for edge in ("left", "bottom"):
        axes.spines[edge].set(color=theme.quiet, linewidth=0.8)


def plain(text: str) -> str:
    """Names out of the data, as they are: a dollar sign in them does not begin a formula."""
    return text.replace("$", r"\$")


def _wrapped(text: str, inches: float) -> str:
    letters = max(int(inches / LETTER), 6)
    return "\n".join(
        textwrap.fill(line, letters, break_long_words=False, break_on_hyphens=False) for line in text.split("\n")
    )
