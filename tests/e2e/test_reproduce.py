"""`bpg reproduce` and `bpg status` as a user types them, on a scale of toy size: whole, cut, killed, split, wrong."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from bpg.experiments.cost import GPUS
from tests.command import bpg, document, done, refused
from tests.conftest import ROOT
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
drawn = [2, 4]
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
    plan = ("reproduce", "all", *TOY, "--plan", "--out", "elsewhere")
    (row,) = document(*plan, cwd=here)["streams"]
    assert row["done"] == row["jobs"]  # surveys, too
    (here / "grid.toml").write_text((here / "grid.toml").read_text().replace('"red", "blue"', '"blue", "red"'))
    other = document(*plan, cwd=here)
    assert other["streams"][0]["done"] == 0
    assert other["to_follow"] == 1  # a uniform r for the one r_0, of the one seed


def test_runs_that_bpg_run_left_are_taken(here: Path) -> None:
    done("run", "grid.toml", "--set", "seeds=[0,1]", "--threads", 1, cwd=here)
    (planned,) = document("reproduce", "generality", *TOY, "--plan", cwd=here)["streams"]
    assert planned["done"] == planned["jobs"] == 2
    assert planned["hours here"] == 0
    more = document("reproduce", "main-domainnet", *TOY, "--plan", cwd=here)["streams"][0]
    assert more["done"] == 4  # BPG is asked for more ways to answer there than it was run with
    (here / "grid.toml").write_text(GRID.replace("EPOCHS", "3").replace("epochs = 2", "epochs = 3"))
    assert document("reproduce", "generality", *TOY, "--plan", cwd=here)["streams"][0]["done"] == 0
    (here / "grid.toml").write_text(GRID.replace("EPOCHS", "2"))
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


def test_what_is_done_stands_in_the_report_whatever_is_asked_for_now(here: Path) -> None:
    done("reproduce", "main-domainnet", "--scale", "toy.toml", "--only", "s_iprompts, seed 0", cwd=here)
    done("reproduce", "main-domainnet", "--scale", "toy.toml", "--only", "ncm, seed 0", cwd=here)
    page = (here / "reproduced" / "toy" / "report.md").read_text()
    assert re.search(r"\| S-iPrompts \| vit .*\| 1 \|  \|", page)
    assert "| ncm |" in page
    shutil.copy(here / "toy.toml", here / "demo.toml")
    done("reproduce", "parameters", "--scale", "demo.toml", cwd=here)
    assert {place.name for place in (here / "reproduced").iterdir()} == {"toy", "demo.toml"}
    assert "list stands alone" in refused("reproduce", "list", "all", cwd=here)
    assert "seeds" in refused("reproduce", "all", "--seed", 1, cwd=here)


def test_a_limit_is_one(here: Path) -> None:
    done("reproduce", "ranks", "--scale", "toy.toml", "--limit", 2, cwd=here)
    assert len(list((here / "runs" / "toy").glob("*-seed*"))) == 2


def test_what_is_said_of_the_jobs_can_be_typed(here: Path) -> None:
    said = bpg("reproduce", "weighting", *TOY, "--only", "seed 0", "--runs", "other runs", cwd=here).stderr
    (typed,) = re.findall("`bpg (status [^`]+)`", said)
    assert document(*shlex.split(typed), cwd=here)["counts"] == {"done": 1}


def test_a_plan_runs_nothing(here: Path) -> None:
    plan = document("reproduce", "all", *TOY, "--plan", cwd=here)
    (row,) = plan["streams"]
    assert row["jobs"] > 10
    assert row["done"] == 0
    assert row["hours here"] > 0
    assert row["GB to train"] > 0
    assert row["fits"] == [gpu.name for gpu in GPUS]  # a toy fits everywhere
    assert "every GPU" in bpg("reproduce", "all", *TOY, "--plan", cwd=here).stdout
    assert not (here / "runs").exists()
    assert not (here / "reproduced").exists()
    rows = document("reproduce", "list", *TOY, cwd=here)
    assert {row["item"] for row in rows} >= {"components", "ranks", "main-core50"}


def start(here: Path, *arguments: object) -> subprocess.Popen[bytes]:
    """`bpg reproduce` as a shell starts it: a group of processes."""
    command = [sys.executable, "-m", "bpg", "reproduce", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}  # workers find it, too
    return subprocess.Popen(command, cwd=here, env=environment, start_new_session=True, stdout=PIPE, stderr=PIPE)


def notes_of(here: Path) -> list[dict[str, Any]]:
    """What is written of the jobs that were begun."""
    return [json.loads(file.read_text()) for file in (here / "reproduced" / "toy" / "jobs").glob("*.json")]


def trains(here: Path) -> bool:
    return any((here / "runs").rglob("curves.jsonl"))


def test_killed_processes_go_on_to_the_same_bytes(tmp_path: Path) -> None:
    here = place(tmp_path, 12)
    work = start(here, *SOME, "--processes", 2)
    wait_for(lambda: trains(here), work)
    os.killpg(work.pid, signal.SIGKILL)
    work.communicate()
    assert "stopped" in document("status", "reproduced/toy", cwd=here)["counts"]
    done("reproduce", *SOME, cwd=here)
    assert set(document("status", "reproduced/toy", cwd=here)["counts"]) == {"done"}
    done("reproduce", *SOME, "--runs", "whole", "--out", "other", cwd=here)
    assert kept(here / "runs") == kept(here / "whole")


def test_an_interrupt_ends_every_process_and_says_how_to_go_on(tmp_path: Path) -> None:
    here = place(tmp_path, 1000)
    work = start(here, "weighting", *TOY, "--processes", 2)
    wait_for(lambda: trains(here), work)
    state = document("status", "reproduced/toy", cwd=here)
    assert all(job["seconds"] > 0 for job in state["jobs"] if job["state"] == "running")
    assert state["counts"]["running"] >= 1
    os.killpg(work.pid, signal.SIGINT)  # what Ctrl-C does
    _, err = work.communicate(timeout=30)
    assert work.returncode == 130
    assert b"The same command goes on from here." in err
    assert b"Traceback" not in err
    for note in notes_of(here):
        with pytest.raises(ProcessLookupError):
            os.kill(note["process"], 0)


def test_two_commands_share_the_jobs_and_one_outlives_its_worker(tmp_path: Path) -> None:
    here = place(tmp_path, 12)
    several, one = start(here, "weighting", *TOY, "--processes", 2), start(here, "weighting", *TOY)
    wait_for(lambda: trains(here), several)
    workers = {note["process"] for note in notes_of(here)} - {one.pid}
    for worker in list(workers)[:1]:
        os.kill(worker, signal.SIGKILL)
    for work in (several, one):
        _, err = work.communicate(timeout=100)
        assert work.returncode == 0, err
    learned = [file.read_text().count('"what": "learn"') for file in (here / "runs").rglob("times.jsonl")]
    assert learned == [2, 2]  # each domain of each run once


def test_records_alone_are_enough_but_for_maps(tmp_path: Path) -> None:
    here = place(tmp_path, 1, [0])
    done("reproduce", "tsne", *TOY, cwd=here)
    first, second = sorted((here / "runs" / "toy").glob("*-seed*"))
    for run in (first, second):
        shutil.rmtree(run / "model")
    (first / "maps.json").unlink()
    before = {file: file.read_bytes() for file in (here / "runs").rglob("*.json*")}
    done("reproduce", "tsne", *TOY, cwd=here)
    shutil.rmtree(here / "reproduced")
    said = bpg("reproduce", "tsne", *TOY, cwd=here)
    assert said.returncode == 0, said.stderr
    assert "records and no model" in said.stderr
    assert "Maps are missing of r = 2" in (here / "reproduced" / "toy" / "report.md").read_text()
    assert {file: file.read_bytes() for file in (here / "runs").rglob("*.json*")} == before
    assert not (first / "model").exists()


def test_tensorboard_reads_what_is_tracked(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    here = place(tmp_path, 2, [0])
    done("reproduce", "weighting", *TOY, "--track", "logs", cwd=here)
    (run,) = (here / "runs" / "toy").glob("bpg-*")
    read = events.EventAccumulator(str(here / "logs" / "toy" / run.name)).Reload()
    curves = [json.loads(line) for line in (run / "curves.jsonl").read_text().splitlines()]
    wanted = [(line["step"], pytest.approx(line["loss"])) for line in curves if line["domain"] == "red"]
    assert [(event.step, event.value) for event in read.Scalars("loss/red")] == wanted
    records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    for record, event in zip(records, read.Scalars("A_t/soft"), strict=True):
        tests = record["ways"]["soft"]
        share = 100 * sum(test["correct"] for test in tests) / sum(test["total"] for test in tests)
        assert (event.step, event.value) == (record["stage"], pytest.approx(share))


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
    assert "failed in " in found.stderr
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
        (("reproduce", "list", "--plan"), "list stands alone"),
        (("status", "nowhere"), "bpg reproduce"),
    ],
)
def test_wrong_words_are_told(here: Path, arguments: tuple[str, ...], hint: str) -> None:
    assert hint in refused(*arguments, cwd=here)


def test_a_place_that_cannot_be_written_is_told_before_anything_runs(here: Path) -> None:
    assert "grid.toml" in refused("reproduce", *SOME, "--out", "grid.toml/below", cwd=here)
    assert not (here / "runs").exists()


def test_ranks_of_torchrun_are_sent_elsewhere(here: Path) -> None:
    found = bpg("reproduce", *SOME, cwd=here, WORLD_SIZE="2", RANK="0")
    assert found.returncode == 2
    assert "bpg run" in found.stderr


def test_only_that_fits_nothing_is_told(here: Path) -> None:
    found = bpg("reproduce", *SOME, "--only", "no such run", "--plan", cwd=here)
    assert found.returncode == 0, found.stderr
    assert "fits none of" in found.stderr


def wait_for(seen: Callable[[], object], work: subprocess.Popen[bytes], seconds: float = 120) -> None:
    """Until `seen()`; fails where the process ends before."""
    end = time.monotonic() + seconds
    while not seen():
        assert work.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < end
        time.sleep(0.02)
