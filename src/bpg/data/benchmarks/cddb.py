"""CDDB: real and generated images; a domain is a generator or a source of forgeries.

Li et al., "A Continual Deepfake Detection Benchmark: Dataset, Methods, and Essentials", 2023, arXiv 2205.05467. Every
code base trains on `train` and tests on `val`; the `test` folders, and a second copy of SAN at its root, are not used.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from bpg.data.benchmark import Benchmark, published
from bpg.data.folder import Found, LeftOut, Sides
from bpg.data.images import SUFFIXES, ImageSet
from bpg.data.places import Place
from bpg.errors import WrongUse

HARD = ("gaugan", "biggan", "wild", "whichfaceisreal", "san")
EASY = ("gaugan", "biggan", "cyclegan", "imle", "deepfake", "crn", "wild")
LONG = (*EASY, "glow", "stargan_gf", "stylegan", "whichfaceisreal", "san")
LEAVES = ("0_real", "1_fake")
CLASSES = ("real", "fake")


def read(place: Place, order: tuple[str, ...]) -> Found:
    """GENERATOR/{train,val}/{0_real,1_fake}/*, with a folder for each kind of thing in between for some generators."""
    place = place.holding(*order) or place
    left_out = LeftOut()
    domains = {}
    for name in order:
        generator = place.folder(name)
        if generator is None:
            continue
        sides = [_side(found, left_out) if (found := generator.folder(side)) else None for side in ("train", "val")]
        left_out.folders += [inner.path for inner in generator.folders() if inner.name not in ("train", "val")]
        if any(side is not None for side in sides):
            domains[name] = Sides(*sides)
    return Found(place.path, "generator/{train,val}/{0_real,1_fake}", domains, left_out, "given")


def _side(side: Place, left_out: LeftOut) -> ImageSet | None:
    pairs: list[tuple[Path, int]] = []
    for place in [side] if any(side.folder(leaf) for leaf in LEAVES) else side.folders():
        strange = [inner.name for inner in place.folders() if inner.name not in LEAVES]
        if strange:
            raise WrongUse(
                f"{place.path} is laid out in another way",
                wanted=" and ".join(LEAVES),
                came=", ".join(strange[:3]),
                remedy="Unpack the generator anew: its label is the name of the last folder.",
            )
        for label, leaf in enumerate(LEAVES):
            folder = place.folder(leaf)
            for file in folder.files() if folder is not None else ():
                if file.suffix.lower() in SUFFIXES:
                    pairs.append((file, label))
                else:
                    left_out.formats[file.suffix.lower() or "without a suffix"] += 1
    if not pairs:
        return None
    return ImageSet(tuple(path for path, _ in pairs), tuple(label for _, label in pairs), CLASSES)


CDDB_HARD = Benchmark(
    name="cddb-hard",
    title="real or generated, five generators",
    licence="as its sources, for research",
    source="https://github.com/Coral79/CDDB (Google Drive)",
    read=partial(read, order=HARD),
    order=HARD,
    template="a {} photo.",
    published=published("cddb"),
)
CDDB_EASY = replace(
    CDDB_HARD,
    name="cddb-easy",
    title="real or generated, seven generators",
    read=partial(read, order=EASY),
    order=EASY,
)
CDDB_LONG = replace(
    CDDB_HARD,
    name="cddb-long",
    title="real or generated, twelve generators",
    read=partial(read, order=LONG),
    order=LONG,
)
