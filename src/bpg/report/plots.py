"""Figures as SVG and PNG, for paper and for dark screens; the same figure gives the same bytes."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from bpg.report.blocks import Figure
from bpg.report.palette import DARK, LIGHT, Theme
from bpg.report.panels import LARGE, LETTER, SMALL, Drawn, Note, height, paint

DPI = 200
GAP = 0.16  # inches between panels
HEAD, FOOT = 0.22, 0.2  # inches of a title, of a line of the legend
SIDES = ((0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1), (1, 0), (-1, 0))  # of a point, the best first
GRAIN = np.array([(x, y) for x in np.linspace(-0.5, 0.5, 12) for y in np.linspace(-0.5, 0.5, 5)])  # a box as dots


def draw(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write NAME.svg, NAME.png, NAME-dark.svg and NAME-dark.png into `folder`, and say where they are."""
    files = []
    for theme, end in ((LIGHT, ""), (DARK, "-dark")):
        with _style(theme):
            canvas = _compose(figure, theme)
            for kind, content in (("svg", _svg(canvas)), ("png", _png(canvas))):
                files.append(folder / f"{name}{end}.{kind}")
                files[-1].write_bytes(content)
    return files


def svg(figure: Figure, *, dark: bool = False) -> bytes:
    """`figure` as SVG on a transparent ground, for a page that has its own."""
    theme = DARK if dark else LIGHT
    with _style(theme):
        return _svg(_compose(figure, theme), transparent=True)


def _svg(canvas: Canvas, *, transparent: bool = False) -> bytes:
    out = io.BytesIO()
    canvas.savefig(out, format="svg", dpi=DPI, transparent=transparent, metadata={"Date": None, "Creator": None})
    return re.sub(rb' d="[^"]*"', _rounded, out.getvalue())


def _rounded(path: re.Match[bytes]) -> bytes:
    """Paths to a hundredth of a point: nobody sees more, and most of the bytes are digits."""
    return re.sub(rb"\d+\.\d{3,}", lambda number: b"%g" % round(float(number[0]), 2), path[0])


def _png(canvas: Canvas) -> bytes:
    out = io.BytesIO()
    canvas.savefig(out, format="png", dpi=DPI, metadata={"Software": None})
    return out.getvalue()


@contextmanager
def _style(theme: Theme) -> Iterator[None]:
    settings: Any = {
        "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
        "font.size": SMALL,
        "axes.titlesize": SMALL,
        "axes.labelsize": SMALL,
        "xtick.labelsize": SMALL,
        "ytick.labelsize": SMALL,
        "legend.fontsize": SMALL,
        "figure.titlesize": LARGE,
        "lines.linewidth": 1.6,
        "lines.markersize": 6,
        "hatch.linewidth": 0.7,
        "svg.fonttype": "path",
        "svg.hashsalt": "bpg",
        "path.simplify": False,
        "figure.facecolor": theme.paper,
        "savefig.facecolor": theme.paper,
        "axes.facecolor": "none",
        "axes.edgecolor": theme.quiet,
        "axes.labelcolor": theme.ink,
        "text.color": theme.ink,
        "xtick.color": theme.quiet,
        "ytick.color": theme.quiet,
        "xtick.labelcolor": theme.ink,
        "ytick.labelcolor": theme.ink,
        "axes.unicode_minus": True,
    }
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # nothing of a user's own settings
        matplotlib.rcParams.update(settings)
        yield


