"""Results as text: aligned on a screen, tab-separated in a pipe, one document with --json."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence


def print_json(value: object) -> None:
    """`value` as one JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False))


def print_pairs(title: str, pairs: Mapping[str, object]) -> None:
    """A heading and a line a pair."""
    width = max(map(len, pairs), default=0)
    print(title)
    for key, value in pairs.items():
        print(f"  {key:<{width}}  {_shown(value)}")


def print_table(rows: Sequence[Mapping[str, object]], *, columns: Sequence[str]) -> None:
    """The `columns` of the rows; tab-separated when stdout is no terminal."""
    table = [list(columns), *([_shown(row[column]) for column in columns] for row in rows)]
    if not sys.stdout.isatty():
        for line in table:
            print("\t".join(line))
        return
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    for line in table:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
    # A tab or a line break inside a name would break the table.
    return str(value).replace("\t", "\\t").replace("\n", "\\n")
