"""Any image set in fifteen corruptions, each a domain. `bpg data prepare corruptions OUT --images FOLDER` makes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from bpg.data.benchmark import Benchmark
from bpg.data.corruptions import CORRUPTIONS, corrupted
from bpg.data.decode import decode
from bpg.data.folder import read_folder, read_place
from bpg.errors import WrongUse

SEVERITY = 3


def build(root: Path, images: Path | None) -> None:
    """CORRUPTION/{train,test}/CLASS/*.png of the one domain in `images`; what is there already stays."""
    if images is None:
        raise WrongUse(
            "corruptions are made from images of yours",
            wanted="--images, a folder or archive of one domain",
            came="none",
            remedy="Add it.",
        )
    _, sides = read_folder(images).only()
    for side, found in (("train", sides.train), ("test", sides.test)):
        for index in range(len(found) if found is not None else 0):
            assert found is not None
            name = found.classes[found.labels[index]]
            pixels = decode(found.encoded(index), where=str(found.paths[index]))
            for kind in CORRUPTIONS:
                target = root / kind / side / name / f"{found.paths[index].stem}.png"
                if target.is_file():
                    continue
                after = corrupted(pixels, kind, severity=SEVERITY, key=f"{name}/{found.paths[index].name}")
                target.parent.mkdir(parents=True, exist_ok=True)
                part = target.with_suffix(".tmp")
                Image.fromarray(np.ascontiguousarray(after.permute(1, 2, 0).numpy())).save(part, "PNG")
                part.replace(target)


CORRUPTED = Benchmark(
    name="corruptions",
    title="an image set of yours in fifteen corruptions",
    licence="as the images",
    source="made by bpg",
    read=read_place,
    order=tuple(CORRUPTIONS),
    build=build,
)
