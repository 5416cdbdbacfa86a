"""Folders of images as people have them: which layout it is, which domains and classes it holds, what is left out.

    class/*.jpg                      one domain
    {train,test}/class/*.jpg         one domain, split
    domain/class/*.jpg               several
    {train,test}/domain/class/*.jpg  several, split
    domain/{train,test}/class/*.jpg  several, split
    domain_{train,test}.txt          DomainNet's lists, which go before any folder
    domain-{train,test}-000.tar      WebDataset's shards of images with labels (.cls), likewise

Any of these may lie in a zip or tar archive, or in archives in the folder, which are read without being unpacked.
Where no split is given, a file's own name decides its side: it stays there whatever is added beside it.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Literal

from bpg.data.domain import Domain, DomainStream, TestSet, check_name
from bpg.data.files import is_archive
from bpg.data.images import SUFFIXES, ImageSet
from bpg.data.lists import read_list
from bpg.data.places import Place
from bpg.data.shards import domain_and_side, read_shards, shards_in
from bpg.errors import WrongUse, unknown_name

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".7z", ".rar")
TEST_FOLDERS = ("test", "val")
LIST_ENDS = ("_train.txt", "_test.txt")
TEST_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Sides:
    """A domain's images to learn from and to test on; either may be missing."""

    train: ImageSet | None
    test: ImageSet | None

    def named(self) -> dict[str, ImageSet]:
        """Those that there are, by "train" and "test"."""
        return {side: images for side, images in (("train", self.train), ("test", self.test)) if images is not None}


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
    variant: str | None = None  # of a benchmark that is handed round in several
    orders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of learning, by name, that came with the data

    def stream(self, *, name: str, order: Sequence[str] | None = None) -> DomainStream:
        """The domains as a stream, in `order` or that of their names; each must have both sides."""
        chosen = list(order) if order is not None else list(self.domains)
        domains = tuple(Domain(domain, self.learned(domain)) for domain in chosen)
        return DomainStream(name, domains, tuple(TestSet(self.tested(domain), domain) for domain in chosen))

    def learned(self, domain: str) -> ImageSet:
        """The images to learn a domain from; there must be some."""
        return self._side(domain, "training", lambda sides: sides.train)

    def tested(self, domain: str) -> ImageSet:
        """The images to test a domain on; there must be some."""
        return self._side(domain, "test", lambda sides: sides.test)

    def _side(self, domain: str, side: str, of: Callable[[Sides], ImageSet | None]) -> ImageSet:
        if domain not in self.domains:
            raise unknown_name("domain", domain, self.domains)
        images = of(self.domains[domain])
        if not images:
            raise WrongUse(
                f"the domain {domain} has no {side} images",
                wanted="images on both sides",
                came=f"none among {self.root} ({self.layout})",
                remedy="Add some, or leave the domain out of the order.",
            )
        return images

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
    if path.is_file() and not is_archive(path):
        stem = path.stem.removesuffix("_train").removesuffix("_test")
        return Found(path, "a list", {_name(name or stem): Sides(read_list(path), None)}, LeftOut(), "none")
    try:
        shards = shards_in(path)
        if shards:
            found = _read_shards(path, shards, test_share)
        else:
            found = read_place(Place.open(path), test_share=test_share)
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


def read_place(place: Place, *, test_share: float = TEST_SHARE) -> Found:
    """What `place` holds, a folder in one of the layouts."""
    root, left_out = place.path, LeftOut()
    here = root.resolve()
    name = _name((here.stem if is_archive(here) else here.name) or "domain")
    lists = {path.name.removesuffix(end) for path in place.files() for end in LIST_ENDS if path.name.endswith(end)}
    if lists:
        domains = {_name(domain): _read_lists(place, domain, test_share) for domain in sorted(lists)}
        return Found(root, "lists", domains, left_out, "given")
    split = _split_folders(place, left_out)
    if split is not None:
        train, test = split
        if (depth := _depth(train)) != _depth(test):
            raise WrongUse(
                f"{train.path} and {test.path} are laid out in two ways",
                wanted="the same folders below both",
                came="class folders below one, domain folders below the other",
                remedy="Lay them out alike.",
            )
        if depth == 1:
            sides = Sides(*(_images(_classes(side, left_out)) for side in split))
            return Found(root, "{train,test}/class", {name: sides}, left_out, "given")
        listings = [{n: _classes(inner, left_out) for n, inner in _domains(side).items()} for side in split]
        names = sorted(set(listings[0]) | set(listings[1]))
        domains = {n: Sides(*(_images(listing.get(n, {})) for listing in listings)) for n in names}
        return Found(root, "{train,test}/domain/class", domains, left_out, "given")
    if _depth(place) == 1:
        sides = divided(_classes(place, left_out), test_share)
        return Found(root, "class", {name: sides}, left_out, "made")
    domains, splits = {}, set()
    left_out.loose += _named_images(place)
    for domain, inner in _domains(place).items():
        split = _split_folders(inner, left_out)
        if split is not None:
            sides = Sides(*(_images(_classes(side, left_out)) for side in split))
        else:
            sides = divided(_classes(inner, left_out), test_share)
        if sides.train is not None or sides.test is not None:
            domains[domain] = sides
            splits.add(split is not None)
    if not domains:
        raise _no_images(place)
    layout = " and ".join("domain/{train,test}/class" if given else "domain/class" for given in sorted(splits))
    return Found(root, layout, domains, left_out, "given" if splits == {True} else "made")


