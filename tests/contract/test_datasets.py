"""What every registered benchmark promises."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bpg.data.benchmark import Benchmark
from bpg.data.folder import Found
from bpg.data.samples import SAMPLES
from bpg.data.verify import verify
from bpg.errors import BPGError
from bpg.experiments.records import read_runs
from bpg.registry import DATASETS
from bpg.report.blocks import Table
from bpg.report.contents import contents
from tests.command import bpg, document, done
from tests.toy import toy_clip

SHIPPED = [name for name in DATASETS if DATASETS[name].shipped is not None]


@pytest.fixture(scope="module")
def found_of() -> Callable[[str], Found]:
    return lambda name: DATASETS[name].find(None)


@pytest.mark.parametrize("name", DATASETS)
def test_it_says_what_it_is(name: str) -> None:
    benchmark: Benchmark = DATASETS[name]
    assert benchmark.name == name
    assert benchmark.title
    assert benchmark.licence
    assert benchmark.source
    assert not set(benchmark.order) & set(benchmark.unseen)
    for order in benchmark.orders.values():
        assert sorted(order) == sorted(benchmark.order)


@pytest.mark.parametrize("name", DATASETS)
def test_a_folder_that_does_not_hold_it_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BPGError):
        DATASETS[name].find(tmp_path)


@pytest.mark.parametrize("name", SHIPPED)
def test_it_is_as_published_and_no_image_is_on_both_sides(name: str, found_of: Callable[[str], Found]) -> None:
    benchmark: Benchmark = DATASETS[name]
    found = verify(benchmark, found_of(name))
    assert found.faults(duplicates=False) == []
    assert sorted(side.name for side in found.sets) == sorted(benchmark.sets)
    stream = benchmark.stream(found_of(name))
    assert tuple(domain.name for domain in stream.domains) == benchmark.order
    assert [test.domain for test in stream.tests] == ([None] * len(benchmark.unseen) or list(benchmark.order))
    learned = {path for domain in stream.domains for path in domain.train.paths}
    assert learned.isdisjoint(path for test in stream.tests for path in test.images.paths)
    assert {domain.train.classes for domain in stream.domains} == {test.images.classes for test in stream.tests}


@pytest.mark.parametrize("name", SHIPPED)
def test_it_runs_and_is_reported(name: str, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        f'name = "tiny"\n[data]\nbenchmark = "{name}"\nper_class = 2\ntest_per_class = 1\n'
        '[backbone]\nsource = "bpg-vit-nano"\n'
        "[methods.bpg]\nrank = 2\noptimisation = { epochs = 1, batch_size = 8 }\n"
    )
    (soft, *_), benchmark = document("run", config, cwd=tmp_path), DATASETS[name]
    assert soft["label"] == "bpg"
    assert 0 <= soft["A_T"] <= 100
    done("report", "runs/tiny", cwd=tmp_path)
    page = (tmp_path / "runs" / "tiny" / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/jpeg") > 12 * len(benchmark.unseen or benchmark.order)
    for title in ("Accuracy matrices", "Some answers", "Where the domains lie"):
        assert f"<h2>{title}</h2>" in page
    again = bpg("report", "runs/tiny", "--out", "again", cwd=tmp_path)
    assert again.returncode == 0
    assert "left out" not in again.stderr
    assert (tmp_path / "again" / "report.html").read_text(encoding="utf-8") == page


def records_of(
    folder: Path, data: Path, name: str, backbone: str | Path, head: str
) -> tuple[list[Any], dict[str, Any]]:
    """What `bpg run` leaves of a benchmark at `data`: its records, and the manifest of its data."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(
        f'name = "tiny"\n[data]\nbenchmark = "{name}"\nroot = "{data}"\n[backbone]\nsource = "{backbone}"\n'
        f'[methods.bpg]\nrank = 2\nk = 2\nexpert = {{ head = "{head}", prompts = 2 }}\n'
        "optimisation = { epochs = 1, batch_size = 64 }\n"
    )
    done("run", "config.toml", cwd=folder)
    (run,) = (folder / "runs" / "tiny").iterdir()
    records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    return records, json.loads((run / "run.json").read_text())["data"]


