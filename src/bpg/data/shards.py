"""WebDataset's shards of one's own: tar archives of samples KEY.jpg and KEY.cls, the label as a number or a name.

A shard's name tells where it belongs: photo-train-000000.tar, photo_test.tar, or photo-000.tar without a split. What
the numbers are called stands in a classes.txt beside the shards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from bpg.data.files import inside, read
from bpg.data.images import SUFFIXES, ImageSet
from bpg.data.lists import class_names
from bpg.errors import WrongUse

LABEL = ".cls"
SIDES = {"train": "train", "test": "test", "val": "test"}


def shards_in(root: Path) -> list[Path]:
    """The tars at `root`, or in it, if the first of them holds labels."""
    tars = [root] if root.is_file() else sorted(root.iterdir())
    tars = [path for path in tars if path.suffix.lower() == ".tar" and path.is_file()]
    return tars if tars and any(name.lower().endswith(LABEL) for name in inside(tars[0])) else []


def domain_and_side(shard: Path) -> tuple[str, str]:
    """The domain of a shard, and "train", "test" or nothing."""
    *parts, last = re.split(r"[-_.]", shard.stem)
    parts = parts if last.isdecimal() else [*parts, last]
    side = parts.pop().lower() if parts and parts[-1].lower() in SIDES else ""
    domain = shard.stem[: len("-".join(parts))]  # with the separators it has
    return domain or shard.resolve().parent.name, SIDES.get(side, "")


def read_shards(shards: Iterable[Path]) -> ImageSet:
    """The samples of `shards`, in the order of the shards and of their keys."""
    paths: list[Path] = []
    answers: list[str] = []
    folder = Path()
    for shard in shards:
        folder = shard.parent
        names = inside(shard)
        labels = {name[: -len(LABEL)]: shard / name for name in names if name.lower().endswith(LABEL)}
        for name in names:
            if Path(name).suffix.lower() not in SUFFIXES:
                continue
            key = name[: name.index(".", name.rfind("/") + 1)]  # up to the first dot of the file's own name
            if key not in labels:
                raise WrongUse(
                    f"{name} in {shard} has no label",
                    wanted=f"{key}{LABEL} beside it",
                    came="none",
                    remedy="Write the shard anew, or leave the image out.",
                )
            paths.append(shard / name)
            answers.append(read(labels[key]).decode(errors="replace").strip())
    if all(answer.isdecimal() for answer in answers):
        given = class_names(folder)
        numbers = [int(answer) for answer in answers]
        names_of = given or tuple(f"class {number}" for number in range(max(numbers, default=-1) + 1))
        return ImageSet(tuple(paths), tuple(numbers), names_of)
    classes = tuple(sorted(set(answers)))
    place = {name: label for label, name in enumerate(classes)}
    return ImageSet(tuple(paths), tuple(place[answer] for answer in answers), classes)
