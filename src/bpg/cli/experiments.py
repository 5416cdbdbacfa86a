"""What `bpg run` and `bpg report` do and print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bpg.backbones.weights import load_backbone
from bpg.cli.app import Common
from bpg.cli.images import open_folder
from bpg.cli.tables import print_json, print_table
from bpg.errors import WrongUse
from bpg.experiments.records import Run, read_runs
from bpg.experiments.runner import prepare, run_cell
from bpg.experiments.spec import cells, data_root, read_spec
from bpg.metrics import average_accuracy, forgetting, mean_accuracy
from bpg.report.blocks import Pictures
from bpg.report.contents import contents
from bpg.report.html import html
from bpg.report.markdown import markdown
from bpg.report.pictures import pictures


def run_spec(common: Common, config: Path, out: Path, changes: list[str]) -> None:
    """Run what `config` says and print a row a run."""
    spec = read_spec(config, changes + ([f"seeds=[{common.seed}]"] if common.seed is not None else []))
    device = common.use_machine()
    found = open_folder(common, data_root(spec.data.root), name=None, test_share=spec.data.test_share)
    b = spec.backbone
    backbone = load_backbone(
        b.source,
        architecture=b.architecture,
        image_size=b.image_size,
        precision=b.precision,
        revision=b.revision,
        device=device,
    )
    with common.bar("images") as show:
        data = prepare(spec, found, show)
    for side in (*(domain["train"] for domain in data.manifest["domains"]), *data.manifest["tests"]):
        for fault in side["unreadable"]:
            common.say(f"unreadable: {fault['path']}: {fault['reason']}")
    runs = []
    try:
        for cell in cells(spec):
            run = run_cell(spec, cell, backbone, data, out, bar=common.bar)
            common.say(f"{cell.title}: {run.folder}")
            runs.append(run)
    except KeyboardInterrupt:
        common.say("The same command goes on from here.")
        raise
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
                "A_T": average_accuracy(counts),
                "mean": mean_accuracy(counts),
                "F_T": forgetting(counts),
                "run": str(run.folder),
            }
        )
    return rows


def write_report(common: Common, folders: Sequence[Path], out: Path | None, *, images: bool, data: Path | None) -> None:
    """Make report.md and report.html of the runs below `folders`."""
    runs = read_runs(folders)
    shown, notes = _pictures(runs[0], data) if images else ([], [])
    page = contents(runs, shown, notes)
    place = out or folders[0]
    place.mkdir(parents=True, exist_ok=True)
    files = {"markdown": place / "report.md", "html": place / "report.html"}
    files["markdown"].write_text(markdown(page), encoding="utf-8")
    files["html"].write_text(html(page), encoding="utf-8")
    warnings = [warning for section in page.sections for warning in section.warnings]
    if common.json:
        print_json({"runs": len(runs), **{kind: str(file) for kind, file in files.items()}, "warnings": warnings})
        return
    for warning in warnings:
        common.say(f"note: {warning}")
    for file in files.values():
        print(file)


def _pictures(run: Run, data: Path | None) -> tuple[list[Pictures], list[str]]:
    try:
        root = data or data_root(run.about["data"]["root"])
    except WrongUse as error:
        return [], [f"The images are not shown: {error.problem}."]
    found = pictures(run, root)
    return found, [] if found else ["The images are not shown: they are not where the run found them."]
