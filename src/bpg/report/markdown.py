"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from bpg.report.blocks import Block, Cell, Curves, Heat, Page, Pictures, Section, Table, shown

BARS = "▁▂▃▄▅▆▇█"
LINE = 24  # characters of a curve


def markdown(page: Page) -> str:
    """`page` as Markdown. Curves are small lines of bars; pictures are left to the HTML page."""
    return "\n".join(
        [f"# {_escaped(page.title)}", "", *(line for section in page.sections for line in _section(section))]
    )


def _section(section: Section) -> list[str]:
    lines = [f"## {_escaped(section.title)}", ""]
    for sentence in section.text:
        lines += [_escaped(sentence), ""]
    for warning in section.warnings:
        lines += [f"> **{_escaped(warning)}**", ""]
    for block in section.blocks:
        lines += _block(block)
    return lines


def _block(block: Block) -> list[str]:
    if isinstance(block, Table):
        title = [f"**{_escaped(block.title)}**", ""] if block.title else []
        return [*title, *_table(block.columns, block.rows), ""]
    if isinstance(block, Heat):
        rows = [[name, *_percents(values)] for name, values in zip(block.rows, block.values, strict=True)]
        return [f"**{_escaped(block.title)}**", "", *_table([block.corner, *block.columns], rows), ""]
    if isinstance(block, Curves):
        rows = [
            [name, _bars([y for _, y in points]), f"{points[0][1]:.3f}", f"{points[-1][1]:.3f}", f"{points[-1][0]:.0f}"]
            for name, points in block.lines.items()
        ]
        head = ["domain", "loss", "first", "last", "steps"]
        return [f"**{_escaped(block.title)}**", "", *_table(head, rows), ""]
    assert isinstance(block, Pictures)
    return []


def _percents(values: Sequence[float | None]) -> list[str]:
    return ["" if value is None else f"{value:.1f}" for value in values]


def _table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    numeric = [all(not isinstance(row[i], str) or _is_number(row[i]) for row in rows) for i in range(len(columns))]
    lines = [
        "| " + " | ".join(map(_escaped, columns)) + " |",
        "|" + "|".join("--:" if n else "---" for n in numeric) + "|",
    ]
    lines += ["| " + " | ".join(_escaped(shown(cell)) for cell in row) + " |" for row in rows]
    return lines


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, str) and (not cell or cell[0].isdigit() or cell[0] == "-")


def _bars(values: Sequence[float]) -> str:
    size = max(1, -(-len(values) // LINE))
    means = [sum(piece) / len(piece) for i in range(0, len(values), size) if (piece := values[i : i + size])]
    top = max(means) or 1.0
    return "".join(BARS[min(len(BARS) - 1, max(0, int(len(BARS) * value / top)))] for value in means)


def _escaped(text: str) -> str:
    for sign in ("\\", "|", "*", "_", "<", "&", "`", "[", "$"):
        text = text.replace(sign, f"\\{sign}")
    return text.replace("\n", " ")
