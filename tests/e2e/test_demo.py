"""`bpg demo` as a newcomer types it, cut short; its page in a real browser where there is one."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bpg.data.benchmarks.emoji import STYLES
from tests.command import bpg, document, done, model_files, refused

SHORT = (
    "--set", "data.per_class=2", "--set", "data.test_per_class=2",
    "--set", "methods.bpg.optimisation.epochs=1", "--set", "methods.finetune.optimisation.epochs=1",
)  # fmt: skip
PARTS = (
    "Results", "The images", "Soft, hard, oracle", "Capacity plan of bpg", "Accuracy matrices", "What is kept",
    "Some answers", "Where the domains lie", "Domain confusion", "Training curves", "What ran on what",
)  # fmt: skip


class Page(HTMLParser):
    """The sections of a page by title, and what each shows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sections: dict[str, dict[str, int]] = {}
        self.addresses: list[str] = []
        self._open = ""
        self._title = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._title = tag == "h2"
        if self._open:
            shown = self.sections[self._open]
            kind = dict(attrs).get("class") or ""
            for name in (tag, *(f".{part}" for part in kind.split())):
                shown[name] = shown.get(name, 0) + 1
        self.addresses += [value for name, value in attrs if name in ("src", "href") and value]

    def handle_data(self, data: str) -> None:
        if self._title and data.strip():
            self._open = data
            self.sections[data] = {}
            self._title = False


@pytest.fixture(scope="module")
def story(made_once: Callable[[str, Callable[[Path], object]], Path]) -> tuple[Path, str]:
    """The folder of a short demo, and what it printed into a pipe."""
    here = made_once("demo", lambda new: (new / "printed").write_text(done("demo", *SHORT, cwd=new)))
    return here / "bpg-demo", (here / "printed").read_text()


def test_the_story_is_told_with_what_came_out(story: tuple[Path, str]) -> None:
    folder, text = story
    assert text.isascii(), "a terminal may know no more"
    assert "\x1b" not in text, "no colours in a pipe"
    assert max(map(len, text.splitlines())) <= 120
    for place, style in enumerate(STYLES, start=1):
        assert text.count(f"\n  {place} {style} ") == 3, "in the plan and in both matrices"
    rows = re.findall(r"^  6 openmoji-black((?: +\d+\.\d){6})$", text, re.MULTILINE)
    assert len(rows) == 2, "the last row of both matrices is whole"
    for way in ("calibrated", "soft", "hard", "oracle"):
        assert f"({way})" in text
    assert f"{folder.name}/model" in text
    assert f"{folder.name}/page.html" in text
    assert text.count("\n  bpg ") == 3, "the three commands to type next"


def test_the_model_is_one_like_any_other(story: tuple[Path, str]) -> None:
    model = document("inspect", story[0] / "model")
    assert sorted(domain["domain"] for domain in model["domains"]) == sorted(STYLES)


def test_the_page_has_its_parts_and_none_is_empty(story: tuple[Path, str]) -> None:
    text = (story[0] / "page.html").read_text(encoding="utf-8")
    check_page(text)


def check_page(text: str) -> None:
    page = Page(text)
    assert [title for title in page.sections if title in PARTS] == list(PARTS)
    shown = page.sections
    assert shown["The images"]["img"] == 6 * 12, "an image of each class in each style"
    assert shown["Accuracy matrices"][".heat"] >= 3
    assert shown["What is kept"]["polyline"] == 4, "both methods, on the first domain and on all old ones"
    assert shown["Some answers"][".card"] == shown["Some answers"]["img"] >= 12
    assert shown["Some answers"][".bar"] >= shown["Some answers"][".card"]
    assert shown["Where the domains lie"]["circle"] > 6 * 5
    assert all(address.startswith(("data:image/", "#")) for address in page.addresses), "nothing from elsewhere"


