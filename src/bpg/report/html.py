"""A report as one HTML file that needs nothing else: no script, no font, no address."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from bpg.report.blocks import (
    Answers,
    Block,
    Cell,
    Curves,
    Figure,
    Heat,
    Page,
    Pictures,
    Scatter,
    Section,
    Table,
    numeric,
    shown,
)
from bpg.report.figure import HEIGHT, WIDTH, chart, colour

MAP_HEIGHT = 420


def html(page: Page) -> str:
    """`page` as a whole HTML document."""
    style = files("bpg.report").joinpath("page.css").read_text(encoding="utf-8")
    contents = "".join(f'<li><a href="#s{i}">{escape(s.title)}</a></li>' for i, s in enumerate(page.sections))
    body = "".join(_section(section, index) for index, section in enumerate(page.sections))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; img-src data:\">\n"
        f"<title>{escape(page.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(page.title)}</h1><nav><ul>{contents}</ul></nav></header>\n<main>\n{body}</main>\n"
        "</body>\n</html>\n"
    )


def _section(section: Section, index: int) -> str:
    parts = [f'<section id="s{index}"><h2>{escape(section.title)}</h2>']
    parts += [f"<p>{escape(sentence)}</p>" for sentence in section.text]
    parts += [f'<p class="warning" role="alert">{escape(warning)}</p>' for warning in section.warnings]
    parts += [_block(block) for block in section.blocks]
    return "\n".join(parts) + "</section>\n"


def _block(block: Block) -> str:
    if isinstance(block, Table):
        table = _table(block.columns, block.rows) + _notes(block.notes)
        if block.title and block.folded:
            return f"<details><summary>{escape(block.title)}</summary>{table}</details>"
        return f"<h3>{escape(block.title)}</h3>{table}" if block.title else table
    if isinstance(block, Heat):
        return _heat(block)
    if isinstance(block, Curves):
        return _curves(block)
    if isinstance(block, Scatter):
        return _scatter(block)
    if isinstance(block, Answers):
        return _answers(block)
    if isinstance(block, Figure):
        return _figure(block)
    assert isinstance(block, Pictures)
    figures = "".join(
        f'<figure><img src="{escape(p.source)}" alt="{escape(p.caption)}"><figcaption>{escape(p.caption)}</figcaption>'
        "</figure>"
        for p in block.pictures
    )
    return f'<h3>{escape(block.title)}</h3><div class="pictures">{figures}</div>'


def _table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    kinds = [' class="number"' if numeric(row[at] for row in rows) else "" for at in range(len(columns))]
    head = "".join(f'<th scope="col"{kind}>{escape(column)}</th>' for kind, column in zip(kinds, columns, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{escape(shown(cell))}</td>" for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _notes(notes: Sequence[str]) -> str:
    return f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>' if notes else ""


def _heat(block: Heat) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in block.columns)
    rows = []
    for name, values in zip(block.rows, block.values, strict=True):
        cells = "".join(_heat_cell(value) for value in values)
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    corner = f'<th scope="col">{escape(block.corner)}</th>'
    return (
        f'<div class="beside"><h3>{escape(block.title)}</h3><div class="wide"><table class="heat"><thead><tr>{corner}'
        f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></div>"
    )


def _heat_cell(value: float | None) -> str:
    if value is None:
        return "<td></td>"
    share = min(max(value / 100, 0.0), 1.0)
    ink = ' class="strong"' if share > 0.6 else ""
    return f'<td{ink} style="background:rgba(37,99,235,{0.05 + 0.85 * share:.2f})">{value:.1f}</td>'


def _curves(block: Curves) -> str:
    """Lines over a common scale, with a legend in words."""
    title = escape(block.title)
    return (
        f'<h3>{title}</h3><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(block.what)}: {title}">'
        f"{chart(block)}</svg>{_legend(block.lines)}"
    )


def _legend(names: Iterable[str]) -> str:
    entries = "".join(
        f'<li><span style="background:{colour(place)}"></span>{escape(name)}</li>' for place, name in enumerate(names)
    )
    return f'<ul class="legend">{entries}</ul>'


def _scatter(block: Scatter) -> str:
    """Points and rings on a plane of equal scales."""
    names = block.names
    every = [point for pairs in (*block.points.values(), *block.marks.values()) for point in pairs]
    if not every:
        return ""
    (left, right), (low, high) = ((min(axis), max(axis)) for axis in zip(*every, strict=True))
    scale = min((WIDTH - 24) / (right - left or 1), (MAP_HEIGHT - 24) / (high - low or 1))

    def place(x: float, y: float) -> str:
        across = WIDTH / 2 + scale * (x - (left + right) / 2)
        return f'cx="{across:.1f}" cy="{MAP_HEIGHT / 2 - scale * (y - (low + high) / 2):.1f}"'

    parts = []
    for number, name in enumerate(names):
        dots = "".join(f'<circle {place(x, y)} r="3"/>' for x, y in block.points.get(name, ()))
        parts.append(f'<g fill="{colour(number)}" fill-opacity=".45">{dots}</g>')
    for number, name in enumerate(names):
        rings = "".join(f'<circle {place(x, y)} r="7"/>' for x, y in block.marks.get(name, ()))
        parts.append(f'<g fill="{colour(number)}" stroke="currentColor" stroke-width="2">{rings}</g>')
    return (
        f'<h3>{escape(block.title)}</h3><svg viewBox="0 0 {WIDTH} {MAP_HEIGHT}" role="img" '
        f'aria-label="map of the domains: {escape(block.title)}">{"".join(parts)}</svg>{_legend(names)}'
    )


def _answers(block: Answers) -> str:
    """A card an image, with a bar for each domain that spoke."""
    names = block.names
    cards = []
    for answer in block.answers:
        right = answer.label == answer.true
        verdict = f"{escape(answer.label)}, {answer.probability:.0%} sure"
        truth = "" if right else f' <span class="off">shows: {escape(answer.true)}</span>'
        bars = "".join(
            f'<div class="bar"><span>{escape(name)}</span><i style="width:{100 * answer.weights[name]:.0f}%;'
            f'background:{colour(names.index(name))}"></i><b>{answer.weights[name]:.2f}</b></div>'
            for name in names
            if answer.weights.get(name)
        )
        image = f'<img src="{escape(answer.picture.source)}" alt="{escape(answer.true)}">' if answer.picture else ""
        cards.append(
            f'<div class="card">{image}<div><p><strong>{verdict}</strong>{truth}</p><p>from {escape(answer.origin)}</p>'
            f"{bars}</div></div>"
        )
    return f'<h3>{escape(block.title)}</h3><div class="cards">{"".join(cards)}</div>'


def _figure(block: Figure) -> str:
    """A drawing for light and one for dark, in the page; on a narrow screen it scrolls before its words get small."""
    from bpg.report.plots import svg  # matplotlib takes a second to import, and most pages have no figure

    light, dark = (
        "data:image/svg+xml;base64," + base64.b64encode(svg(block, dark=dark)).decode() for dark in (False, True)
    )
    pixels = 96 * block.width
    caption = f"<figcaption><strong>{escape(block.title)}.</strong> {escape(block.caption)}</figcaption>"
    return (
        '<figure class="drawn"><div class="wide"><picture>'
        f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{escape(block.title)}" '
        f'style="min-width:{0.8 * pixels:.0f}px;max-width:{1.4 * pixels:.0f}px">'
        f"</picture></div>{caption}</figure>"
    )
