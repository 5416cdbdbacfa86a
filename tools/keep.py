"""Copies what finished runs leave for reports, and nothing larger, to a place where it is kept.

    python -m tools.keep RUNS docs/results/emoji/records

Records, times and settings of every finished run and survey, training curves of seed 0. What is there stays.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from bpg.experiments.records import ABOUT, CURVES, MAPS, RECORDS, TIMES, read_run
from bpg.experiments.workshop import SURVEY

SMALL = (ABOUT, RECORDS, TIMES, MAPS)


def keep(runs: Path, place: Path) -> list[Path]:
    """Copy every finished run below `runs` that `place` does not have; those that were copied."""
    copied = []
    for about in sorted(runs.rglob(ABOUT)):
        run = read_run(about.parent)
        goal = place / about.parent.relative_to(runs)
        if not run.finished or (goal / RECORDS).is_file():
            continue
        goal.mkdir(parents=True, exist_ok=True)
        names = (*SMALL, CURVES) if run.seed == 0 else SMALL
        for name in names:
            if (about.parent / name).is_file():
                shutil.copyfile(about.parent / name, goal / name)
        copied.append(goal)
    for survey in sorted(runs.rglob(SURVEY)):
        goal = place / survey.relative_to(runs)
        if not goal.is_file():
            goal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(survey, goal)
            copied.append(goal.parent)
    return copied


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m tools.keep RUNS PLACE")
    for found in keep(Path(sys.argv[1]), Path(sys.argv[2])):
        print(found)
