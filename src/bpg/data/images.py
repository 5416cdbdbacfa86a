"""A set of labelled images that are read when they are asked for."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bpg.data.files import read
from bpg.errors import ImageError, WrongUse

SUFFIXES = frozenset([".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".webp", ".bmp", ".dib", ".tif", ".tiff"])


class SetDigest:
    """The digest of a set of images: what the files hold and what they show, in their order; not where they lie."""

    def __init__(self) -> None:
        self._sum = hashlib.sha256()

    def add(self, file: bytes, name: str) -> None:
        """Count in an image by the sha256 of its `file` and its class."""
        self._sum.update(file + name.encode() + b"\0")

    def hexdigest(self) -> str:
        return self._sum.hexdigest()


def sha256_of(images: ImageSet) -> str:
    """The digest of a set, every file of which is read."""
    digest = SetDigest()
    for index, label in enumerate(images.labels):
        digest.add(hashlib.sha256(images.encoded(index)).digest(), images.classes[label])
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class ImageSet:
    """Image files in a fixed order, the class of each, and the names of the classes.

    >>> photos = ImageSet(paths=(Path("cat.jpg"), Path("dog.jpg")), labels=(0, 1), classes=("cat", "dog"))
    >>> len(photos)
    2
    """

    paths: tuple[Path, ...]
    labels: tuple[int, ...]  # of each image, an index into `classes`
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.paths) != len(self.labels):
            raise WrongUse(
                "images and labels do not pair up",
                wanted=f"{len(self.paths)} labels, one an image",
                came=f"{len(self.labels)} labels",
                remedy="Give each image exactly one label.",
            )
        odd = [name for name in self.classes if not name.isprintable() or not name]
        if odd:
            raise WrongUse(
                "no name for a class",
                wanted="printable characters",
                came=repr(odd[0]),
                remedy="Rename the class, or its folder.",
            )
        if len(set(self.classes)) != len(self.classes):
            twice = sorted({name for name in self.classes if self.classes.count(name) > 1})
            raise WrongUse(
                "two labels have one name",
                wanted="a name of its own for each class",
                came=f"{', '.join(twice[:3])} more than once",
                remedy="Name the classes apart, or give their images one label.",
            )
        if self.labels and not 0 <= min(self.labels) <= max(self.labels) < len(self.classes):
            raise WrongUse(
                "a label has no class",
                wanted=f"labels from 0 to {len(self.classes) - 1}",
                came=f"labels from {min(self.labels)} to {max(self.labels)}",
                remedy="Name every class, in the order of their labels.",
            )

    def __len__(self) -> int:
        return len(self.paths)

    def counts(self) -> dict[str, int]:
        """How many images of each class there are, of those that have any."""
        return dict(sorted(Counter(self.classes[label] for label in self.labels).items()))

    def subset(self, indices: Iterable[int]) -> ImageSet:
        """The images at `indices`, in that order, under the same class names."""
        chosen = list(indices)
        return ImageSet(
            tuple(self.paths[index] for index in chosen), tuple(self.labels[index] for index in chosen), self.classes
        )

    def encoded(self, index: int) -> bytes:
        """The bytes of the image file at `index`."""
        try:
            return read(self.paths[index])
        except OSError as error:
            raise ImageError(
                f"cannot open the image {self.paths[index]}",
                wanted="a file that can be read",
                came=error.strerror or type(error).__name__,
                remedy="Check the path and its permissions, or take it out of the set.",
            ) from error
