"""Figures: the same bytes for the same data, words that can be read, colours that can be told apart."""

from __future__ import annotations

import io
import itertools
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.backend_bases import RendererBase
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from numpy.typing import NDArray
from PIL import Image

from bpg.report import plots
from bpg.report.blocks import (
    Bars,
    Case,
    Cases,
    Cloud,
    Clouds,
    Figure,
    Line,
    Lines,
    Page,
    Panel,
    Point,
    Section,
    Strips,
    Table,
    Vote,
)
from bpg.report.html import html
from bpg.report.markdown import markdown
from bpg.report.palette import DARK, LIGHT, Theme, colour_of
from bpg.report.panels import DASHED, SOLID, _frames
from bpg.report.plots import draw, svg

DOMAINS = ["openmoji-black", "fluent-flat", "noto"]


def picture(seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (20, 30, 3), dtype=np.uint8)


def cloud(value: float | None, classes: int = 12) -> Cloud:
    chance = np.random.default_rng(classes)
    return Cloud(chance.normal(size=(60, 2)), np.arange(60) % classes, value)


def lines(**kwargs: object) -> Lines:
    uniform = Line("uniform $r$", [Point(4, 64.1, 0.5), Point(64, 67.4, 0.3), Point(1024, 67.9, 0.4)])
    adaptive = Line("adaptive", [Point(17, 67.2, 0.3, "r₀ = 4"), Point(70, 68.9, 0.2, "r₀ = 16")])
    return Lines([uniform, adaptive], "hidden dimension $r$", "$A_T$, %", "accuracy", log2=True, **kwargs)


def votes(hard: str, soft: str) -> dict[str, Vote]:
    return {"hard": Vote(hard, {"noto": 1.0}), "soft": Vote(soft, {"noto": 0.52, "fluent-flat": 0.48})}


PANELS: dict[str, Panel] = {
    "lines": lines(level=("linear probe", 63.2), best="highest"),
    "clouds": Clouds(
        [[cloud(70.0), None], [cloud(72.0), cloud(71.0)]], ["noto", "real\n$s_2$ = 0.5"], ["r = 4", "r = 16"]
    ),
    "strips": Strips({"noto": [picture(0), picture(1)], "a$b$c_": [Image.new("RGBA", (9, 7), "#f008")]}, "samples"),
    "cases": Cases([Case(picture(2), "fluent-flat", "pi$e$", votes("cake", "pi$e$"))], DOMAINS, "near a border"),
    "bars": Bars(["L2P", "BPG"], {"training": [(3.1, 0.1), None], "survey": [(0.1, 0.0), (0.4, 0.0)]}, "hours"),
    "log": Bars(["L2P", "BPG"], {"latency": [(31.0, 1.0), (119.0, 2.0)]}, "ms an image", log=True),
}
WHOLE = Figure(
    "Motivation & more", [[PANELS["strips"], PANELS["clouds"]], [lines(relative=True, best="highest")]], "Why."
)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return draw(WHOLE, tmp_path_factory.mktemp("figures"), "motivation")


def words(figure: Figure, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, Bbox]]:
    """What is written in the figure: the text, its size, and where it is."""
    written: list[Text] = []
    plain = Text.draw

    def note(text: Text, renderer: RendererBase) -> None:
        if text.get_text().strip() and text.get_visible():
            written.append(text)
        plain(text, renderer)

    with plots._style(LIGHT):
        canvas = plots._compose(figure, LIGHT)
        with monkeypatch.context() as patch:
            patch.setattr(Text, "draw", note)
            canvas.canvas.draw()
        return [(text.get_text(), text.get_fontsize(), text.get_window_extent()) for text in written]


def test_a_figure_is_four_files_for_light_and_dark(drawn: list[Path]) -> None:
    names = ["motivation.svg", "motivation.png", "motivation-dark.svg", "motivation-dark.png"]
    assert [file.name for file in drawn] == names
    light, dark = (Image.open(file).convert("L") for file in drawn if file.suffix == ".png")
    assert light.size == dark.size
    assert light.width == 7 * plots.DPI
    assert light.getpixel((0, 0)) == 255
    assert dark.getpixel((0, 0)) < 30


