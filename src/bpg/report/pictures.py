"""Small pictures of the data set, inside the page."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from PIL import Image

from bpg.data.decode import decode
from bpg.errors import BPGError
from bpg.experiments.records import Run
from bpg.report.blocks import Picture, Pictures

SIDE, MOST = 96, 10  # pixels; classes a domain


def pictures(run: Run, root: Path) -> list[Pictures]:
    """An image of each class of each test set of `run`, whose data lies at `root`; those that are gone are left out."""
    found = []
    for test in run.about["data"]["tests"]:
        shown = []
        for name, path in list(test["samples"].items())[:MOST]:
            try:
                pixels = decode((root / path).read_bytes(), where=path)
            except (OSError, BPGError):
                continue
            shown.append(Picture(name, _address(Image.fromarray(pixels.permute(1, 2, 0).numpy()))))
        if shown:
            found.append(Pictures(test["name"], shown))
    return found


def _address(image: Image.Image) -> str:
    image.thumbnail((2 * SIDE, 2 * SIDE))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()
