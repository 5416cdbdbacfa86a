"""Folders of images as people have them: which layout it is, which domains and classes it holds, what is left out.

    class/*.jpg                      one domain
    {train,test}/class/*.jpg         one domain, split
    domain/class/*.jpg               several
    {train,test}/domain/class/*.jpg  several, split
    domain/{train,test}/class/*.jpg  several, split
    domain_{train,test}.txt          DomainNet's lists, which go before any folder

Where no split is given, a file's own name decides its side: it stays there whatever is added beside it.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from bpg.data.domain import Domain, DomainStream, TestSet
from bpg.data.images import ImageSet
from bpg.data.lists import read_list
from bpg.errors import WrongUse, unknown_name

SUFFIXES = frozenset([".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".webp", ".bmp", ".dib", ".tif", ".tiff"])
CLUTTER = frozenset(("thumbs.db", "desktop.ini"))  # with hidden files, what systems leave behind: not worth a word
TEST_FOLDERS = ("test", "val")
TEST_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Sides:
    """A domain's images to learn from and to test on; either may be missing."""

    train: ImageSet | None
    test: ImageSet | None


@dataclass(slots=True)
class LeftOut:
    """What lies among the images and is none of them."""

    formats: Counter[str] = field(default_factory=Counter)  # files of other formats, by suffix
    folders: list[Path] = field(default_factory=list)  # folders inside a class
    empty: list[Path] = field(default_factory=list)  # classes without an image

    def sentences(self, root: Path) -> list[str]:
        """What a user should know; paths from `root`."""
        said = []
        if self.formats:
            kinds = ", ".join(f"{count} {suffix}" for suffix, count in sorted(self.formats.items()))
            said.append(f"left out, as no JPEG, PNG, WebP, BMP or TIFF by name: {kinds}")
        for paths, what in ((self.folders, "folders inside a class, left out"), (self.empty, "classes without images")):
            if paths:
                more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
                said.append(f"{what}: {', '.join(str(path.relative_to(root)) for path in paths[:3])}{more}")
        return said


@dataclass(frozen=True, slots=True)
class Found:
    """What a folder or a list holds."""

    root: Path
    layout: str
    domains: Mapping[str, Sides]  # by name, sorted
    left_out: LeftOut

    def stream(self, *, name: str, order: Sequence[str] | None = None) -> DomainStream:
        """The domains as a stream, in `order` or that of their names; each must have both sides."""
        chosen = list(order) if order is not None else list(self.domains)
        for domain in chosen:
            if domain not in self.domains:
                raise unknown_name("domain", domain, self.domains)
            for side, images in (("training", self.domains[domain].train), ("test", self.domains[domain].test)):
                if not images:
                    raise WrongUse(
                        f"the domain {domain} has no {side} images",
                        wanted="images on both sides",
                        came=f"none among {self.root} ({self.layout})",
                        remedy="Add some, or leave the domain out of the order.",
                    )
        sides = [(domain, self.domains[domain]) for domain in chosen]
        domains = tuple(Domain(domain, side.train) for domain, side in sides if side.train is not None)
        tests = tuple(TestSet(side.test, domain) for domain, side in sides if side.test is not None)
        return DomainStream(name, domains, tests)

    def only(self) -> tuple[str, Sides]:
        """The one domain it holds."""
        if len(self.domains) != 1:
            names = list(self.domains)
            raise WrongUse(
                f"{self.root} holds {len(names)} domains",
                wanted="one domain: a folder for each class, with images in it",
                came=f"{self.layout}: {', '.join(names[:5])}{' and more' if len(names) > 5 else ''}",
                remedy=f"Take one of them: {self.root / names[0]}.",
            )
        return next(iter(self.domains.items()))


def read_folder(path: str | Path, *, name: str | None = None, test_share: float = TEST_SHARE) -> Found:
    """What `path` holds, a folder in one of the layouts or a list; `name` is the domain's, where it holds one.

    A list of its own is not split: its images are all to learn from. `test_share` is the share of images to test on
    where no split is given.
    """
    path = Path(path)
    if not 0 <= test_share <= 1:
        raise WrongUse("no such share", wanted="0 to 1", came=str(test_share), remedy="0.2 is usual.")
    if path.is_file():
        stem = path.stem.removesuffix("_train").removesuffix("_test")
        return Found(path, "a list", {_name(name or stem): Sides(read_list(path), None)}, LeftOut())
    try:
        return _read(path, _name(name or path.resolve().name or "domain"), test_share)
    except OSError as error:
        raise WrongUse(
            f"cannot look into {error.filename or path}",
            wanted="a folder of images, or a list",
            came=error.strerror or type(error).__name__,
            remedy="Check the path and its permissions.",
        ) from error


def limited(images: ImageSet, per_class: int) -> ImageSet:
    """At most `per_class` images of each class, chosen by their names alone."""
    pairs = zip(images.paths, images.labels, strict=True)
    keys = [_fraction(f"{images.classes[label]}/{path.name}/limit") for path, label in pairs]
    kept: set[int] = set()
    counts: Counter[int] = Counter()
    for index in sorted(range(len(images)), key=keys.__getitem__):
        if counts[images.labels[index]] < per_class:
            counts[images.labels[index]] += 1
            kept.add(index)
    return images.subset(sorted(kept))