def test_the_same_data_gives_the_same_bytes(drawn: list[Path], tmp_path: Path) -> None:
    again = draw(WHOLE, tmp_path, "other")
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in drawn]


def test_files_tell_neither_time_nor_program(drawn: list[Path]) -> None:
    for file in drawn:
        assert not re.search(rb"<dc:date>|Matplotlib v|tIME|Software", file.read_bytes())


@pytest.mark.parametrize("kind", PANELS)
def test_every_panel_is_drawn_as_valid_svg(kind: str) -> None:
    content = svg(Figure(kind, [[PANELS[kind]]], width=3.4))
    assert ElementTree.fromstring(content).tag.endswith("svg")


@pytest.mark.parametrize("width", [3.4, 7.0])
@pytest.mark.parametrize("kind", PANELS)
def test_words_are_eight_points_or_more_inside_the_figure_and_apart(
    kind: str, width: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = words(Figure(kind, [[PANELS[kind]]], width=width), monkeypatch)
    assert min(size for _, size, _ in found) >= 8
    for text, _, box in found:
        assert box.x0 >= -1, text
        assert box.y0 >= -1, text
        assert box.x1 <= width * plots.DPI + 1, text
    for (one, _, here), (other, _, there) in itertools.combinations(found, 2):
        assert not here.padded(-2).overlaps(there.padded(-2)), (one, other)


def test_a_users_own_settings_of_matplotlib_change_nothing() -> None:
    import matplotlib

    before = svg(Figure("x", [[PANELS["bars"]]]))
    with matplotlib.rc_context({"font.size": 20, "lines.linewidth": 9}):
        assert svg(Figure("x", [[PANELS["bars"]]])) == before


def test_panels_have_letters_if_there_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"(a) samples", "(b)", "(c) accuracy"} <= {text for text, _, _ in words(WHOLE, monkeypatch)}
    assert "accuracy" in {text for text, _, _ in words(Figure("x", [[lines()]]), monkeypatch)}


def test_right_and_wrong_have_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {text for text, _, _ in words(Figure("x", [[PANELS["cases"]]]), monkeypatch)}
    assert {"✗ cake", r"✓ pi\$e\$"} <= said


def test_classes_of_nearly_one_colour_differ_in_shape() -> None:
    drawn = svg(Figure("x", [[Clouds([[cloud(None, classes=12)]], ["x"])]]))
    dots = re.findall(rb'opacity: 0.85; stroke: (#\w+);[^"]*stroke-linecap: (\w+)', drawn)
    shapes = {colour.decode(): shape for colour, shape in dots}
    assert [shapes[colour] for colour in LIGHT.colours] == [b"round"] * 6 + [b"square"] * 6


def test_notes_lie_on_no_marker_and_on_no_other_note() -> None:
    with plots._style(LIGHT):
        canvas = plots._compose(Figure("x", [[lines()]], width=3.4), LIGHT)
        (axes,) = (axes for part in canvas.subfigs for inner in part.subfigs for axes in inner.axes)
        notes = [text.get_window_extent() for text in axes.texts]
        marks = axes.transData.transform(np.concatenate([np.column_stack(line.get_data()) for line in axes.lines[:2]]))
    assert len(notes) == 2
    assert not any(box.count_contains(marks) for box in notes)
    assert not notes[0].overlaps(notes[1])


def test_the_best_of_a_column_has_a_solid_frame_and_the_second_a_dashed_one() -> None:
    column = [[cloud(value)] for value in (70.0, 72.0, 71.0, 69.0)]
    assert _frames(Clouds(column, ["noto"], list("abcd"))) == {(1, 0): SOLID, (2, 0): DASHED}
    tied = [[cloud(value)] for value in (72.0, 72.0, 71.0)]
    assert _frames(Clouds(tied, ["noto"], list("abc"))) == {(0, 0): SOLID, (1, 0): SOLID, (2, 0): DASHED}
    assert _frames(Clouds([[cloud(1.0)]], ["noto"])) == {}


