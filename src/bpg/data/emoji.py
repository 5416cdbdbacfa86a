"""Emoji: the same things drawn in six styles, 64 pixels, twelve classes. Ships with the package.

Every emoji is on one side, training or test, in all styles. `tools/emoji.py` makes the images from public packages.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from bpg.data.benchmark import Benchmark
from bpg.data.files import inside
from bpg.data.folder import Found, LeftOut, Sides
from bpg.data.images import ImageSet
from bpg.errors import ImageError, WrongUse

SHIPPED = Path(str(files("bpg").joinpath("shipped", "emoji")))
STYLES = ("google", "twitter", "fluent-3d", "fluent-flat", "openmoji", "openmoji-black")
UNSEEN = ("fluent-flat", "openmoji", "openmoji-black")
LICENCE = "Apache-2.0 (google), CC-BY-4.0 (twitter), MIT (fluent), CC-BY-SA-4.0 (openmoji)"

CREDIT = (
    "The emoji are by Google (Noto Emoji, Apache-2.0), by Twitter and other contributors (Twemoji, CC-BY-4.0), by "
    "Microsoft (Fluent Emoji, MIT) and by the OpenMoji project (CC-BY-SA-4.0), reduced to 64 pixels."
)


def read(root: Path | None = None) -> Found:
    """The six styles, from the package or from an images.zip in the folder `root`."""
    archive = (root or SHIPPED) / "images.zip"
    at_fault = ImageError if root is None else WrongUse  # the package, or who named the folder
    if not archive.is_file():
        raise at_fault(
            "the emoji are not there",
            wanted=str(archive),
            came="nothing",
            remedy="Install the package anew, or make them with `python -m tools.emoji` in a clone of the repository.",
        )
    sides: dict[tuple[str, str], list[tuple[Path, str]]] = {}
    try:
        for path in inside(archive):
            style, side, name, _ = path.relative_to(archive).parts
            sides.setdefault((style, side), []).append((path, name))
    except (OSError, ValueError) as error:
        raise (ImageError if isinstance(error, OSError) else at_fault)(
            f"{archive} does not hold the emoji",
            wanted="a zip archive of STYLE/{train,test}/CLASS/CODE.webp",
            came=getattr(error, "strerror", None) or "other folders",
            remedy="Install the package anew, or name another folder.",
        ) from error
    classes = tuple(sorted({name for pairs in sides.values() for _, name in pairs}))
    sets = {
        key: ImageSet(tuple(path for path, _ in pairs), tuple(classes.index(name) for _, name in pairs), classes)
        for key, pairs in sides.items()
    }
    domains = {style: Sides(sets.get((style, "train")), sets.get((style, "test"))) for style, _ in sorted(sets)}
    return Found(archive, "domain/{train,test}/class", domains, LeftOut(), "given")


EMOJI = Benchmark(
    name="emoji",
    title="the same things drawn in six styles",
    licence=LICENCE,
    source="ships with bpg",
    read=read,
    order=STYLES,
    credit=CREDIT,
    published=SHIPPED / "manifest.json",
)
UNSEEN_STYLES = replace(
    EMOJI,
    name="emoji-unseen",
    title="emoji, tested only on styles that are never learned",
    order=tuple(style for style in STYLES if style not in UNSEEN),
    unseen=UNSEEN,
)
