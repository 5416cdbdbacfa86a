"""ImageNet-R as domains: 200 classes of ImageNet in fifteen styles, which the files are named by.

Hendrycks et al., "The Many Faces of Robustness", 2021, arXiv 2006.16241; as domains in C-Prompt and KA-Prompt, whose
lists STYLE_{train,test}.txt are used where they are. Without them, 20 % are held out by their names.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from bpg.data.benchmark import Benchmark, Download, published
from bpg.data.files import read as read_file
from bpg.data.folder import Found, LeftOut, Sides, divided, read_domains
from bpg.data.images import SUFFIXES, ImageSet
from bpg.data.places import Place

STYLES = (
    *("art", "cartoon", "deviantart", "graffiti", "embroidery", "graphic", "origami", "painting"),
    *("misc", "sticker", "sculpture", "sketch", "tattoo", "toy", "videogame"),
)
CLASS = re.compile(r"n\d{8}")
TEST_SHARE = 0.2


def read(place: Place) -> Found:
    """CLASS/STYLE_NUMBER.jpg, and lists or none; README.txt, if it is there, says what the classes are called."""
    lists = place.holding("art_train.txt")
    near = (place, *place.folders(), *(inner for folder in place.folders() for inner in folder.folders()))
    images = next((p for p in near if any(CLASS.fullmatch(folder.name) for folder in p.folders())), place)
    names = _names(images)
    if lists is not None:
        found = read_domains(lists, dict.fromkeys(STYLES, ()), test_share=TEST_SHARE)
        return replace(found, domains={style: _named(sides, names) for style, sides in found.domains.items()})
    styles: dict[str, dict[str, list[Path]]] = {style: {} for style in STYLES}
    left_out = LeftOut()
    for folder in images.folders():
        if not CLASS.fullmatch(folder.name):
            left_out.folders.append(folder.path)
            continue
        for file in folder.files():
            style = file.name.rsplit("_", 1)[0].lower()
            if file.suffix.lower() in SUFFIXES and style in styles:
                styles[style].setdefault(names.get(folder.name, folder.name), []).append(file)
            else:
                left_out.formats[file.suffix.lower() or "without a suffix"] += 1
    domains = {style: divided(classes, TEST_SHARE) for style, classes in styles.items() if classes}
    return Found(images.path, "class/style_number", domains, left_out, "made")


def _named(sides: Sides, names: dict[str, str]) -> Sides:
    """The same images, their classes called by what they are."""

    def named(images: ImageSet | None) -> ImageSet | None:
        return replace(images, classes=tuple(names.get(c, c) for c in images.classes)) if images is not None else None

    return Sides(named(sides.train), named(sides.test))


def _names(images: Place) -> dict[str, str]:
    """The classes' names, from lines `n01443537 goldfish`."""
    if not images.holds("README.txt"):
        return {}
    lines = read_file(images.file("README.txt")).decode(errors="replace").splitlines()
    pairs = [line.strip().split(maxsplit=1) for line in lines]
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2 and CLASS.fullmatch(pair[0])}


IMAGENET_R = Benchmark(
    name="imagenet-r",
    title="200 classes of ImageNet in fifteen styles",
    licence="MIT (collection), images as their authors",
    source="https://github.com/hendrycks/imagenet-r",
    read=read,
    order=STYLES,
    template="a rendition of a {}.",
    downloads=(Download("https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar"),),
    gigabytes=2.2,
    published=published("imagenet-r"),
)
