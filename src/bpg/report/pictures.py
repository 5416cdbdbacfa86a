"""Small pictures of the data set, inside the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from bpg.data.decode import decode
from bpg.data.files import read
from bpg.errors import BPGError
from bpg.experiments.manifest import place_of
from bpg.experiments.records import Run

SIDE = 72  # pixels
Look = Callable[[Run, str], str | None]


def look_at(data: Path | None = None) -> Look:
    """A function from a run and a path in its data to a data address; None where the image is gone.

    The data lies where the run says, or at `data`.
    """

    places: dict[Path, Path] = {}

    def look(run: Run, path: str) -> str | None:
        try:
            if run.folder not in places:
                places[run.folder] = data or place_of(run.about["data"])
            pixels = decode(read(places[run.folder] / path), where=path)
        except (OSError, BPGError):
            return None
        return _address(Image.fromarray(pixels.permute(1, 2, 0).numpy()))

    return look


def _address(image: Image.Image) -> str:
    image.thumbnail((2 * SIDE, 2 * SIDE))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()
