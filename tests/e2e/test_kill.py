"""Killed at any moment, the same command goes on to the same bytes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT

# The command: learn what is not learned yet, save after each domain. It says where it is, for the killer to aim at.
LEARN = """
import os, sys
from pathlib import Path
folder, data = Path(sys.argv[1]), Path(sys.argv[2])
(folder / f"pid{os.environ.get('RANK', '0')}").write_text(str(os.getpid()))
from bpg import BPG
from bpg.store import load_state
from tests.toy import FAST, GENTLE, toy_backbone, toy_stream
stream = toy_stream(data)
model = BPG(toy_backbone(), rank=4, optimisation=FAST | {"epochs": 30}, augmentation=GENTLE,
            scratch=folder / "scratch", checkpoint_seconds=0)
if (folder / "model" / "model.json").exists():
    model.load_state(load_state(folder / "model"))
(folder / "begun").touch()
for domain in stream.domains:
    if domain.name not in model.domains:
        model.learn(domain)
        model.save(folder / "model", event=f"learned {domain.name}")
"""


def start(folder: Path, data: Path, ranks: int) -> subprocess.Popen[bytes]:
    script = folder / "learn.py"
    script.write_text(LEARN)
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
        "BPG_CACHE": str(folder / "cache"),
    }
    command = [sys.executable, *several, str(script), str(folder), str(data)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def model_bytes(folder: Path) -> dict[str, bytes]:
    files = [folder / "model" / "model.json", *sorted((folder / "model" / "experts").iterdir())]
    return {file.name: file.read_bytes() for file in files}


def undisturbed(folder: Path, data: Path, ranks: int) -> tuple[dict[str, bytes], float]:
    """The bytes of a run nobody disturbs, and how long its work takes."""
    folder.mkdir()
    process = start(folder, data, ranks)
    while not (folder / "begun").exists():
        assert process.poll() is None
        time.sleep(0.005)
    began = time.monotonic()
    assert process.wait(timeout=300) == 0
    return model_bytes(folder), time.monotonic() - began


def disturbed(folder: Path, data: Path, ranks: int, kills: int, span: float, draw: random.Random) -> int:
    """Run to the end, killing up to `kills` times at random moments of `span` seconds; how often it was killed."""
    folder.mkdir()
    done = 0
    while True:
        for mark in ("begun", "pid0", "pid1"):
            (folder / mark).unlink(missing_ok=True)
        process = start(folder, data, ranks)
        while not (folder / "begun").exists() and process.poll() is None:
            time.sleep(0.005)
        if done < kills:
            time.sleep(draw.uniform(0, span))
            victim = int((folder / f"pid{draw.randrange(ranks)}").read_text())
            try:
                os.kill(victim, signal.SIGKILL)
                done += process.wait(timeout=300) != 0
            except ProcessLookupError:
                pass  # it was over before
        if process.wait(timeout=300) == 0:
            return done


def kill_and_compare(tmp_path: Path, *, ranks: int, kills: int, a_run: int, seed: int) -> None:
    """As many runs as `kills` take, `a_run` at most in each: every one ends with the bytes of an undisturbed run."""
    data = tmp_path / "data"
    wanted, span = undisturbed(tmp_path / "undisturbed", data, ranks)
    draw, done, run = random.Random(seed), 0, 0
    while done < kills:
        folder = tmp_path / f"run{run}"
        done += disturbed(folder, data, ranks, min(a_run, kills - done), 0.5 * span, draw)
        run += 1
        assert model_bytes(folder) == wanted
        assert not list((folder / "scratch").glob("learn-*"))
        assert run <= kills, "the runs are over before they can be killed"


def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    kill_and_compare(tmp_path, ranks=1, kills=3, a_run=3, seed=0)


@pytest.mark.slow
def test_twenty_kills_over_several_runs(tmp_path: Path) -> None:
    kill_and_compare(tmp_path, ranks=1, kills=20, a_run=5, seed=1)


@pytest.mark.slow
def test_ten_kills_of_either_rank(tmp_path: Path) -> None:
    kill_and_compare(tmp_path, ranks=2, kills=10, a_run=5, seed=2)
