"""`bpg bench` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.command import document, done, refused


def test_a_part_is_printed_kept_and_drawn(tmp_path: Path) -> None:
    out = tmp_path / "figures"
    part = ("bench", "growth-ranks", "--backbone", "bpg-vit-nano", "--rounds", 1)
    found = document(*part, "--out", out)["growth-ranks"]
    assert [x for x, _ in found["figures"][0]["lines"]["the mixture, 2 experts per image"]] == [4, 16, 64, 256, 1024]
    kept = json.loads((out / "performance" / "growth-ranks.json").read_text())
    assert kept["machine"]["best_gigaflops_per_second"] > 0
    assert "cost-over-the-rank.svg" in (out / "performance.md").read_text()
    said = done(*part)
    assert said.startswith("Cost over the rank: bpg-vit-nano")
    assert len(said.splitlines()) == 7


def test_wrong_use_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    assert "growth-images" in refused("bench", "speed")
    assert "nothing" in refused("bench", "engine", "--backbone", "nothing")
    (tmp_path / "file").write_text("")
    assert "a file" in refused("bench", "engine", "--out", tmp_path / "file")
    assert "a file" in refused("bench", "engine", "--out", tmp_path / "file" / "below")
