"""Ten thousand small images, one in twenty broken: the run ends, says which, and does not grow."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.toy import toy_checkpoint

CLASSES, BROKEN_IN = 4, 20


def encoded(kind: str, seed: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(out, kind)
    return out.getvalue()


def bomb() -> bytes:
    """A PNG whose header speaks of 40 gigapixels, with nothing behind it."""
    header = struct.pack(">IIBBBBB", 200_000, 200_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(header)) + chunk + struct.pack(">I", zlib.crc32(chunk))


PNG, JPEG, WEBP, TIFF = (encoded(kind, 1) for kind in ("PNG", "JPEG", "WEBP", "TIFF"))
BREAKS: list[Callable[[Path], object]] = [
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(JPEG[: len(JPEG) // 2]),
    lambda path: path.write_bytes(PNG[:60]),
    lambda path: path.write_bytes(WEBP[:30]),
    lambda path: path.write_bytes(TIFF[:-200]),
    lambda path: path.write_bytes(b"<html>404 not found</html>"),
    lambda path: path.write_bytes(encoded("GIF", 2)),
    lambda path: path.write_bytes(bomb()),
    lambda path: path.symlink_to(path.with_name("nowhere.png")),
    lambda path: path.symlink_to(path),
]


def make(root: Path, count: int) -> set[Path]:
    """`count` images, one in twenty broken, in ten ways; the broken ones."""
    kinds = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")
    good = [(kind.lower(), encoded(kind, seed)) for seed in range(20) for kind in kinds]
    broken = set()
    for index in range(count):
        folder = root / f"class {index % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        if index % BROKEN_IN == 7:
            path = folder / f"{index:05}.png"
            BREAKS[index // BROKEN_IN % len(BREAKS)](path)
            broken.add(path)
        else:
            kind, content = good[index % len(good)]
            (folder / f"{index:05}.{kind}").write_bytes(content + index.to_bytes(4, "little"))  # no two the same
    return broken


def learn(root: Path, count: int) -> tuple[set[Path], set[Path], int]:
    """Learn from `count` images: what was broken, what was told to be, and the peak of memory in bytes."""
    broken = make(root / "data", count)
    script = (
        "import resource, sys; from bpg.cli import main; code = main(sys.argv[1:]);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr); sys.exit(code)"
    )
    arguments = ["learn", root / "model", root / "data", "--backbone", toy_checkpoint(root / "vit"), "--json",
                 "--method", "linear_probe", "--set", "optimisation.epochs=1", "--test-share", "0"]  # fmt: skip
    found = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"BPG_CACHE": str(root / "cache")},
    )
    assert found.returncode == 0, found.stderr[-2000:]
    result = json.loads(found.stdout)
    assert result["images"] == count - len(broken)
    assert f"{len(broken)} of {count} images of data, to learn cannot be read" in found.stderr
    told = {Path(fault["path"]) for fault in result["unreadable"]}
    assert len(result["unreadable"]) == len(told)
    assert all(f"unreadable: {path}: " in found.stderr for path in told)
    return broken, told, int(found.stderr.splitlines()[-1]) * 1024


@pytest.mark.slow
def test_ten_thousand_images_with_one_in_twenty_broken(tmp_path: Path) -> None:
    few_broken, few_told, small = learn(tmp_path / "few", 1_000)
    broken, told, large = learn(tmp_path / "many", 10_000)
    assert few_told == few_broken
    assert len(broken) == 500
    assert told == broken
    # Ten times the images: what grows is their paths and 64 numbers each.
    assert large - small < 60 * 2**20, (small, large)
