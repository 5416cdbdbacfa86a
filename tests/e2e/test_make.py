"""`make demo` on a machine that is not ready: a sentence that says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make here")

OLD = """\
#!/bin/sh
exec {python} -c 'import sys; sys.version_info, sys.version = (3, 10, 4), "3.10.4 (main)"; exec(sys.argv[1])' "$2"
"""


def make_demo(folder: Path, python: Path | str, **environment: str) -> str:
    """What `make demo` says in a bare clone, which must fail."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    found = subprocess.run(
        ["make", "demo", f"PYTHON={python}"],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "MAKEFLAGS"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 2, found.stdout
    assert "Traceback" not in found.stderr
    assert "error" not in found.stdout, "what might go wrong is not read out beforehand"
    return found.stderr


def test_an_old_python_is_named(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text(OLD.format(python=sys.executable))
    old.chmod(0o755)
    assert "bpg needs Python 3.11 or later, this is 3.10.4: make PYTHON=python3.11" in make_demo(tmp_path, old)
    assert not (tmp_path / ".venv").exists()


def test_pip_without_a_network_is_named_and_tried_again(tmp_path: Path) -> None:
    for _ in range(2):
        told = make_demo(tmp_path, sys.executable, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path / "none"))
        assert "pip could not install what bpg needs" in told
        assert "the same command goes on" in told
        assert not (tmp_path / ".venv" / "ready").exists()
