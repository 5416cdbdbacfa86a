"""Which images of a set can be read: each is opened and decoded once, before anything is made of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bpg.data.ahead import ahead
from bpg.data.decode import decode
from bpg.data.images import ImageSet, SetDigest
from bpg.errors import ImageError

WINDOW = 64


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


def check(images: ImageSet, *, strict: bool = False, progress: Callable[[int, int], None] | None = None) -> Checked:
    """Read every image of `images` once. With `strict`, an unreadable one is an error."""

    def look(index: int) -> bytes | Unreadable:
        path = images.paths[index]
        try:
            encoded = images.encoded(index)
            decode(encoded, where=str(path))
        except ImageError as error:
            return Unreadable(path, error.came)
        return hashlib.sha256(encoded).digest()

    kept: list[int] = []
    faults: list[Unreadable] = []
    digest = SetDigest()
    for index, found in enumerate(ahead(look, range(len(images)), window=WINDOW)):
        if isinstance(found, Unreadable):
            faults.append(found)
        else:
            kept.append(index)
            digest.add(found, images.classes[images.labels[index]])
        if progress is not None:
            progress(index + 1, len(images))
    if strict and faults:
        some = "; ".join(f"{fault.path} ({fault.reason})" for fault in faults[:5])
        raise ImageError(
            f"{len(faults)} of {len(images)} images cannot be read",
            wanted="whole JPEG, PNG, WebP, BMP or TIFF files",
            came=some + (f" and {len(faults) - 5} more" if len(faults) > 5 else ""),
            remedy="Mend or remove them, or go on without them by leaving --strict out.",
        )
    return Checked(images.subset(kept), tuple(faults), digest.hexdigest())


def check_all(
    sets: Iterable[ImageSet], *, strict: bool = False, progress: Callable[[int, int], None] | None = None
) -> Iterator[Checked]:
    """`check` of each of `sets` in turn; progress counts them all."""
    every = list(sets)
    done, total = 0, sum(map(len, every))
    for images in every:

        def go_on(now: int, _: int, before: int = done) -> None:
            if progress is not None:
                progress(before + now, total)

        yield check(images, strict=strict, progress=go_on)
        done += len(images)
