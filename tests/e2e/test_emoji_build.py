"""The emoji that ship are what the tool makes of the public packages."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bpg.data.benchmarks.emoji import SHIPPED

pytestmark = pytest.mark.slow  # it fetches 160 MB


def test_the_emoji_are_made_again_byte_for_byte(tmp_path: Path) -> None:
    tool = pytest.importorskip("tools.emoji", reason="resvg_py is not installed")
    if shutil.which("npm") is None:
        pytest.skip("no npm to fetch the packages with")
    try:
        tool.GOOGLE.fetch(tmp_path / "work")
    except subprocess.CalledProcessError:
        pytest.skip("npm cannot reach its registry")
    tool.main([str(tmp_path / "work"), "--out", str(tmp_path / "made")])
    for name in ("images.zip", "manifest.json"):
        assert (tmp_path / "made" / name).read_bytes() == (SHIPPED / name).read_bytes(), name
