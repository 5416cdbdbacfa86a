"""`bpg reproduce --engine ray` on a real Ray of this machine with two workers: killed, split, out of reach."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.command import document, done, refused
from tests.e2e.test_reproduce import TOY, kept, notes_of, place, start, wait_for

pytest.importorskip("ray")
BPG = ("weighting", *TOY)
ON_RAY = (*BPG, "--engine", "ray")


def notes(here: Path) -> dict[str, dict[str, Any]]:
    """What is written of the jobs, by title."""
    return {note["title"]: note for note in notes_of(here)}


def killed_in_the_middle(here: Path, *more: str) -> None:
    """Run on two workers, of which the last to begin is killed while it trains."""
    work = start(here, *ON_RAY, "--processes", 2, *more)
    wait_for(lambda: len(curves(here)) == 2, work)
    last = max(curves(here), key=lambda file: file.stat().st_mtime).parent
    stage = f"domain {last.name} of " if "parts" in last.parts else ""
    seed = next(part for part in last.parts if "-seed" in part).split("-seed")[1][0]
    begun = notes(here)
    victim = int(begun[f"toy: {stage}bpg, seed {seed}"]["process"])
    assert len({note["process"] for note in begun.values()}) == 2
    os.kill(victim, signal.SIGKILL)
    out, err = work.communicate(timeout=120)
    assert work.returncode == 0, err
    assert b"report.md" in out
    assert all(line.startswith((b"0 of", b"done in", b"1 tables")) for line in err.splitlines()), err  # Ray is quiet
    assert victim not in {note["process"] for note in notes(here).values()}


def curves(here: Path) -> list[Path]:
    return list((here / "runs").rglob("curves.jsonl"))


def same_as_in_one_process(here: Path) -> None:
    done("reproduce", *BPG, "--runs", "whole", "--out", "other", cwd=here)
    assert kept(here / "runs") == kept(here / "whole") != {}


def test_a_killed_worker_changes_no_byte(tmp_path: Path) -> None:
    here = place(tmp_path, 15)
    killed_in_the_middle(here)
    same_as_in_one_process(here)
    assert document("status", "reproduced/toy", cwd=here)["counts"] == {"done": 2}


def test_domains_train_on_different_workers_and_merge_to_the_same_bytes(tmp_path: Path) -> None:
    here = place(tmp_path, 15, [0])
    killed_in_the_middle(here, "--split")
    same_as_in_one_process(here)
    assert document("status", "reproduced/toy", cwd=here)["counts"] == {"done": 3}


def test_a_cluster_out_of_reach_and_one_too_small_are_told(tmp_path: Path) -> None:
    here = place(tmp_path)
    began = time.monotonic()
    assert "$RAY_ADDRESS" in refused("reproduce", *ON_RAY, cwd=here, code=1, RAY_ADDRESS="127.0.0.1:1")
    assert time.monotonic() - began < 30
    assert "at most" in refused("reproduce", *ON_RAY, "--gpus", 64, cwd=here)
