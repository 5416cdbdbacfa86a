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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Literal

from bpg.data.domain import Domain, DomainStream, TestSet, check_name
from bpg.data.images import ImageSet
from bpg.data.lists import read_list
from bpg.errors import WrongUse, unknown_name

SUFFIXES = frozenset([".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".webp", ".bmp", ".dib", ".tif", ".tiff"])
CLUTTER = frozenset(("thumbs.db", "desktop.ini"))  # with hidden files, what systems leave behind: not worth a word
TEST_FOLDERS = ("test", "val")
LIST_ENDS = ("_train.txt", "_test.txt")
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
    folders: list[Path] = field(default_factory=list)  # inside a class, or beside train and test
    loose: list[Path] = field(default_factory=list)  # images outside any class
    empty: list[Path] = field(default_factory=list)  # classes without an image

    def sentences(self, root: Path) -> list[str]:
        """What a user should know; paths from `root`."""
        said = []
        if self.formats:
            kinds = ", ".join(f"{count} {suffix}" for suffix, count in sorted(self.formats.items()))
            said.append(f"left out, as no JPEG, PNG, WebP, BMP or TIFF by name: {kinds}")
        for paths, what in (
            (self.folders, "folders that are no class, left out"),
            (self.loose, "images without a class folder, left out"),
            (self.empty, "classes without images"),
        ):
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
    split: Literal["given", "made", "none"]  # who decided which images are to test on; none: a list by itself

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
            raise _several(self.root, self.layout, list(self.domains))
        return next(iter(self.domains.items()))

    def untaught(self) -> dict[str, list[str]]:
        """The classes of each domain that have images to test on, and none to learn from."""
        lacking = {
            name: sorted(_present(sides.test) - _present(sides.train))
            for name, sides in self.domains.items()
            if sides.train is not None
        }
        return {name: classes for name, classes in lacking.items() if classes}


def read_folder(path: str | Path, *, name: str | None = None, test_share: float = TEST_SHARE) -> Found:
    """What `path` holds, a folder in one of the layouts or a list; `name` is for the one domain it holds.

    A list of its own is not split: its images are all to learn from. `test_share` is the share of images to test on
    where no split is given.
    """
    path = Path(path)
    if not 0 <= test_share <= 1:
        raise WrongUse("no such share", wanted="0 to 1", came=str(test_share), remedy="0.2 is usual.")
    if name is not None:
        check_name(name)
    if path.is_file():
        stem = path.stem.removesuffix("_train").removesuffix("_test")
        return Found(path, "a list", {_name(name or stem): Sides(read_list(path), None)}, LeftOut(), "none")
    try:
        found = _read(path, _name(path.resolve().name or "domain"), test_share)
    except OSError as error:
        raise WrongUse(
            f"cannot look into {error.filename or path}",
            wanted="a folder of images, or a list",
            came=error.strerror or type(error).__name__,
            remedy="Check the path and its permissions.",
        ) from error
    if name is None:
        return found
    if len(found.domains) > 1:
        raise _several(path, found.layout, list(found.domains))
    return replace(found, domains={_name(name): found.only()[1]})


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
    lists = {path.name.removesuffix(end) for end in LIST_ENDS for path in root.glob(f"*{end}")}
    if lists:
        domains = {_name(domain): _read_lists(root, domain, test_share) for domain in sorted(lists)}
        return Found(root, "lists", domains, left_out, "given")
    split = _split_folders(root, left_out)
    if split is not None:
        train, test = split
        if (depth := _depth(train)) != _depth(test):
            raise WrongUse(
                f"{train} and {test} are laid out in two ways",
                wanted="the same folders below both",
                came="class folders below one, domain folders below the other",
                remedy="Lay them out alike.",
            )
        if depth == 1:
            sides = Sides(*(_images(_classes(side, left_out)) for side in split))
            return Found(root, "{train,test}/class", {name: sides}, left_out, "given")
        listings = [{n: _classes(place, left_out) for n, place in _domains(side).items()} for side in split]
        names = sorted(set(listings[0]) | set(listings[1]))
        domains = {n: Sides(*(_images(listing.get(n, {})) for listing in listings)) for n in names}
        return Found(root, "{train,test}/domain/class", domains, left_out, "given")
    if _depth(root) == 1:
        sides = _divided(_classes(root, left_out), test_share)
        return Found(root, "class", {name: sides}, left_out, "made")
    domains, splits = {}, set()
    left_out.loose += _named_images(root)
    for domain, place in _domains(root).items():
        split = _split_folders(place, left_out)
        if split is not None:
            sides = Sides(*(_images(_classes(side, left_out)) for side in split))
        else:
            sides = _divided(_classes(place, left_out), test_share)
        if sides.train is not None or sides.test is not None:
            domains[domain] = sides
            splits.add(split is not None)
    if not domains:
        raise _no_images(root)
    layout = " and ".join("domain/{train,test}/class" if given else "domain/class" for given in sorted(splits))
    return Found(root, layout, domains, left_out, "given" if splits == {True} else "made")


def _read_lists(root: Path, domain: str, test_share: float) -> Sides:
    """The sides of a domain that has a train list, a test list, or both."""
    train, test = (root / f"{domain}{end}" for end in LIST_ENDS)
    if test.is_file():
        return Sides(read_list(train) if train.is_file() else None, read_list(test))
    images = read_list(train)
    classes: dict[str, list[Path]] = {name: [] for name in images.classes}
    for path, label in zip(images.paths, images.labels, strict=True):
        classes[images.classes[label]].append(path)
    return _divided(classes, test_share)


def _domains(root: Path) -> dict[str, Path]:
    """The domain folders in `root` by name."""
    found: dict[str, Path] = {}
    for place in _folders(root):
        if _name(place.name) in found:
            raise WrongUse(
                f"two folders in {root} have names that look the same",
                wanted="a name of its own for each domain",
                came=f"{place.name!r} twice, in two spellings of Unicode",
                remedy="Rename one of them, or put their images together.",
            )
        found[_name(place.name)] = place
    return found


def _several(root: Path, layout: str, names: Sequence[str]) -> WrongUse:
    inside = layout.startswith("domain")
    return WrongUse(
        f"{root} holds {len(names)} domains",
        wanted="one domain: a folder for each class, with images in it",
        came=f"{layout}: {', '.join(names[:5])}{' and more' if len(names) > 5 else ''}",
        remedy=f"Take one of them: {root / names[0]}." if inside else "Give a folder or a list of one of them.",
    )


def _no_images(root: Path) -> WrongUse:
    loose = next(_named_images(root), None)
    return WrongUse(
        f"there are no images in {root}",
        wanted="class/*.jpg, domain/class/*.jpg, train and test folders of these, or DomainNet's lists",
        came=f"images without a class folder, such as {loose.name}" if loose else "no image in any of these places",
        remedy="Put the images of each class into a folder with its name." if loose else "Check the path.",
    )


def _present(images: ImageSet | None) -> set[str]:
    return {images.classes[label] for label in images.labels} if images is not None else set()


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
    left_out.loose += _named_images(folder)
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


def _split_folders(folder: Path, left_out: LeftOut | None = None) -> tuple[Path, Path] | None:
    """The train and the test folder in `folder`, if it has both; what lies beside them is left out."""
    inside = {entry.name.lower(): entry for entry in _folders(folder)}
    test = next((inside[name] for name in TEST_FOLDERS if name in inside), None)
    if "train" not in inside or test is None:
        return None
    if left_out is not None:
        left_out.folders += [entry for entry in inside.values() if entry not in (inside["train"], test)]
    return inside["train"], test


def _depth(root: Path) -> int:
    """1 if images lie in the folders of `root`, 2 if in the folders of these."""
    near = next(chain.from_iterable(_named_images(folder) for folder in _folders(root)), None)
    splits = any(_split_folders(folder) is not None for folder in _folders(root))
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
        raise _no_images(root)
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