def same_in_every_form(name: str, backbone: str | Path, head: str, tmp_path: Path) -> None:
    """A benchmark runs from a fresh directory as folders, as a zip and as shards, with the same records."""
    root = tmp_path / name
    done("data", "sample", name, root, "--classes", "3", "--per-class", "2")
    done("data", "pack", root, tmp_path / "zip", "--as", "zip")
    done("data", "pack", root, tmp_path / "shards")
    forms = (root, tmp_path / "zip" / f"{name}.zip", tmp_path / "shards")
    results = [records_of(tmp_path / f"work{n}", form, name, backbone, head) for n, form in enumerate(forms)]
    records, manifest = results[0]
    assert len(records) == len(DATASETS[name].order)
    for others, other in results[1:]:
        assert others == records
        for key in ("variant", "classes", "benchmark"):
            assert other[key] == manifest[key]
        assert [d["train"]["sha256"] for d in other["domains"]] == [d["train"]["sha256"] for d in manifest["domains"]]
        assert [t["sha256"] for t in other["tests"]] == [t["sha256"] for t in manifest["tests"]]


def test_core50_runs_alike_in_every_form_and_what_is_undefined_is_nowhere_a_number(tmp_path: Path) -> None:
    same_in_every_form("core50", "bpg-vit-nano", "linear", tmp_path)
    work = tmp_path / "work0"
    rows = {row["way"]: row for row in document("run", "config.toml", cwd=work)}  # finished: printed again
    assert rows["soft"]["A_T"] is not None
    assert rows["soft"]["F_T"] is None
    assert rows["oracle"]["A_T"] is rows["oracle"]["mean"] is None
    tables = {
        (section.title, at): block
        for section in contents(read_runs([work])).sections
        for at, block in enumerate(section.blocks)
        if isinstance(block, Table)
    }
    undefined = {
        "Results": ("F_T", "just learned"),
        "Soft, hard, oracle": ("oracle", "oracle - soft", "domain found", "right elsewhere"),
    }
    for title, columns in undefined.items():
        table = tables[title, 0]
        for column in columns:
            assert [row[table.columns.index(column)] for row in table.rows] == [None] * len(table.rows), column
    told = bpg("run", "config.toml", cwd=work).stderr
    assert "domains in this order (128x128): s1, s2, s4, s5, s6, s8, s9, s11" in told
    told = bpg("run", "config.toml", "--set", "data.order=ni-0", "--set", "name=other", cwd=work).stderr
    assert "domains in this order (128x128): s11, s4, s2, s9, s1, s6, s5, s8" in told
    assert said_of_parts(work, "Another order of domains than part 1")
    (run,) = (work / "runs" / "other").iterdir()
    about = json.loads((run / "run.json").read_text())
    about["data"]["protocol"], about["digest"] = "lae", "0" * 64
    shutil.copytree(run, work / "apart" / "lae")
    (work / "apart" / "lae" / "run.json").write_text(json.dumps(about))
    shutil.copytree(run, work / "apart" / "own")
    assert said_of_parts(work / "apart", "Another protocol than part 1")


def said_of_parts(folder: Path, sentence: str) -> bool:
    """Whether the report of the runs in a folder says so of one of its parts."""
    return any(sentence in text for section in contents(read_runs([folder])).sections for text in section.text)


def test_a_benchmark_runs_alike_with_clip(tmp_path: Path) -> None:
    same_in_every_form("cddb-hard", toy_clip(tmp_path / "clip"), "text", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vit", "clip"])
@pytest.mark.parametrize("name", SAMPLES)
def test_every_benchmark_runs_alike_as_folders_zip_and_shards(name: str, kind: str, tmp_path: Path) -> None:
    backbone = "bpg-vit-nano" if kind == "vit" else toy_clip(tmp_path / "clip")
    same_in_every_form(name, backbone, "linear" if kind == "vit" else "text", tmp_path)