MEASURE = """<script>addEventListener("load", () => {
  const seen = (all, good) => all.length && [...all].every(good);
  const found = {
    images: seen(document.images, image => image.complete && image.naturalWidth > 8),
    drawings: seen(document.querySelectorAll("svg"), svg => svg.getBBox().width > 100 && svg.getBBox().height > 50),
    bars: seen(document.querySelectorAll(".bar i"), bar => bar.offsetWidth > 0 && bar.offsetHeight > 0),
    fits: document.documentElement.scrollWidth <= innerWidth,
    width: innerWidth,
    ink: getComputedStyle(document.body).color,
  };
  parent.postMessage(JSON.stringify(found), "*");
})</script>"""
# A window is never as narrow as a phone; a frame may be.
FRAME = """<!doctype html><title></title><meta name="color-scheme" content="light dark">
<script>onmessage = told => { document.title = told.data }</script>
<iframe src="measured.html" width="WIDTH" height="900">
"""


def test_the_page_in_a_browser(story: tuple[Path, str], tmp_path: Path) -> None:
    """On a phone and on a desk, light and dark: every picture is there, and nothing sticks out to the right."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium here")
    text = (story[0] / "page.html").read_text(encoding="utf-8")
    policy = re.search(r"<meta http-equiv=.Content-Security-Policy.[^>]*>", text)
    assert policy is not None
    measured = tmp_path / "measured.html"  # the page, but for its ban on scripts
    opened = policy[0].replace("default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'")
    measured.write_text(text.replace(policy[0], opened).replace("</body>", f"{MEASURE}</body>"), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync", "--hide-scrollbars", "--virtual-time-budget=2000"]
    inks = set()
    for number, (width, scheme) in enumerate([(1280, 1), (390, 1), (390, 0)]):
        frame = tmp_path / "frame.html"
        frame.write_text(FRAME.replace("WIDTH", str(width)), encoding="utf-8")
        own = [f"--user-data-dir={tmp_path / str(number)}", "--window-size=1400,1000"]
        own.append(f"--blink-settings=preferredColorScheme={scheme}")  # 0 is dark
        shown = subprocess.run(
            [browser, *flags, *own, "--dump-dom", frame.as_uri()],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        title = re.search(r"<title>(.*?)</title>", shown)
        assert title is not None
        found = json.loads(unescape(title[1]))
        assert found["width"] == width
        for what in ("images", "drawings", "bars", "fits"):
            assert found[what], (what, width, scheme)
        inks.add(found["ink"])
    assert len(inks) == 2, "one dark on light, one light on dark"


@pytest.mark.slow
def test_interrupted_it_goes_on(story: tuple[Path, str], tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "bpg", "demo", *SHORT],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.rglob("records.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "the same command goes on from here" in errors
    again = done("demo", *SHORT, cwd=tmp_path)
    assert again == story[1], "the same story, to the last digit"
    curves, whole = (
        set(next(place.rglob("bpg-seed0-*/curves.jsonl")).read_text().splitlines()) for place in (tmp_path, story[0])
    )
    assert curves == whole


def test_json_and_quiet(story: tuple[Path, str], tmp_path: Path) -> None:
    """A second demo in the same place has nothing left to learn."""
    shutil.copytree(story[0], tmp_path / "bpg-demo")
    found = document("demo", *SHORT, cwd=tmp_path)
    assert {row["way"] for row in found["results"]} == {"calibrated", "soft", "hard", "oracle", "own"}
    quiet = bpg("demo", *SHORT, "--quiet", cwd=tmp_path)
    assert quiet.returncode == 0
    assert quiet.stderr == ""
    assert quiet.stdout in story[1]


def test_bad_places_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here first")
    assert "no place for the demo" in refused("demo", "--out", tmp_path / "file")
    assert "no setting" in refused("demo", "--set", "data.order", "--out", tmp_path / "new").replace("\n", " ")
    assert "the system refused" in refused("demo", "--out", "/proc/demo", code=1)
    assert not (tmp_path / "new").exists()
    assert "a folder with other things in it" in refused("demo", "--out", tmp_path)
    (tmp_path / "runs").mkdir()
    assert "a folder with other things in it" in refused("demo", "--out", tmp_path), "somebody's runs are no demo"
    for change in ("seeds=[0, 1]", "methods.linear_probe={}", "data.order=['google']", "data.benchmark=emoji-unseen"):
        assert "another story" in refused("demo", "--set", change, "--out", tmp_path / "new"), change


def limited(folder: Path, size: int) -> str:
    """What the demo says in `folder` when no file may grow beyond `size`, which fails as a full disk does."""
    script = (
        "import resource, runpy, sys\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"
        f"sys.argv = ['bpg', 'demo', *{SHORT}]\n"
        "runpy.run_module('bpg', run_name='__main__')\n"
    )
    found = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False)
    assert found.returncode == 1, found.stderr
    assert "Traceback" not in found.stderr
    return found.stderr


def test_a_full_disk_is_named_and_nothing_is_lost(story: tuple[Path, str], tmp_path: Path) -> None:
    early, late = tmp_path / "early", tmp_path / "late"
    early.mkdir()
    assert "the system refused" in limited(early, 50_000)
    assert not list(early.rglob("experts/*.safetensors"))
    shutil.copytree(story[0], late / "bpg-demo")
    (late / "bpg-demo" / "page.html").unlink()
    assert "the system refused" in limited(late, 50_000)
    assert done("demo", *SHORT, cwd=late) == story[1]
    page = (late / "bpg-demo" / "page.html").read_text(encoding="utf-8")
    assert page == (story[0] / "page.html").read_text(encoding="utf-8")


def test_a_folder_that_must_not_be_written_to(tmp_path: Path) -> None:
    """Told before anything is learned. A superuser lays down the right to write everywhere, once all is imported."""
    tmp_path.joinpath("locked").mkdir(mode=0o555)
    script = (
        "import os\n"
        "import bpg.cli.demo as demo\n"
        "from bpg.cli.app import main\n"
        "demo.read_spec(demo.SPEC)\n"
        "os.geteuid() or os.seteuid(65534)\n"
        "raise SystemExit(main(['demo', '--out', 'locked']))\n"
    )
    tmp_path.chmod(0o755)
    found = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 1, found.stderr
    assert "the system refused: [Errno 13] Permission denied" in found.stderr
    assert found.stdout == "", "before the story begins"


def test_a_model_that_somebody_taught_is_kept(story: tuple[Path, str], tmp_path: Path) -> None:
    shutil.copytree(story[0], tmp_path / "bpg-demo")
    model = tmp_path / "bpg-demo" / "model"
    done("forget", model, "google")
    taught = model_files(model)
    found = bpg("demo", *SHORT, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "is not what a demo left there, and stays as it is" in found.stderr
    assert model_files(model) == taught
    (place,) = re.findall(r"The model is in (\S+),", found.stdout)
    assert model_files(tmp_path / place) == model_files(story[0] / "model")


def test_a_terminal_without_colours_or_width(story: tuple[Path, str], tmp_path: Path) -> None:
    shutil.copytree(story[0], tmp_path / "bpg-demo")
    screen, terminal = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "bpg", "demo", *SHORT],
        cwd=tmp_path,
        stdout=terminal,
        stderr=terminal,
        env=environment | {"TERM": "dumb", "NO_COLOR": "1"},
    )
    os.close(terminal)
    told = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while chunk := os.read(screen, 65536):
            told += chunk
    os.close(screen)
    assert process.wait() == 0
    text = told.decode().replace("\r\n", "\n")
    assert not re.search(r"\x1b\[[0-9;]*m", text), "no colours"
    for line in story[1].splitlines():
        assert line in text


def test_what_is_printed_beside_a_bar_stays_on_stdout() -> None:
    """As in `bpg demo > story.txt` on a terminal."""
    script = (
        "from bpg.progress import Progress, progress_bar\n"
        "with progress_bar('google') as show:\n"
        "    show(Progress(1, 2, 1, None, 1.0))\n"
        "    print('a row')\n"
    )
    screen, terminal = pty.openpty()
    found = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=terminal, text=True, check=True
    )
    os.close(terminal)
    assert found.stdout == "a row\n"
    assert b"google" in os.read(screen, 4096)
    os.close(screen)
