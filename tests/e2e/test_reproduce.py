"""`bpg reproduce` and `bpg status` as a user types them, on a scale of toy size: whole, cut, killed, split, wrong."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.command import bpg, document, done, refused
from tests.toy import toy_checkpoint, toy_folder

GRID = """
name = "toy"
[data]
root = "data"
order = ["red", "blue"]
[backbone]
source = "vit"
[methods.bpg]
r0 = 2
s0 = 0.5
max_rank = 8
optimisation = { epochs = EPOCHS, batch_size = 8, lr = 0.02 }
augmentation = { area = [0.9, 1.0], flip = false }
[methods.s_iprompts]
optimisation = { epochs = 2, batch_size = 8, lr = 0.02 }
[methods.ncm]
"""
SCALE = """
note = "toys"
seeds = SEEDS
ranks = [2, 4]
r0s = [2]
[streams.domainnet]
config = "grid.toml"
note = "toys stand in for DomainNet"
"""
TOY = ("--scale", "toy.toml", "--threads", 1)
SOME = ("weighting", "matrices", "generality", *TOY)


def place(folder: Path, epochs: int = 2, seeds: Sequence[int] = (0, 1)) -> Path:
    """A folder with a scale, its data and its weights."""
    toy_folder(folder / "data", count=12)
    toy_checkpoint(folder / "vit")
    (folder / "grid.toml").write_text(GRID.replace("EPOCHS", str(epochs)))
    (folder / "toy.toml").write_text(SCALE.replace("SEEDS", str(list(seeds))))
    return folder


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return place(tmp_path)


def kept(folder: Path) -> dict[str, bytes]:
    """What must not depend on who did the jobs, or how often they were stopped: records and models."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for name in ("records.jsonl", "model.json", "*.safetensors")
        for file in folder.rglob(name)
    }


def test_every_table_and_figure_comes_of_one_command_and_nothing_runs_twice(tmp_path: Path) -> None:
    here = place(tmp_path, 1, [0])
    done("reproduce", "all", *TOY, cwd=here)
    out = here / "reproduced" / "toy"
    page = (out / "report.md").read_text()
    for title in (
        "Results on DomainNet",
        "Ablation of the weights",
        "Parameter budget",
        "Time to answer",
        "Motivation",
    ):
        assert f"## {title}" in page
    for figure in ("motivation", "ranks", "tsne"):
        assert all((out / "figures" / f"{figure}{end}").is_file() for end in (".svg", ".png", "-dark.svg", "-dark.png"))
    assert (out / "tables" / "weighting.tex").is_file()
    assert "image/svg" in (out / "report.html").read_text()
    state = document("status", "reproduced/toy", cwd=here)
    assert set(state["counts"]) == {"done"}
    named = re.findall(r"toy/([\w.=-]+-seed\d-[0-9a-f]{12})", page)
    assert named
    assert all((here / "runs" / "toy" / name / "records.jsonl").is_file() for name in named)
    before = {file: file.stat().st_mtime_ns for file in (here / "runs").rglob("records.jsonl")}
    done("reproduce", "all", *TOY, cwd=here)
    assert {file: file.stat().st_mtime_ns for file in (here / "runs").rglob("records.jsonl")} == before
    assert (out / "report.md").read_text() == page


def test_runs_that_bpg_run_left_are_taken(here: Path) -> None:
    done("run", "grid.toml", "--set", "seeds=[0,1]", "--threads", 1, cwd=here)
    before = kept(here / "runs")
    done("reproduce", "generality", *TOY, cwd=here)
    assert kept(here / "runs") == before


def test_a_grid_is_cut_by_pattern_and_number(here: Path) -> None:
    done("reproduce", *SOME, "--only", "s_iprompts, seed 1", cwd=here)
    assert len(list((here / "runs" / "toy").glob("*-seed*"))) == 1
    done("reproduce", *SOME, "--limit", 2, cwd=here)
    assert len(list((here / "runs" / "toy").glob("*-seed*"))) <= 3
    page = (here / "reproduced" / "toy" / "report.md").read_text()
    assert "Ablation of the weights" in page