def _compose(figure: Figure, theme: Theme) -> Canvas:
    """Rows of panels, each with its letter and title; then the notes, where there is room."""
    canvas = Canvas(figsize=(figure.width, 1), dpi=DPI, layout="constrained")
    FigureCanvasAgg(canvas)
    grid = canvas.add_gridspec(len(figure.rows), 1)
    several = sum(len(row) for row in figure.rows) > 1
    letters = (f"({letter})" if several else "" for letter in ascii_lowercase)
    heights: list[float] = []
    notes: list[Note] = []
    for place, row in enumerate(figure.rows):
        width = figure.width / len(row) - GAP
        band = canvas.add_subfigure(grid[place, 0])
        parts = band.subfigures(1, len(row), squeeze=False)[0]
        drawn = []
        for panel, part in zip(row, parts, strict=True):
            title = f"{next(letters)} {panel.title}".strip()
            if title:
                part.suptitle(title, x=0.01, ha="left")
            drawn.append(paint(panel, part, theme, width))
        notes += [note for each in drawn for note in each.notes]
        head = HEAD if several or row[0].title else 0.0
        below = _legends(drawn, band, list(parts), width)
        heights.append(head + max(height(panel, width) for panel in row) + FOOT * below + GAP)
    grid.set_height_ratios(heights)
    canvas.set_size_inches(figure.width, sum(heights))
    canvas.draw_without_rendering()  # places everything
    canvas.set_layout_engine("none")
    _place(notes, canvas)
    return canvas


def _legends(drawn: Sequence[Drawn], band: SubFigure, parts: Sequence[SubFigure], width: float) -> int:
    """Below each panel, or once below the row if all its panels say the same; returns the lines that it takes."""
    if len({tuple(name for name, _ in each.legend) for each in drawn}) == 1:
        return _legend(drawn[0], band, width * len(parts))
    return max(_legend(each, part, width) for each, part in zip(drawn, parts, strict=True))


def _legend(drawn: Drawn, part: SubFigure, width: float) -> int:
    if not drawn.legend:
        return 0
    labels, handles = zip(*drawn.legend, strict=True)
    lines = isinstance(handles[0], Line2D) and handles[0].get_linestyle() != "None"
    sign = 2.6 if lines else 1.4  # times the size of a letter; dashes need room
    columns = int(width / (LETTER * max(map(len, labels)) + (sign + 2) * SMALL / 72))
    columns = max(1, min(len(labels), columns))
    style: dict[str, Any] = {"frameon": False, "handlelength": sign, "columnspacing": 1.4}
    part.legend(handles, labels, loc="outside lower center", ncols=columns, **style)
    return math.ceil(len(labels) / columns)


def _place(notes: Sequence[Note], canvas: Canvas) -> None:
    """Put each note on the side of its point where it covers least of the lines, the other notes and the frame."""
    unit = canvas.dpi / 72
    taken: dict[Any, NDArray[np.float64]] = {}  # pixels that are not to be covered
    for note in notes:
        ink = taken[note.axes] if note.axes in taken else _ink(note)
        point = note.axes.transData.transform(note.point)
        size = np.array([LETTER * canvas.dpi * len(note.text), SMALL * unit])
        steps = [np.array(side) * (size / 2 + (4 if all(side) else 7) * unit) for side in SIDES]
        boxes = [Bbox([point + step - size / 2, point + step + size / 2]).padded(1.5 * unit) for step in steps]
        frame = note.axes.get_window_extent()
        step = steps[int(np.argmin([box.count_contains(ink) + 1000 * _leaves(frame, box) for box in boxes]))]
        taken[note.axes] = np.concatenate([ink, point + step + size * GRAIN])
        halo = withStroke(linewidth=2.5, foreground=canvas.get_facecolor())  # where a line had to be crossed
        style: dict[str, Any] = {"ha": "center", "va": "center", "color": note.colour, "path_effects": [halo]}
        note.axes.annotate(note.text, note.point, tuple(step / unit), textcoords="offset points", **style)


def _leaves(frame: Bbox, box: Bbox) -> bool:
    return not (frame.contains(box.x0, box.y0) and frame.contains(box.x1, box.y1))


def _ink(note: Note) -> NDArray[np.float64]:
    """Points along all lines of the panel, error bars too, in pixels."""
    found = [np.empty((0, 2))]
    for line in note.axes.lines:
        corners = line.get_transform().transform(np.column_stack(line.get_data()).astype(float))
        found.append(np.repeat(corners, 4, axis=0))  # a marker is worth more than a bit of line
        for begin, end in pairwise(corners):
            found.append(np.linspace(begin, end, 60))
    for bars in note.axes.collections:
        for path in bars.get_paths():
            corners = note.axes.transData.transform(path.vertices)
            found += [np.linspace(begin, end, 20) for begin, end in pairwise(corners)]
    return np.concatenate(found)
