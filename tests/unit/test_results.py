"""The reports in the docs are what the command makes of the records beside them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bpg.cli.reproduction import items_of, setup_of
from bpg.experiments.grid import Grid
from bpg.experiments.paper import jobs_of
from bpg.experiments.readiness import result_like
from bpg.experiments.records import read_runs
from bpg.report.contents import contents
from bpg.report.html import html
from bpg.report.markdown import markdown
from tests.conftest import ROOT

RESULTS = sorted(folder.parent for folder in (ROOT / "docs" / "results").glob("*/records"))
REPRODUCED = ROOT / "docs" / "results" / "reproduced"
MADE = {  # by the folder: the scale, the items, and whose records
    "demo": ("demo", ["all"], "demo"),
    "small": ("small", ["components", "generality", "tuning", "weighting", "ranks"], "small"),
    "three-seeds": (str(REPRODUCED / "three-seeds.toml"), ["components", "tuning", "weighting", "ranks"], "demo"),
}
MACHINE = re.compile(r"/(home|root|tmp|work|Users)/")


@pytest.mark.parametrize("folder", RESULTS, ids=lambda folder: folder.name)
def test_a_report_of_the_docs_is_as_the_command_wrote_it(folder: Path) -> None:
    runs = read_runs([folder / "records"])
    assert all(run.finished for run in runs)
    page = contents(runs)
    assert (folder / "report.md").read_text(encoding="utf-8") == markdown(page)
    assert (folder / "report.html").read_text(encoding="utf-8") == html(page)


@pytest.mark.parametrize("folder", RESULTS, ids=lambda folder: folder.name)
def test_no_picture_and_no_path_of_a_machine_is_in_the_docs(folder: Path) -> None:
    for file in folder.rglob("*.*"):
        text = file.read_text(encoding="utf-8")
        assert "data:image" not in text.replace("img-src data:", "")
        assert not MACHINE.search(text), file


@pytest.mark.parametrize("name", MADE)
def test_a_reproduction_of_the_docs_is_as_the_command_wrote_it(name: str, tmp_path: Path) -> None:
    scale, items, whose = MADE[name]
    folder, records = REPRODUCED / name, REPRODUCED / whose / "records"
    jobs = jobs_of(items_of(items), setup_of(scale, Grid(tmp_path), records, planned=True))
    gone = [job.title for job in jobs if result_like(job, records) is None]
    assert not gone, "settings have changed since these were run"  # the command would run them, for minutes
    if (folder / "latency.json").is_file():  # a measurement, which would differ
        shutil.copy(folder / "latency.json", tmp_path)
    where = ["--scale", scale, "--runs", str(records), "--out", str(tmp_path)]
    command = [sys.executable, "-m", "bpg", "reproduce", *items, *where, "--threads", "1", "--quiet"]
    away = {name: value for name, value in os.environ.items() if name not in ("BPG_DATA", "BPG_WEIGHTS")}
    alone = away | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}  # neither images nor weights are needed
    subprocess.run(command, check=True, timeout=600, cwd=tmp_path, env=alone)
    drawn = [f"figures/{file.name}" for file in folder.glob("figures/*.svg")]
    assert drawn
    for file in ("report.md", "tables.tex", *drawn):
        assert (tmp_path / file).read_text(encoding="utf-8") == (folder / file).read_text(encoding="utf-8"), file
    for written in folder.rglob("*.*"):
        if written.suffix != ".png":
            assert not MACHINE.search(written.read_text(encoding="utf-8")), written
