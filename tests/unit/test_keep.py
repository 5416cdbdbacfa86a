"""`tools.keep` takes what reports are made of, of finished runs alone."""

from __future__ import annotations

from pathlib import Path

from tools.keep import keep

from bpg.experiments.paper import run
from tests.unit.test_paper import SOFT
from tests.unit.test_reproduction import setup, write_run


def test_records_of_finished_runs_are_kept_and_models_are_not(tmp_path: Path) -> None:
    runs, place = tmp_path / "runs", tmp_path / "kept"
    (runs / "domainnet").mkdir(parents=True)
    for seed in (0, 1):
        folder = runs / "domainnet" / f"bpg-seed{seed}"
        write_run(folder, run(setup("paper").first, "bpg", seed), {"soft": SOFT})
        (folder / "curves.jsonl").write_text("{}\n")
        (folder / "model").mkdir()
    unfinished = runs / "domainnet" / "bpg-seed1" / "records.jsonl"
    unfinished.write_text(unfinished.read_text().splitlines()[0])
    assert keep(runs, place) == [place / "domainnet" / "bpg-seed0"]
    assert {file.name for file in place.rglob("*.*")} == {"run.json", "records.jsonl", "curves.jsonl"}
    assert keep(runs, place) == []  # what is there stays
