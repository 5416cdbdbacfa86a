"""Images as the verbs take them: read, checked, and what is wrong with them told."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bpg.cli.app import Common
from bpg.data.check import Checked, check
from bpg.data.folder import Found, read_folder
from bpg.data.images import SUFFIXES, ImageSet
from bpg.errors import ImageError, WrongUse
from bpg.progress import counted


def open_folder(common: Common, path: Path, *, name: str | None, test_share: float) -> Found:
    """What `path` holds; what is left out of it is said."""
    found = read_folder(path, name=name, test_share=test_share)
    tell_left_out(common, found)
    return found


def tell_left_out(common: Common, found: Found) -> None:
    """Say what lies among the images and is none of them, and what cannot be learned from them."""
    for sentence in found.left_out.sentences(found.root):
        common.say(f"note: {sentence}")
    for domain, classes in found.untaught().items():
        some = f"{', '.join(classes[:5])}{' and more' if len(classes) > 5 else ''}"
        common.say(f"note: {len(classes)} classes of {domain} have no image to learn from, only ones held out: {some}")


def tell_unreadable(common: Common, manifest: Mapping[str, Any]) -> None:
    """Say which images of a run's data cannot be read."""
    for side in (*(domain["train"] for domain in manifest["domains"]), *manifest["tests"]):
        for fault in side["unreadable"]:
            common.say(f"unreadable: {fault['path']}: {fault['reason']}")
        if side["unreadable"]:
            common.say(
                f"note: {len(side['unreadable'])} images cannot be read and are left out, {side['images']} are used"
            )


def checked(common: Common, images: ImageSet, what: str, *, strict: bool) -> Checked:
    """Those of `images` that can be read; the others are said, by path and count."""
    with common.bar(what) as show:
        found = check(images, strict=strict, progress=counted(show, "check"))
    for fault in found.unreadable:
        common.say(f"unreadable: {fault.path}: {fault.reason}")
    if found.unreadable:
        common.say(f"note: {len(found.unreadable)} of {len(images)} images of {what} cannot be read and are left out")
    if not found.images:
        raise ImageError(
            f"no image of {what} can be read",
            wanted="at least one readable image",
            came=f"{len(found.unreadable)} that are not",
            remedy="Check the files that are named above.",
        )
    return found


def unreadable(*sides: Checked | None) -> list[dict[str, str]]:
    """What could not be read, for --json."""
    return [{"path": str(fault.path), "reason": fault.reason} for side in sides if side for fault in side.unreadable]


def check_place(folder: Path, what: str) -> None:
    """Refuse a file in the place of a folder or of one above it, before anything is done."""
    if any(place.exists() and not place.is_dir() for place in (folder, *folder.parents)):
        raise WrongUse(
            f"{folder} is no place for {what}", wanted="a folder, or a new name", came="a file", remedy="Name another."
        )


def files_in(common: Common, places: Iterable[Path]) -> list[Path]:
    """The files among `places`, whatever they are called, and the images anywhere below the folders among them."""
    found: list[Path] = []
    others = 0
    for place in places:
        if not place.is_dir():
            if not place.exists() and not place.is_symlink():
                raise WrongUse(
                    f"there is no {place}", wanted="an image or a folder", came="nothing", remedy="Check the path."
                )
            found.append(place)
            continue
        seen = {place.resolve()}
        for inside, folders, files in os.walk(place, followlinks=True, onerror=lambda e: common.say(f"note: {e}")):
            folder = Path(inside)
            # A link that leads back to where we have been would never end.
            real = {name: (folder / name).resolve() for name in folders}
            folders[:] = sorted(name for name in folders if real[name] not in seen and not name.startswith("."))
            seen |= set(real.values())
            named = [folder / name for name in sorted(files) if not name.startswith(".")]
            images = [file for file in named if file.suffix.lower() in SUFFIXES]
            others += len(named) - len(images)
            found += images
    if others:
        common.say(f"note: {others} files are no JPEG, PNG, WebP, BMP or TIFF by name and are left out")
    if not found:
        raise WrongUse(
            "there is nothing to predict",
            wanted="images, or folders with images",
            came=f"none in {', '.join(map(str, places))}",
            remedy="Check the paths.",
        )
    return found
