"""What a report is made of, before it is known whether it becomes Markdown, HTML or LaTeX."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    Pixels = NDArray[np.uint8] | Image  # (H, W, 3) if it is an array

Cell = str | int | float | None  # None: not defined, not measured


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings, and sentences below them."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    notes: Sequence[str] = ()
    folded: bool = True  # on a page, behind its title if it has one


@dataclass(frozen=True, slots=True)
class Heat:
    """Percentages in a grid, with a colour for each; `corner` says what rows and columns are."""

    title: str
    corner: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class Curves:
    """Lines by name, over a common scale: from 0, if it is not logarithmic."""

    title: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    what: str = "loss"  # up
    over: str = "steps"  # across
    top: float | None = None  # of the scale; the highest value if not given
    log: str = ""  # "x", "y" or "xy": the axes that are logarithmic


@dataclass(frozen=True, slots=True)
class Scatter:
    """Points in a plane by name, and some that stand out."""

    title: str
    points: Mapping[str, Sequence[tuple[float, float]]]
    marks: Mapping[str, Sequence[tuple[float, float]]]
    names: Sequence[str]  # in the order of their colours


@dataclass(frozen=True, slots=True)
class Picture:
    """An image of the data set, as a data address."""

    caption: str
    source: str


@dataclass(frozen=True, slots=True)
class Pictures:
    """Images of one domain."""

    title: str
    pictures: Sequence[Picture]


@dataclass(frozen=True, slots=True)
class Answer:
    """A test image, what it shows, what was said, and who said so."""

    picture: Picture | None
    origin: str
    true: str
    label: str
    probability: float
    weights: Mapping[str, float]  # of the domains


@dataclass(frozen=True, slots=True)
class Answers:
    """Test images with the weights of the domains as bars."""

    title: str
    answers: Sequence[Answer]
    names: Sequence[str]  # of the domains, in the order of their colours


@dataclass(frozen=True, slots=True)
class Point:
    """A mean over seeds with its standard deviation, and a word beside it."""

    x: float
    y: float
    spread: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """Points of one name, in the order of x."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Lines:
    """A panel of lines with markers and error bars; titles and axes may hold TeX between dollar signs."""

    lines: Sequence[Line]
    across: str
    up: str
    title: str = ""
    log2: bool = False  # the axis across
    level: tuple[str, float] | None = None  # a horizontal line and its name
    best: str = ""  # "highest" or "lowest": the point of each line that is ringed, or the points that are as good
    relative: bool = False  # each line less its best point, or its highest
    beside: bool = False  # points of several lines at one place across stand beside each other


@dataclass(frozen=True, slots=True)
class Cloud:
    """Points on a plane, the class of each as its place in a list of names, and a measure such as the accuracy."""

    points: Sequence[tuple[float, float]] | NDArray[np.float64]
    classes: Sequence[int] | NDArray[np.int64]
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Clouds:
    """A grid of scatters under the titles of columns and beside those of rows.

    With `framed`, the highest value of each column has a solid frame and the second highest a dashed one.
    """

    clouds: Sequence[Sequence[Cloud | None]]  # a row, of columns; None: not measured
    columns: Sequence[str]
    rows: Sequence[str] = ("",)
    names: Sequence[str] = ()  # of the classes, for the legend
    title: str = ""
    framed: bool = True


@dataclass(frozen=True, slots=True)
class Strips:
    """Sample images of each name, as tiles under it."""

    strips: Mapping[str, Sequence[Pixels]]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Vote:
    """The weights of the domains, and the label they led to."""

    label: str
    weights: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Case:
    """A test image of the domain `origin` that shows `true`, and how each way of routing answered."""

    image: Pixels
    origin: str
    true: str
    votes: Mapping[str, Vote]  # by way: hard, soft


@dataclass(frozen=True, slots=True)
class Cases:
    """Test images side by side, with bars of the weights below each; right and wrong have signs."""

    cases: Sequence[Case]
    domains: Sequence[str]  # in the order of the bars
    title: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """Groups of horizontal bars with error bars: by name, a (value, spread) for each group or None.

    On a logarithmic axis they are dots: it has no zero that a bar could begin at.
    """

    groups: Sequence[str]
    bars: Mapping[str, Sequence[tuple[float, float] | None]]
    across: str
    title: str = ""
    log: bool = False


Panel = Lines | Clouds | Strips | Cases | Bars


@dataclass(frozen=True, slots=True)
class Figure:
    """Rows of panels, with letters if there are several, and what the figure says in a sentence or two."""

    title: str
    rows: Sequence[Sequence[Panel]]
    caption: str = ""
    width: float = 7.0  # inches at final size: 7 is a page of two columns, 3.4 one of them


Block = Table | Heat | Curves | Scatter | Pictures | Answers | Figure


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, sentences, and what is shown below them."""

    title: str
    text: Sequence[str] = ()
    blocks: Sequence[Block] = ()
    warnings: Sequence[str] = field(default=())


@dataclass(frozen=True, slots=True)
class Page:
    """A report."""

    title: str
    sections: Sequence[Section]


def shown(value: Cell) -> str:
    """A cell as text: two digits for percentages and the like, a dash for what is not defined."""
    if value is None or value != value:
        return "-"
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else value


def numeric(cells: Iterable[Cell]) -> bool:
    """Whether a column holds numbers, or text that begins as numbers do."""
    return all(not isinstance(cell, str) or not cell or cell[0].isdigit() or cell[0] in "+-\u2212" for cell in cells)