def test_dots_are_seen_in_both_formats(tmp_path: Path) -> None:
    resvg = pytest.importorskip("resvg_py")
    files = draw(Figure("x", [[Clouds([[cloud(None, classes=1)]], ["x"])]], width=2), tmp_path, "dots")
    agg = np.asarray(Image.open(files[1]).convert("RGB"), dtype=int)
    vector = resvg.svg_to_bytes(svg_string=files[0].read_text(), width=agg.shape[1], dpi=96)
    other = np.asarray(Image.open(io.BytesIO(bytes(vector))).convert("RGB"), dtype=int)
    blue = [(np.abs(image - [38, 135, 189]).sum(2) < 60).sum() for image in (agg, other)]
    assert min(blue) > 500
    assert blue[0] == pytest.approx(blue[1], rel=0.2)


# How far apart two colours are: distance in Oklab (Ottosson 2020), seen by all three cones, or without the red or the
# green ones (Machado et al. 2009).

SIGHTS = {
    "all": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
LMS = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]])
LAB = np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])


def linear(colour: str) -> NDArray[np.float64]:
    values = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def closest(colours: list[str], sight: str) -> float:
    seen = [LAB @ np.cbrt(np.clip(LMS @ np.clip(SIGHTS[sight] @ linear(c), 0, 1), 0, None)) for c in colours]
    return min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2))


def contrast(colour: str, paper: str) -> float:
    dark, light = sorted(float(linear(each) @ [0.2126, 0.7152, 0.0722]) + 0.05 for each in (colour, paper))
    return light / dark


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_twelve_colours_are_further_apart_than_those_of_okabe_and_ito(theme: Theme) -> None:
    known = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#f0e442"]
    least = min(closest(known, sight) for sight in SIGHTS)
    assert len(set(theme.colours)) == 12
    assert min(closest(list(theme.colours), sight) for sight in SIGHTS) > least


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_words_and_lines_stand_out_from_the_paper(theme: Theme) -> None:
    assert min(contrast(each, theme.paper) for each in (theme.ink, theme.right, theme.wrong)) >= 4.5
    assert min(contrast(each, theme.paper) for each in theme.colours[:6]) >= 3
    assert min(contrast(each, theme.paper) for each in theme.colours) >= 1.9


def test_more_classes_than_colours_have_hues_of_their_own() -> None:
    assert len({colour_of(place, 40, LIGHT) for place in range(40)}) == 40


SIMPLE = Figure("Cost & more", [[PANELS["bars"]]], "In hours.")
PAGE = Page("All", [Section("Figures", blocks=[SIMPLE, Table(["a"], [[1]], notes=["One & only.", "Two."])])])


def test_the_page_holds_both_drawings_and_needs_nothing_else() -> None:
    text = html(PAGE)
    assert text.count("data:image/svg+xml;base64,") == 2
    assert '<source media="(prefers-color-scheme: dark)" srcset="data:' in text
    assert 'alt="Cost &amp; more"' in text
    assert "<strong>Cost &amp; more.</strong> In hours." in text
    assert '<ul class="notes"><li>One &amp; only.</li><li>Two.</li></ul>' in text
    assert not re.search(r'(?:src|href|srcset)="(?!data:|#)', text)


def test_markdown_shows_the_png_for_light_and_dark_where_it_was_drawn() -> None:
    text = markdown(PAGE, {SIMPLE.title: "figures/cost.png"})
    assert '<source media="(prefers-color-scheme: dark)" srcset="figures/cost-dark.png">' in text
    assert 'src="figures/cost.png"' in text
    assert "**Cost \\& more.** In hours." in text
    assert "| 1 |\n\n- One \\& only.\n- Two.\n" in text
    assert "<picture>" not in markdown(PAGE)


def test_pages_without_figures_do_not_import_matplotlib() -> None:
    code = (
        "import sys; from bpg.report.blocks import *; from bpg.report.html import html;"
        "from bpg.report.markdown import markdown;"
        "html(Page('x', [])); markdown(Page('x', [])); sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
