"""Any image set in fifteen corruptions, each a domain. `bpg data prepare corruptions OUT --images FOLDER` makes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch.nn.functional as F
from PIL import Image

from bpg.data.ahead import ahead
from bpg.data.benchmark import UNFINISHED, Benchmark
from bpg.data.check import check
from bpg.data.corruptions import CORRUPTIONS, corrupted
from bpg.data.decode import decode
from bpg.data.folder import read_folder, read_split
from bpg.data.images import ImageSet
from bpg.errors import WrongUse

SEVERITY = 3
SIDE = 256  # pixels, of a larger image's shorter side: corruptions are of the size of what a backbone sees


def build(root: Path, images: Path | None, tell: Callable[[int, int], None]) -> None:
    """CORRUPTION/{train,test}/CLASS/*.png of the one domain in `images`; what is there already stays."""
    if images is None:
        raise WrongUse(
            "corruptions are made from images of yours",
            wanted="--images, a folder or archive of one domain",
            came="none",
            remedy="Add it.",
        )
    here, there = root.resolve(), images.resolve()
    if here.is_relative_to(there) or there.is_relative_to(here):
        raise WrongUse(
            f"{root} and {images} lie in one another", wanted="two places", came="one", remedy="Name another folder."
        )
    _, sides = read_folder(images).only()
    work = [(side, check(found)) for side, found in sides.named().items()]
    todo = [(side, found.images, index) for side, found in work for index in range(len(found.images))]
    _check_names(todo)
    source = root / "source.txt"  # of another one, nothing here would be what it says
    digest = " ".join(found.sha256 for _, found in work)
    if source.is_file() and source.read_text(encoding="utf-8").strip() != digest:
        raise WrongUse(
            f"{root} holds corruptions of other images",
            wanted="a folder of its own for each image set",
            came=f"one that {images} did not make",
            remedy="Name another folder.",
        )
    source.write_text(digest + "\n", encoding="utf-8")
    mark = root / f"corruptions{UNFINISHED}"  # half of it would look whole
    mark.touch()
    for done, _ in enumerate(ahead(lambda each: _corrupt(root, *each), todo, window=16), start=1):
        tell(done, len(todo))
    mark.unlink()


def _check_names(todo: Sequence[tuple[str, ImageSet, int]]) -> None:
    """Refuse classes that are no folders, and files of one name that would take each other's place."""
    seen: dict[tuple[str, str, str], Path] = {}
    for side, images, index in todo:
        path, name = images.paths[index], images.classes[images.labels[index]]
        if "/" in name or "\\" in name or name.startswith("."):
            raise WrongUse(
                f"the class {name!r} names no folder",
                wanted="names without / and \\ that do not begin with a dot",
                came=name,
                remedy="Rename it.",
            )
        if seen.setdefault((side, name, path.name), path) != path:
            raise WrongUse(
                "two images of a class have one name",
                wanted="different names",
                came=f"{seen[side, name, path.name]} and {path}",
                remedy="Rename one of them.",
            )


def _corrupt(root: Path, side: str, images: ImageSet, index: int) -> None:
    """Every corruption of one image."""
    path, name = images.paths[index], images.classes[images.labels[index]]
    pixels = decode(images.encoded(index), where=str(path))
    height, width = pixels.shape[-2:]
    if min(height, width) > SIDE:
        sides = [round(each * SIDE / min(height, width)) for each in (height, width)]
        pixels = F.interpolate(pixels[None], sides, mode="bicubic", antialias=True)[0]
    for kind in CORRUPTIONS:
        target = root / kind / side / name / f"{path.name}.png"
        if target.is_file():
            continue
        after = corrupted(pixels, kind, severity=SEVERITY, key=f"{name}/{path.name}")
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".tmp")
        Image.fromarray(np.ascontiguousarray(after.permute(1, 2, 0).numpy())).save(part, "PNG")
        part.replace(target)


CORRUPTED = Benchmark(
    name="corruptions",
    title="an image set of yours in fifteen corruptions",
    licence="as the images",
    source="made by bpg",
    read=partial(read_split, names=tuple(CORRUPTIONS)),
    order=tuple(CORRUPTIONS),
    build=build,
)
