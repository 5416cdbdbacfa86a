"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from bpg.report.blocks import Answers, Block, Cell, Curves, Figure, Heat, Page, Section, Table, numeric, shown

BARS = "▁▂▃▄▅▆▇█"
LINE = 24  # characters of a curve


def markdown(page: Page, drawn: Mapping[str, str] | None = None) -> str:
    """`page` as Markdown. Curves and figures are the pictures whose addresses `drawn` gives by title. Curves that are
    not there are small lines of bars; other pictures and maps are left to the HTML page. A figure's address is that of
    its PNG, and the dark one lies beside it, as `plots.draw` leaves them.
    """
    lines = [f"# {_escaped(page.title)}", ""]
    for section in page.sections:
        lines += _section(section, drawn or {})
    return "\n".join(lines)


def _section(section: Section, drawn: Mapping[str, str]) -> list[str]:
    lines = [f"## {_escaped(section.title)}", ""]
    for sentence in section.text:
        lines += [_escaped(sentence), ""]
    for warning in section.warnings:
        lines += [f"> **{_escaped(warning)}**", ""]
    for block in section.blocks:
        if isinstance(block, Curves) and block.title in drawn:
            lines += [f"![{_escaped(block.title)}]({drawn[block.title]})", ""]
        elif isinstance(block, Figure) and block.title in drawn:
            lines += _figure(block, drawn[block.title])
        else:
            lines += _block(block)
    return lines


def _figure(block: Figure, address: str) -> list[str]:
    stem, dot, kind = address.rpartition(".")
    dark, light, title = (escape(text) for text in (f"{stem}-dark{dot}{kind}", address, block.title))
    caption = f"**{_escaped(block.title)}.**" + (f" {_escaped(block.caption)}" if block.caption else "")
    return [
        "<picture>",
        f'  <source media="(prefers-color-scheme: dark)" srcset="{dark}">',
        f'  <img alt="{title}" src="{light}" width="{96 * block.width:.0f}">',
        "</picture>",
        "",
        caption,
        "",
    ]


def _block(block: Block) -> list[str]:
    if isinstance(block, Table):
        title = [f"**{_escaped(block.title)}**", ""] if block.title else []
        notes = ["", *(f"- {_escaped(note)}" for note in block.notes)] if block.notes else []
        return [*title, *_table(block.columns, block.rows), *notes, ""]
    if isinstance(block, Heat):
        rows = [[name, *_percents(values)] for name, values in zip(block.rows, block.values, strict=True)]
        return [f"**{_escaped(block.title)}**", "", *_table([block.corner, *block.columns], rows), ""]
    if isinstance(block, Curves):
        digits = 1 if block.top else 3
        rows = []
        for name, points in block.lines.items():
            values = [y for _, y in points]
            ends = [f"{value:.{digits}f}" for value in (values[0], values[-1])]
            rows.append([name, _bars(values, block.top), *ends, f"{points[-1][0]:.0f}"])
        head = ["", block.what, "first", "last", block.over]
        return [f"**{_escaped(block.title)}**", "", *_table(head, rows), ""]
    if isinstance(block, Answers):
        names = sorted({name for answer in block.answers for name in answer.weights})
        told: list[list[Cell]] = [
            [a.origin, a.true, a.label, 100 * a.probability, *(_weight(a.weights.get(name)) for name in names)]
            for a in block.answers
        ]
        return [
            f"**{_escaped(block.title)}**",
            "",
            *_table(["from", "shows", "said", "sure, %", *names], told),
            "",
        ]
    return []  # pictures and points are for the eye


def _weight(weight: float | None) -> str:
    return f"{weight:.2f}" if weight else ""


def _percents(values: Sequence[float | None]) -> list[str]:
    return ["" if value is None else f"{value:.1f}" for value in values]


def _table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    numbers = [numeric(row[i] for row in rows) for i in range(len(columns))]
    lines = [
        "| " + " | ".join(map(_escaped, columns)) + " |",
        "|" + "|".join("--:" if n else "---" for n in numbers) + "|",
    ]
    lines += ["| " + " | ".join(_escaped(shown(cell)) for cell in row) + " |" for row in rows]
    return lines


def _bars(values: Sequence[float], top: float | None) -> str:
    size = max(1, -(-len(values) // LINE))
    means = [sum(piece) / len(piece) for i in range(0, len(values), size) if (piece := values[i : i + size])]
    top = top or max(means) or 1.0
    return "".join(BARS[min(len(BARS) - 1, max(0, int(len(BARS) * value / top)))] for value in means)


def _escaped(text: str) -> str:
    for sign in ("\\", "|", "*", "_", "<", "&", "`", "[", "$"):
        text = text.replace(sign, f"\\{sign}")
    return text.replace("\n", " ")