def read_split(place: Place, names: Sequence[str], *, others: bool = True) -> Found:
    """DOMAIN/{train,test}/CLASS/*, where the nearest folder with one of these domains is, with `others` or without."""
    found = read_place(place.holding(*names) or place)
    return replace(found, domains={name: s for name, s in found.domains.items() if others or name in names})


def read_domains(
    place: Place, names: Mapping[str, Sequence[str]], *, inner: str | None = None, test_share: float
) -> Found:
    """Domains whose folders have one of several `names` each, with the classes in them or in their folder `inner`.

    Lists `domain_{train,test}.txt` go before; without them and without train and test folders, a split is made.
    """
    place = place.holding(*names, *chain.from_iterable(names.values())) or place
    domains: dict[str, Sides] = {}
    left_out, layouts = LeftOut(), set()
    for domain, known in names.items():
        listed = next(
            (e for e in (domain, *known) if place.holds(f"{e}_train.txt") and place.holds(f"{e}_test.txt")), ""
        )
        folder = next((found for e in (domain, *known) if (found := place.folder(e)) is not None), None)
        if listed:
            layouts.add("lists")
            domains[domain] = _read_lists(place, listed, test_share)
        elif folder is not None:
            folder = (folder.folder(inner) if inner is not None else None) or folder
            split = _split_folders(folder, left_out)
            layouts.add("domain/{train,test}/class" if split else "domain/class")
            sides = Sides(*(_images(_classes(s, left_out)) for s in split)) if split else None
            domains[domain] = sides or divided(_classes(folder, left_out), test_share)
    split_by: Literal["made", "given"] = "made" if "domain/class" in layouts else "given"
    return Found(place.path, " and ".join(sorted(layouts)), domains, left_out, split_by)


def _read_lists(place: Place, domain: str, test_share: float) -> Sides:
    """The sides of a domain that has a train list, a test list, or both."""
    train, test = (f"{domain}{end}" for end in LIST_ENDS)
    if place.holds(test):
        return Sides(read_list(train, root=place) if place.holds(train) else None, read_list(test, root=place))
    return divided(by_class(read_list(train, root=place)), test_share)


def by_class(images: ImageSet) -> dict[str, list[Path]]:
    """The paths of each class, in their order."""
    classes: dict[str, list[Path]] = {name: [] for name in images.classes}
    for path, label in zip(images.paths, images.labels, strict=True):
        classes[images.classes[label]].append(path)
    return classes


def _read_shards(root: Path, shards: Sequence[Path], test_share: float) -> Found:
    """Shards by the domain and side that their names tell; without a side, a split by name."""
    groups: dict[str, dict[str, list[Path]]] = {}
    for shard in shards:
        domain, side = domain_and_side(shard)
        groups.setdefault(_name(domain), {}).setdefault(side, []).append(shard)
    domains = {}
    for domain, sides in sorted(groups.items()):
        if "" in sides and len(sides) > 1:
            raise WrongUse(
                f"shards of {domain} with a side and without",
                wanted="-train or -test in the names of all of them, or of none",
                came=", ".join(shard.name for of_side in sides.values() for shard in of_side[:1]),
                remedy="Rename them.",
            )
        if "" in sides:
            domains[domain] = divided(by_class(read_shards(chain.from_iterable(sides.values()))), test_share)
        else:
            domains[domain] = Sides(
                *(read_shards(sides[side]) if side in sides else None for side in ("train", "test"))
            )
    split: Literal["given", "made"] = "made" if any("" in sides for sides in groups.values()) else "given"
    return Found(root, "shards", domains, LeftOut(), split)


