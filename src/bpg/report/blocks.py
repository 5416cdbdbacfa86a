"""What a report is made of, before it is known whether it becomes Markdown or HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Cell = str | int | float | None  # None: not defined, not measured


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""


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


Block = Table | Heat | Curves | Scatter | Pictures | Answers


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
