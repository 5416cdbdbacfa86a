"""Tables as LaTeX: what is printed is what was written, and it compiles."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bpg.report.blocks import Heat, Table
from bpg.report.latex import document, escaped, latex

HARD = Table(
    ["method", "A_T ↑", "F_T ↓", "Δ to paper", "remark"],
    [
        ["S-iPrompts", 61.69, -1.5, "+0.1", "50 % & more #1 $x$ {a} ~b ^c \\d"],
        ["[BPG]", "72.19 ± 0.10", 0.22, "\u22120.05", "r₀ → 64, --seeds * 'x' \"y\" <z> |"],
        ["日本 é", None, float("nan"), -3, "line\nline … \u2013 “quoted”"],
    ],
    "Results, 100 % of C:\\runs_1",
    ["Over 5 seeds; ± is one standard deviation.", "A_T: average accuracy & more."],
)
WARM = Heat("Accuracy", "test ↓ after →", ["openmoji_black", "noto"], ["1", "2"], [[71.2, None], [-0.4, 100.0]])


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.endswith(r" \\")]


@pytest.mark.parametrize("block", [HARD, WARM])
def test_environments_and_braces_are_balanced_and_rows_have_as_many_cells_as_columns(block: Table | Heat) -> None:
    text = latex(block, label="tab:x")
    open_now: list[str] = []
    for what, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if what == "begin":
            open_now.append(name)
        else:
            assert open_now.pop() == name
    assert not open_now
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    sides = re.search(r"\\begin\{tabular\}\{(\w+)\}", text)
    assert sides is not None
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows(text)} == {len(sides[1]) - 1}


@pytest.mark.parametrize("block", [HARD, WARM])
def test_no_special_sign_stands_unescaped(block: Table | Heat) -> None:
    body = "\n".join(re.sub(r"\$[^$]*\$", "", line.replace(r"\$", "")) for line in rows(latex(block)))
    body = re.sub(r"\\cellcolor\{blue!\d+\}", "", body)
    assert not re.search(r"(?<!\\)[%_#$~^]", body)
    assert body.isascii() or set(re.sub(r"[\x00-\x7f]", "", body)) == {"é"}
    assert not re.search(r"^\s*[\[*]", body, flags=re.MULTILINE)  # would be read as an option of the line break


def test_signs_are_escaped_one_by_one() -> None:
    assert escaped("& % _ # $ { } ~ ^ \\") == (
        r"\& \% \_ \# \$ \{ \} \textasciitilde{} \textasciicircum{} \textbackslash{}"
    )
    assert escaped("± \u2212 → Δ") == r"$\pm$ $-$ $\rightarrow$ $\Delta$"
    assert escaped("a-b --c ---d") == "a-b -{}-c -{}-{}-d"
    assert escaped("木") == "{[}U+6728{]}"


def test_numbers_stand_to_the_right_and_words_to_the_left() -> None:
    assert r"\begin{tabular}{lrrrl}" in latex(HARD)
    assert r"\begin{tabular}{lrr}" in latex(WARM)


def test_what_is_not_defined_is_a_dash_and_less_than_nothing_a_minus() -> None:
    text = latex(HARD)
    assert "& -- & -- & $-$3 &" in text
    assert "$-$1.50" in text


def test_notes_stand_below_the_table() -> None:
    text = latex(HARD)
    assert text.index(r"\end{tabular}") < text.index(r"\item Over 5 seeds; $\pm$ is")
    assert r"\item A\_T: average accuracy \& more." in text
    assert "itemize" not in latex(Table(["a"], [[1]]))


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_it_compiles(tmp_path: Path) -> None:
    wide = Table([f"column {i}" for i in range(20)], [[1.5 * i for i in range(20)]])
    (tmp_path / "t.tex").write_text(document(latex(HARD, label="tab:x"), latex(WARM), latex(wide)), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
    assert "Missing character" not in (tmp_path / "t.log").read_text(errors="replace")
