"""What `bpg run` and `bpg report` do and print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bpg.backbones.weights import load_backbone
from bpg.cli.app import Common
from bpg.cli.tables import print_json, print_table
from bpg.data.folder import read_folder
from bpg.experiments.records import Run
from bpg.experiments.runner import prepare, run_cell
from bpg.experiments.spec import cells, data_root, read_spec
from bpg.metrics import average_accuracy, forgetting, mean_accuracy


def run_spec(common: Common, config: Path, out: Path, changes: list[str]) -> None:
    """Run what `config` says and print a row a run."""
    spec = read_spec(config, changes)
    device = common.use_machine()
    found = read_folder(data_root(spec.data.root), test_share=spec.data.test_share)
    for sentence in found.left_out.sentences():
        common.say(f"note: {sentence}")
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
