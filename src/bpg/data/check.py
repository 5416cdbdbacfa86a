"""Which images of a set can be read: each is opened and decoded once, before anything is made of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from bpg.data.ahead import ahead
from bpg.data.decode import decode
from bpg.data.images import ImageSet, SetDigest
from bpg.data.remember import Memory
from bpg.errors import ImageError

PIECE, WINDOW = 8, 16  # images that a thread reads at a time, and pieces under way


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that is no image, and why."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Checked:
    """The images that can be read, those that cannot, and the digest of the former with their classes."""

    images: ImageSet
    unreadable: tuple[Unreadable, ...]
    sha256: str
    files: tuple[bytes, ...]  # the sha256 of each image's file


def check(
    images: ImageSet,
    *,
    strict: bool = False,
    again: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Checked:
    """Read every image of `images` that is new or changed since it was last read, or all of them `again`.

    `strict`: a fault is an error.
    """
    memory = Memory()

    def look(start: int) -> list[bytes | Unreadable]:
        return [look_at(index) for index in range(start, min(start + PIECE, len(images)))]

    def look_at(index: int) -> bytes | Unreadable:
        path = images.paths[index]
        key = memory.key(path)
        known = memory.get(key) if key is not None and not again else None
        if known is None:
            known = _read(images, index)
            if key is not None and known[0]:  # what could not even be opened may be so for other reasons
                memory.add(key, *known)
        sha256, fault = known
        return Unreadable(path, fault) if fault else sha256

    kept: list[int] = []
    files: list[bytes] = []
    faults: list[Unreadable] = []
    digest = SetDigest()
    try:
        pieces = ahead(look, range(0, len(images), PIECE), window=WINDOW)
        for index, found in enumerate(chain.from_iterable(pieces)):
            if isinstance(found, Unreadable):
                faults.append(found)
            else:
                kept.append(index)
                files.append(found)
                digest.add(found, images.classes[images.labels[index]])
            if progress is not None:
                progress(index + 1, len(images))
    finally:
        memory.close()
    if strict and faults:
        some = "; ".join(f"{fault.path} ({fault.reason})" for fault in faults[:5])
        raise ImageError(
            f"{len(faults)} of {len(images)} images cannot be read",
            wanted="whole JPEG, PNG, WebP, BMP or TIFF files",
            came=some + (f" and {len(faults) - 5} more" if len(faults) > 5 else ""),
            remedy="Mend or remove them, or go on without them by leaving --strict out.",
        )
    return Checked(images.subset(kept), tuple(faults), digest.hexdigest(), tuple(files))


def _read(images: ImageSet, index: int) -> tuple[bytes, str]:
    """The sha256 of an image's file, and why it cannot be decoded, or nothing."""
    try:
        encoded = images.encoded(index)
    except ImageError as error:
        return b"", error.came
    digest = hashlib.sha256(encoded).digest()
    try:
        decode(encoded, where=str(images.paths[index]))
    except ImageError as error:
        return digest, error.came
    return digest, ""


def check_all(
    sets: Iterable[ImageSet],
    *,
    strict: bool = False,
    again: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Checked]:
    """`check` of each of `sets` in turn; progress counts them all."""
    every = list(sets)
    done, total = 0, sum(map(len, every))
    for images in every:

        def go_on(now: int, _: int, before: int = done) -> None:
            if progress is not None:
                progress(before + now, total)

        yield check(images, strict=strict, again=again, progress=go_on)
        done += len(images)
