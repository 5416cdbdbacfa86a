"""docs/notation.md tells the truth: code that exists, equations that are claimed, and the whole paper covered."""

from __future__ import annotations

import dataclasses
import importlib
import re
from typing import Any

import pytest

from tests.conftest import ROOT, SHARED

ROWS = [
    [cell.strip() for cell in line.strip("|\n").split(" | ")]
    for line in (ROOT / "docs" / "notation.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| $")
]


def resolve(name: str) -> Any:
    """The object behind a dotted name; a field of a dataclass stands for its class."""
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for part in parts[split:]:
            fields = {field.name for field in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else set()
            if part in fields:
                return found
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def test_the_table_has_its_columns() -> None:
    assert len(ROWS) > 40
    assert all(len(row) in (4, 5) for row in ROWS), [row for row in ROWS if len(row) not in (4, 5)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_names_code_that_exists(row: list[str]) -> None:
    code, equation = row[3], (row[4] if len(row) == 5 else "").strip("| ")
    if code == "-":
        return
    name = re.fullmatch(r"(planned )?`([\w.]+)`", code)
    assert name, f"neither code, planned code nor a dash: {code}"
    if name[1]:
        with pytest.raises((ModuleNotFoundError, AttributeError)):
            resolve(name[2])  # once it exists, the row must say so
        return
    found = resolve(name[2])
    if equation:
        assert equation in (found.__doc__ or ""), f"{name[2]} does not claim {equation} in its docstring"


def test_every_equation_of_the_paper_is_in_the_table() -> None:
    paper = SHARED / "paper" / "bpg-paper.tex"
    if not paper.is_file():
        pytest.skip(f"needs the paper's source at {paper}; set BPG_SHARED to its folder's parent")
    labels = set(re.findall(r"\\label\{(eq:\w+)\}", paper.read_text(encoding="utf-8")))
    assert labels == {row[4].strip("| ") for row in ROWS if len(row) == 5 and row[4].strip("| ")}