def _read(root: Path, name: str, test_share: float) -> Found:
    left_out = LeftOut()
    lists = sorted(root.glob("*_train.txt"))
    if lists:
        return Found(root, "lists", _read_lists(lists, test_share), left_out)
    train, test = _split_folders(root)
    if train is not None and test is not None:
        if _depth(train) == 1:
            sides = Sides(_images(_classes(train, left_out)), _images(_classes(test, left_out)))
            return Found(root, "{train,test}/class", {name: sides}, left_out)
        listings = [{_name(d.name): _classes(d, left_out) for d in _folders(side)} for side in (train, test)]
        names = sorted(set(listings[0]) | set(listings[1]))
        domains = {n: Sides(*(_images(listing.get(n, {})) for listing in listings)) for n in names}
        return Found(root, "{train,test}/domain/class", domains, left_out)
    if _depth(root) == 1:
        return Found(root, "class", {name: _divided(_classes(root, left_out), test_share)}, left_out)
    domains, layouts = {}, set()
    for folder in _folders(root):
        train, test = _split_folders(folder)
        if train is not None and test is not None:
            sides = Sides(_images(_classes(train, left_out)), _images(_classes(test, left_out)))
            layouts.add("domain/{train,test}/class")
        else:
            sides = _divided(_classes(folder, left_out), test_share)
            layouts.add("domain/class")
        if sides.train is not None or sides.test is not None:
            domains[_name(folder.name)] = sides
    return Found(root, " and ".join(sorted(layouts)), dict(sorted(domains.items())), left_out)


def _read_lists(lists: Iterable[Path], test_share: float) -> dict[str, Sides]:
    domains = {}
    for file in lists:
        domain, train = _name(file.name.removesuffix("_train.txt")), read_list(file)
        beside = file.with_name(file.name.removesuffix("_train.txt") + "_test.txt")
        if beside.is_file():
            domains[domain] = Sides(train, read_list(beside))
        else:
            by_class: dict[str, list[Path]] = {name: [] for name in train.classes}
            for path, label in zip(train.paths, train.labels, strict=True):
                by_class[train.classes[label]].append(path)
            domains[domain] = _divided(by_class, test_share)
    return domains


def _divided(classes: Mapping[str, Sequence[Path]], test_share: float) -> Sides:
    """A side for each file, by its class and name alone."""
    tested = {path: _fraction(f"{name}/{path.name}") < test_share for name, paths in classes.items() for path in paths}
    sides = [
        _images({name: [path for path in paths if tested[path] is side] for name, paths in classes.items()})
        for side in (False, True)
    ]
    return Sides(*sides)


def _images(classes: Mapping[str, Sequence[Path]]) -> ImageSet | None:
    names = tuple(sorted(classes))
    pairs = [(path, label) for label, name in enumerate(names) for path in classes[name]]
    if not pairs:
        return None
    return ImageSet(tuple(path for path, _ in pairs), tuple(label for _, label in pairs), names)


def _classes(folder: Path, left_out: LeftOut) -> dict[str, list[Path]]:
    """The images of each class folder, in the order of their names."""
    classes: dict[str, list[Path]] = {}
    for place in _folders(folder):
        images = []
        for entry in sorted(place.iterdir()):
            if entry.name.startswith(".") or entry.name.lower() in CLUTTER:
                continue
            if entry.is_dir():
                left_out.folders.append(entry)
            elif entry.suffix.lower() in SUFFIXES:  # a dangling link too: it is named when it cannot be read
                images.append(entry)
            else:
                left_out.formats[entry.suffix.lower() or "without a suffix"] += 1
        if not images:
            left_out.empty.append(place)
        classes.setdefault(_name(place.name), []).extend(images)
    return classes


def _folders(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _split_folders(folder: Path) -> tuple[Path | None, Path | None]:
    inside = {entry.name.lower(): entry for entry in _folders(folder)}
    return inside.get("train"), next((inside[name] for name in TEST_FOLDERS if name in inside), None)


def _depth(root: Path) -> int:
    """1 if images lie in the folders of `root`, 2 if in the folders of these."""
    near = next(chain.from_iterable(_named_images(folder) for folder in _folders(root)), None)
    splits = any(None not in _split_folders(folder) for folder in _folders(root))
    below = chain.from_iterable(_folders(folder) for folder in _folders(root))
    far = next(chain.from_iterable(_named_images(folder) for folder in below), None)
    if near is not None and (far is not None or splits):
        raise WrongUse(
            f"{root} is laid out in two ways",
            wanted="images in class folders only: class/*.jpg, or domain/class/*.jpg",
            came=f"{near.relative_to(root)} and {far.relative_to(root) if far else 'train and test folders'}",
            remedy="Move the images that lie in the wrong place.",
        )
    if near is None and far is None and not splits:
        loose = next(_named_images(root), None)
        raise WrongUse(
            f"there are no images in {root}",
            wanted="class/*.jpg, domain/class/*.jpg, train and test folders of these, or DomainNet's lists",
            came=f"images without a class folder, such as {loose.name}" if loose else "no image in any of these places",
            remedy="Put the images of each class into a folder with its name." if loose else "Check the path.",
        )
    return 1 if near is not None else 2


def _named_images(folder: Path) -> Iterator[Path]:
    return (
        entry
        for entry in folder.iterdir()
        if entry.suffix.lower() in SUFFIXES and not entry.name.startswith(".") and not entry.is_dir()
    )


def _name(name: str) -> str:
    """One spelling for what looks the same: some systems write an accent as a character of its own."""
    return unicodedata.normalize("NFC", name)


def _fraction(key: str) -> float:
    """A number from 0 to 1 that depends on `key` alone."""
    digest = hashlib.sha256(unicodedata.normalize("NFC", key).encode(errors="surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