def _domains(root: Place) -> dict[str, Place]:
    """The domain folders in `root` by name."""
    found: dict[str, Place] = {}
    for place in root.folders():
        if _name(place.name) in found:
            raise WrongUse(
                f"two folders in {root.path} have names that look the same",
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


def _no_images(place: Place) -> WrongUse:
    loose = next(_named_images(place), None)
    packed = [path.name for path in place.files() if path.name.lower().endswith(COMPRESSED)]
    if packed:
        return WrongUse(
            f"there are no images in {place.path} that could be read in place",
            wanted="folders, zip archives or plain tar archives",
            came=f"{packed[0]}, which can only be read from its beginning to its end",
            remedy="Unpack it, or pack its folder with `bpg data pack`.",
        )
    return WrongUse(
        f"there are no images in {place.path}",
        wanted="class/*.jpg, domain/class/*.jpg, train and test folders of these, or DomainNet's lists",
        came=f"images without a class folder, such as {loose.name}" if loose else "no image in any of these places",
        remedy="Put the images of each class into a folder with its name." if loose else "Check the path.",
    )


def _present(images: ImageSet | None) -> set[str]:
    return {images.classes[label] for label in images.labels} if images is not None else set()


def divided(classes: Mapping[str, Sequence[Path]], test_share: float) -> Sides:
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


def _classes(folder: Place, left_out: LeftOut) -> dict[str, list[Path]]:
    """The images of each class folder, in the order of their names."""
    classes: dict[str, list[Path]] = {}
    left_out.loose += _named_images(folder)
    for place in folder.folders():
        left_out.folders += [inner.path for inner in place.folders()]
        images = []
        for file in place.files():
            if file.suffix.lower() in SUFFIXES:  # a dangling link too: it is named when it cannot be read
                images.append(file)
            else:
                left_out.formats[file.suffix.lower() or "without a suffix"] += 1
        if not images:
            left_out.empty.append(place.path)
        classes.setdefault(_name(place.name), []).extend(images)
    return classes


def _split_folders(folder: Place, left_out: LeftOut | None = None) -> tuple[Place, Place] | None:
    """The train and the test folder in `folder`, if it has both; what lies beside them is left out."""
    inside = {entry.name.lower(): entry for entry in folder.folders()}
    test = next((inside[name] for name in TEST_FOLDERS if name in inside), None)
    if "train" not in inside or test is None:
        return None
    if left_out is not None:
        left_out.folders += [entry.path for entry in inside.values() if entry not in (inside["train"], test)]
    return inside["train"], test


def _depth(root: Place) -> int:
    """1 if images lie in the folders of `root`, 2 if in the folders of these."""
    folders = root.folders()
    near = next(chain.from_iterable(_named_images(folder) for folder in folders), None)
    splits = any(_split_folders(folder) is not None for folder in folders)
    below = chain.from_iterable(folder.folders() for folder in folders)
    far = next(chain.from_iterable(_named_images(folder) for folder in below), None)
    if near is not None and (far is not None or splits):
        raise WrongUse(
            f"{root.path} is laid out in two ways",
            wanted="images in class folders only: class/*.jpg, or domain/class/*.jpg",
            came=f"{_shown(near, root)} and {_shown(far, root) if far else 'train and test folders'}",
            remedy="Move the images that lie in the wrong place.",
        )
    if near is None and far is None and not splits:
        raise _no_images(root)
    return 1 if near is not None else 2


def _named_images(folder: Place) -> Iterator[Path]:
    return (file for file in folder.files() if file.suffix.lower() in SUFFIXES)


def _shown(file: Path, root: Place) -> str:
    return str(file.relative_to(root.path) if file.is_relative_to(root.path) else file)


def _name(name: str) -> str:
    """One spelling for what looks the same: some systems write an accent as a character of its own."""
    return unicodedata.normalize("NFC", name)


def _fraction(key: str) -> float:
    """A number from 0 to 1 that depends on `key` alone."""
    digest = hashlib.sha256(unicodedata.normalize("NFC", key).encode(errors="surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
