"""What every registered benchmark promises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bpg.data.benchmark import Benchmark, verify
from bpg.data.folder import Found
from bpg.errors import BPGError
from bpg.registry import DATASETS
from tests.command import bpg, document, done

SHIPPED = [name for name in DATASETS if DATASETS[name].source == "ships with bpg"]


@pytest.fixture(scope="module")
def found_of() -> Callable[[str], Found]:
    return lambda name: DATASETS[name].read(None)


@pytest.mark.parametrize("name", DATASETS)
def test_it_says_what_it_is(name: str) -> None:
    benchmark: Benchmark = DATASETS[name]
    assert benchmark.name == name
    assert benchmark.title
    assert benchmark.licence
    assert benchmark.source
    assert not set(benchmark.order) & set(benchmark.unseen)
    assert set(benchmark.sets) <= set(benchmark.expected) or not benchmark.expected


@pytest.mark.parametrize("name", DATASETS)
def test_a_folder_that_does_not_hold_it_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BPGError):
        DATASETS[name].read(tmp_path)


@pytest.mark.parametrize("name", SHIPPED)
def test_it_is_as_published_and_no_image_is_on_both_sides(name: str, found_of: Callable[[str], Found]) -> None:
    benchmark: Benchmark = DATASETS[name]
    sides = verify(benchmark, found_of(name))
    assert [side.wrong for side in sides] == [[]] * len(benchmark.sets)
    assert sorted(side.name for side in sides) == sorted(benchmark.sets)
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
