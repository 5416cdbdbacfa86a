"""The method that docs/add-a-method.md makes is a real one: installed as the page says, it keeps every promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.command import bpg
from tests.conftest import ROOT
from tests.toy import toy_checkpoint, toy_folder

PAGE = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")


def block(kind: str) -> str:
    found = re.search(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The package of the page, as pip would leave it."""
    project = tomllib.loads(block("toml"))["project"]
    place = tmp_path / "site"
    info = place / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (place / "wise_ft.py").write_text(block("python"))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = project["entry-points"]["bpg.methods"]
    (info / "entry_points.txt").write_text("[bpg.methods]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()))
    return place


def test_the_command_knows_it(package: Path, tmp_path: Path) -> None:
    toy_folder(tmp_path / "data")
    weights = toy_checkpoint(tmp_path / "weights")
    told = bpg("methods", "wise_ft", PYTHONPATH=str(package))
    assert told.returncode == 0, told.stderr
    assert "Robust fine-tuning" in told.stdout
    assert "share" in told.stdout
    (tmp_path / "run.toml").write_text(
        f'name = "wise"\n[data]\nroot = "{tmp_path / "data"}"\n[backbone]\nsource = "{weights}"\n'
        "[methods.wise_ft]\nshare = 0.5\noptimisation = { epochs = 1, batch_size = 8 }\n"
    )
    found = bpg("run", tmp_path / "run.toml", "--out", tmp_path / "runs", PYTHONPATH=str(package))
    assert found.returncode == 0, found.stderr
    assert "wise_ft" in found.stdout


@pytest.mark.slow
def test_it_keeps_what_every_method_promises(package: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(package), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    tests = ["tests/contract/test_methods.py", "-q", "-k", "wise_ft", "-p", "no:cacheprovider", "-p", "no:xdist"]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", *tests],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-3000:]
    assert re.search(r"1\d passed", found.stdout), found.stdout[-300:]
