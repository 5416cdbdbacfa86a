"""Tables as LaTeX, for a paper that includes them or as a document of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bpg.report.blocks import Cell, Heat, Table, numeric, shown

PREAMBLE = r"""\documentclass{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage{lmodern,booktabs,graphicx}
\usepackage[table]{xcolor}
\usepackage[margin=2cm]{geometry}
"""
NEEDS = "% needs booktabs, graphicx and [table]xcolor, with [T1]fontenc\n"
SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # after a line break it would begin an option
    "]": "{]}",
    "*": "{*}",  # as would this
    "`": r"\textasciigrave{}",
    '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}",
    "\n": " ",
} | {sign: f"\\{sign}" for sign in "&%_#$"}
MATHS = r"\pm - \times \cdot \approx \leq \geq \infty \rightarrow \leftarrow \uparrow \downarrow \surd"
GREEK = r"\Delta \Sigma \alpha \beta \gamma \epsilon \eta \lambda \mu \nu \rho \sigma \tau"
SIGNS = {
    **dict(zip("±−×·≈≤≥∞→←↑↓✓", MATHS.split(), strict=True)),  # noqa: RUF001
    **dict(zip("ΔΣαβγεηλμνρστ", GREEK.split(), strict=True)),
    **{sign: f"_{place}" for place, sign in enumerate("₀₁₂₃₄₅₆₇₈₉")},
    **{sign: f"^{place}" for place, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    "✗": r"\times",
}
WORDS = {
    "\u2026": r"\ldots{}",
    "\u2013": r"\textendash{}",
    "\u2014": r"\textemdash{}",
    "\u2018": "`",
    "\u2019": "'",
    "\u201c": "``",
    "\u201d": "''",
    "\u00a0": "~",
}
LAST = "\u017f"  # of the letters that T1 fonts have


def latex(block: Table | Heat, *, caption: str = "", label: str = "") -> str:
    """`block` as a table environment: numbers to the right, notes as a small list below; no wider than the text.

    The caption is the title if none is given. `label` is what \\ref refers to, as it is.
    """
    words = caption or block.title
    head = [NEEDS + r"\begin{table}[htbp]", r"\centering", r"\small"]
    head += [rf"\caption{{{escaped(words)}}}\vspace{{4pt}}"] if words else []
    head += [rf"\label{{{label}}}"] if label else []
    return "\n".join([*head, *_fitted(_tabular(block)), *_notes(block), r"\end{table}", ""])


def document(*fragments: str) -> str:
    """A whole document of `fragments`, to look at them."""
    return "\n".join([PREAMBLE + r"\begin{document}", *fragments, r"\end{document}", ""])


def escaped(text: str) -> str:
    """`text` so that LaTeX prints it: its own signs, arrows, Greek, small digits. What its fonts lack is a code."""
    return re.sub("-(?=-)", "-{}", "".join(map(_sign, text)))  # two hyphens make no dash


def _sign(sign: str) -> str:
    if sign in SIGNS:
        return f"${SIGNS[sign]}$"
    if sign in SPECIAL or sign in WORDS:
        return SPECIAL.get(sign) or WORDS[sign]
    return sign if sign <= LAST and sign.isprintable() else f"{{[}}U+{ord(sign):04X}{{]}}"


def _tabular(block: Table | Heat) -> list[str]:
    if isinstance(block, Heat):
        columns, sides = [block.corner, *block.columns], "l" + "r" * len(block.columns)
        rows = [[escaped(name), *map(_shaded, values)] for name, values in zip(block.rows, block.values, strict=True)]
    else:
        columns = list(block.columns)
        sides = "".join("r" if numeric(row[i] for row in block.rows) else "l" for i in range(len(columns)))
        rows = [[_cell(cell) for cell in row] for row in block.rows]
    lines = [rf"\begin{{tabular}}{{{sides}}}", r"\toprule", _row([escaped(column) for column in columns]), r"\midrule"]
    return [*lines, *map(_row, rows), r"\bottomrule", r"\end{tabular}"]


def _cell(cell: Cell) -> str:
    text = escaped(shown(cell))
    if text == "-":  # not defined
        return "--"
    return f"$-${text[1:]}" if text[:1] == "-" and numeric([shown(cell)]) else text


def _shaded(value: float | None) -> str:
    if value is None:
        return ""
    share = round(45 * min(max(value / 100, 0.0), 1.0))  # light enough for black words
    return rf"\cellcolor{{blue!{share}}}{_cell(f'{value:.1f}')}"


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _fitted(tabular: Sequence[str]) -> list[str]:
    """Shrunk to the width of the text, if it is wider."""
    return [r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%", *tabular[:-1], tabular[-1] + "}"]


def _notes(block: Table | Heat) -> list[str]:
    if isinstance(block, Heat) or not block.notes:
        return []
    items = [rf"  \item {escaped(note)}" for note in block.notes]
    begin = [r"\par\smallskip", r"\begin{minipage}{\linewidth}", r"\footnotesize", r"\begin{itemize}\itemsep0pt"]
    return [*begin, *items, r"\end{itemize}", r"\end{minipage}"]
