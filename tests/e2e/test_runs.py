"""`bpg run` and `bpg report` as a user types them: stopped, killed, wrong, and right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.command import bpg, document, done, refused
from tests.toy import toy_checkpoint, toy_folder

CONFIG = """
name = "toy"
seeds = [0]
[data]
root = "data"
order = ["red", "blue"]
[backbone]
source = "vit"
[methods.bpg]
rank = 4
optimisation = { epochs = 40, batch_size = 8, lr = 0.02 }
augmentation = { area = [0.9, 1.0], flip = false }
[methods.finetune]
optimisation = { epochs = 20, batch_size = 8, lr = 0.01 }
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a config, its data and its weights."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    toy_folder(tmp_path / "data", count=12)
    toy_checkpoint(tmp_path / "vit")
    (tmp_path / "grid.toml").write_text(CONFIG)
    return tmp_path


def start(here: Path, out: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bpg", "run", "grid.toml", "--out", out, "--threads", "1"]
    return subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def steps_done(here: Path, out: str) -> int:
    return sum(len(file.read_bytes().splitlines()) for file in (here / out).rglob("curves.jsonl"))


def kept(folder: Path) -> dict[str, bytes]:
    """What must not depend on interruptions: records, curves once each, models."""
    found = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("records.jsonl")}
    for name in ("model.json", "*.safetensors"):
        found |= {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob(name)}
    for file in folder.rglob("curves.jsonl"):
        found[str(file.relative_to(folder))] = b"\n".join(sorted(set(file.read_bytes().splitlines())))
    return found


def test_a_grid_that_is_stopped_and_killed_ends_with_the_same_records(here: Path) -> None:
    rows = document("run", "grid.toml", "--out", "whole", "--threads", 1, cwd=here)
    assert [(row["label"], row["way"]) for row in rows] == [
        ("bpg", "soft"), ("bpg", "calibrated"), ("bpg", "hard"), ("bpg", "oracle"), ("finetune", "own"),
    ]  # fmt: skip
    assert rows[0]["A_T"] > 60
    for stop, number in ((signal.SIGINT, 20), (signal.SIGKILL, 190), (signal.SIGKILL, 260), (signal.SIGKILL, 330)):
        process = start(here, "disturbed")
        while steps_done(here, "disturbed") < number and process.poll() is None:
            time.sleep(0.002)
        os.kill(process.pid, stop)
        _, said = process.communicate(timeout=60)
        if stop == signal.SIGINT:
            assert process.returncode == 130
            assert "The same command goes on from here." in said
            assert "Traceback" not in said
        else:
            assert process.returncode == -signal.SIGKILL
    done("run", "grid.toml", "--out", "disturbed", "--threads", 1, cwd=here)
    assert kept(here / "disturbed") == kept(here / "whole")
    assert not list((here / "disturbed").rglob("scratch"))

    files = document("report", "disturbed", cwd=here)
    assert files["runs"] == 2
    assert (here / files["markdown"]).read_text().startswith("# bpg: toy\n")
    assert "data:image/jpeg" in (here / files["html"]).read_text()
    out = done("report", "disturbed", "--no-images", "--out", "page", cwd=here).split()
    assert [Path(name).name for name in out] == ["report.md", "report.html"]
    assert "data:image/jpeg" not in (here / "page" / "report.html").read_text()
    (here / "data").rename(here / "moved")
    assert "The images of data are not shown" in _page(here, "report", "disturbed")
    assert "data:image/jpeg" in _page(here, "report", "disturbed", "--data", "moved")


def _page(here: Path, *arguments: str) -> str:
    return (here / str(document(*arguments, cwd=here)["html"])).read_text()


def test_what_cannot_be_run_is_refused_before_anything_is_done(here: Path) -> None:
    said = refused("run", "grid.toml", "--set", "methods.bpg.rnk=4", "--set", "data.rot=x", cwd=here)
    assert "2 wrong settings in grid.toml" in said
    assert "methods.bpg.rnk: no such setting, did you mean rank?" in said
    assert "data.rot: no such setting, did you mean root?" in said
    assert "cannot read gone.toml" in refused("run", "gone.toml", cwd=here)
    assert "there is no data at nowhere" in refused("run", "grid.toml", "--set", "data.root=nowhere", cwd=here)
    said = refused("run", "grid.toml", "--set", 'data.order=["rot"]', cwd=here)
    assert "no domain is called 'rot'" in said
    assert "there are no runs" in refused("report", "data", cwd=here)
    (here / "data" / "red" / "bar" / "zz.png").write_bytes(b"")
    assert "cannot be read" in refused("run", "grid.toml", "--strict", cwd=here, code=1)
    assert not (here / "runs").exists()
    found = bpg("run", "grid.toml", "--seed", 4, "--set", "methods.bpg.optimisation.epochs=1", "--json",
                "--set", 'data.order=["red"]', "--set", "methods.finetune.optimisation.epochs=1", cwd=here)  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert "unreadable: red/bar/zz.png: 0 bytes" in found.stderr
    assert "note: 1 images cannot be read" in found.stderr
    rows = json.loads(found.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert {(row["seed"], row["F_T"]) for row in rows} == {(4, None)}  # one domain: nothing to forget