def test_a_plan_runs_nothing(here: Path) -> None:
    plan = document("reproduce", "all", *TOY, "--plan", cwd=here)
    (row,) = plan["streams"]
    assert row["jobs"] > 10
    assert row["done"] == 0
    assert row["hours here"] > 0
    assert row["GB to train"] > 0
    assert not (here / "runs").exists()
    assert not (here / "reproduced").exists()
    rows = document("reproduce", "list", *TOY, cwd=here)
    assert {row["item"] for row in rows} >= {"components", "ranks", "main-core50"}


def test_killed_processes_go_on_to_the_same_bytes(tmp_path: Path) -> None:
    here = place(tmp_path, 12)
    command = [sys.executable, "-m", "bpg", "reproduce", *map(str, SOME), "--processes", "2", "-q"]
    work = subprocess.Popen(command, cwd=here, start_new_session=True)
    wait_for(lambda: any((here / "runs").rglob("curves.jsonl")), work)
    os.killpg(work.pid, signal.SIGKILL)
    work.wait()
    assert "stopped" in document("status", "reproduced/toy", cwd=here)["counts"]
    done("reproduce", *SOME, cwd=here)
    assert set(document("status", "reproduced/toy", cwd=here)["counts"]) == {"done"}
    done("reproduce", *SOME, "--runs", "whole", "--out", "other", cwd=here)
    assert kept(here / "runs") == kept(here / "whole")


def test_domains_that_are_learned_apart_give_the_same_bytes(here: Path) -> None:
    done("reproduce", "weighting", *TOY, "--split", "--processes", 2, cwd=here)
    done("reproduce", "weighting", *TOY, "--runs", "whole", "--out", "o", cwd=here)
    assert kept(here / "runs") == kept(here / "whole")
    jobs = document("status", "reproduced/toy", cwd=here)["jobs"]
    assert sum("domain " in job["job"] for job in jobs) == 4


def test_a_job_that_fails_says_why_and_the_others_are_done(here: Path) -> None:
    text = (here / "grid.toml").read_text()
    (here / "grid.toml").write_text(
        text.replace("[methods.s_iprompts]", "[methods.s_iprompts]\nprompts = 100000000000")
    )
    found = bpg("reproduce", *SOME, cwd=here)
    assert found.returncode == 1
    assert "2 of 4 jobs failed" in found.stderr
    state = document("status", "reproduced/toy", cwd=here)
    assert state["counts"] == {"done": 2, "failed": 2}
    assert all(job["reason"] for job in state["jobs"] if job["state"] == "failed")
    assert (here / "reproduced" / "toy" / "report.md").is_file()


def test_what_is_not_there_is_left_out_and_told(here: Path) -> None:
    offline = {"HF_HUB_OFFLINE": "1", "BPG_WEIGHTS": str(here), "BPG_DATA": str(here)}
    found = bpg("reproduce", "parameters", "main-cddb", "--scale", "paper", cwd=here, **offline)
    assert found.returncode == 0, found.stderr
    assert "the weights of vit_base_patch16_224.augreg_in21k_ft_in1k are not here" in found.stderr
    page = (here / "reproduced" / "paper" / "report.md").read_text()
    assert "| infograph | 0.124 | 390 | 390 |" in page  # follows from printed numbers alone
    assert "29.26 is exactly 29.267" in page
    assert re.search(r"\| DyTox .*\| 86\.21 .*not implemented yet", page)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("reproduce", "wieghting"), "weighting"),
        (("reproduce", "all", "--scale", "tiny"), "paper"),
        (("reproduce", "all", "--engine", "rays"), "ray"),
        (("reproduce", "weighting", "--scale", "toy.toml", "--only", "("), "regular expression"),
        (("status", "nowhere"), "bpg reproduce"),
    ],
)
def test_wrong_words_are_told(here: Path, arguments: tuple[str, ...], hint: str) -> None:
    assert hint in refused(*arguments, cwd=here)


def wait_for(seen: Callable[[], object], work: subprocess.Popen[bytes], seconds: float = 120) -> None:
    """Until `seen()`; fails where the process ends before."""
    end = time.monotonic() + seconds
    while not seen():
        assert work.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < end
        time.sleep(0.02)
