"""What `bpg run` and `bpg report` do and print."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bpg.cli.app import Common
from bpg.cli.images import check_place, tell_left_out, tell_unreadable
from bpg.cli.tables import print_json, print_table
from bpg.data.verify import sizes_off
from bpg.experiments.manifest import find, prepare
from bpg.experiments.records import Run, read_runs
from bpg.experiments.runner import run_cell
from bpg.experiments.spec import cells, read_spec
from bpg.experiments.workshop import backbone_of
from bpg.metrics import average_accuracy, forgetting, mean_accuracy
from bpg.ranks import rank_and_ranks
from bpg.registry import DATASETS
from bpg.report.contents import contents
from bpg.report.html import html
from bpg.report.markdown import markdown
from bpg.report.pictures import look_at


def run_spec(common: Common, config: Path, out: Path, changes: list[str]) -> None:
    """Run what `config` says and print a row a run."""
    spec = read_spec(config, changes + ([f"seeds=[{common.seed}]"] if common.seed is not None else []))
    check_place(out, "runs")
    first = rank_and_ranks()[0] == 0
    if not first:  # of several ranks, one tells what all do
        common = replace(common, quiet=True)
    found = find(spec.data)
    tell_left_out(common, found)
    backbone = backbone_of(spec, common.use_machine())
    with common.bar("images") as show:
        data = prepare(spec, found, show)
    tell_unreadable(common, data.manifest)
    if spec.data.benchmark is not None and (off := sizes_off(DATASETS[spec.data.benchmark], found)):
        common.say(f"note: {spec.data.benchmark} is not as published, {len(off)} sets differ in size, such as {off[0]}")
    variant = f" ({found.variant})" if found.variant is not None else ""
    common.say(f"domains in this order{variant}: {', '.join(domain.name for domain in data.stream.domains)}")
    runs = []
    try:
        for cell in cells(spec):
            run = run_cell(spec, cell, backbone, data, out, bar=common.bar)
            common.say(f"{cell.title}: {run.folder}")
            runs.append(run)
    except KeyboardInterrupt:
        common.say("The same command goes on from here.")
        raise
    if not first:
        return
    rows = [row for run in runs for row in rows_of(run)]
    if common.json:
        print_json(rows)
    else:
        print_table(rows, columns=("label", "seed", "way", "A_T", "mean", "F_T"))
        common.say(f"bpg report {out / spec.name} makes a page of it.")


def rows_of(run: Run) -> list[dict[str, Any]]:
    """A row for each way of answering."""
    rows = []
    for way in run.ways:
        counts = run.counts(way)
        rows.append(
            {
                "label": run.label,
                "seed": run.seed,
                "way": way,
                "A_T": _defined(average_accuracy(counts)),
                "mean": _defined(mean_accuracy(counts)),
                "F_T": _defined(forgetting(counts)),
                "run": str(run.folder),
            }
        )
    return rows


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value


def write_report(common: Common, folders: Sequence[Path], out: Path | None, *, images: bool, data: Path | None) -> None:
    """Make report.md and report.html of the runs below `folders`."""
    runs = read_runs(folders)
    page = contents(runs, look_at(data) if images else None)
    place = out or folders[0]
    place.mkdir(parents=True, exist_ok=True)
    files = {"markdown": place / "report.md", "html": place / "report.html"}
    for file, text in zip(files.values(), (markdown(page), html(page)), strict=True):
        file.write_text(text, encoding="utf-8", errors="backslashreplace")  # a name may be no UTF-8
    warnings = [warning for section in page.sections for warning in section.warnings]
    if common.json:
        print_json({"runs": len(runs), **{kind: str(file) for kind, file in files.items()}, "warnings": warnings})
        return
    for warning in warnings:
        common.say(f"note: {warning}")
    for file in files.values():
        print(file)
