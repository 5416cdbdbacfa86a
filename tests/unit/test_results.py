"""The reports in the docs are what the command makes of the records beside them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bpg.experiments.records import read_runs
from bpg.report.contents import contents
from bpg.report.html import html
from bpg.report.markdown import markdown
from tests.conftest import ROOT

RESULTS = sorted(folder.parent for folder in (ROOT / "docs" / "results").glob("*/records"))


@pytest.mark.parametrize("folder", RESULTS, ids=lambda folder: folder.name)
def test_a_report_of_the_docs_is_as_the_command_wrote_it(folder: Path) -> None:
    runs = read_runs([folder / "records"])
    assert all(run.finished for run in runs)
    page = contents(runs)
    assert (folder / "report.md").read_text(encoding="utf-8") == markdown(page)
    assert (folder / "report.html").read_text(encoding="utf-8") == html(page)


@pytest.mark.parametrize("folder", RESULTS, ids=lambda folder: folder.name)
def test_no_picture_and_no_path_of_a_machine_is_in_the_docs(folder: Path) -> None:
    for file in folder.rglob("*.*"):
        text = file.read_text(encoding="utf-8")
        assert "data:image" not in text.replace("img-src data:", "")
        assert not re.search(r"/(home|root|tmp|work|Users)/", text), file
