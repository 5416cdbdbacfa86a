"""Whether a benchmark is what was published: every image read once, counted, hashed and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bpg.data.benchmark import Benchmark
from bpg.data.check import Checked, Unreadable, check_all
from bpg.data.folder import Found
from bpg.data.images import ImageSet

SHOWN = 5  # examples of a fault


@dataclass(frozen=True, slots=True)
class Verified:
    """One side of a domain: what it holds, and what is wrong with it."""

    name: str  # domain/side
    images: int
    classes: Mapping[str, int]
    sha256: str
    unreadable: tuple[Unreadable, ...]
    empty: tuple[str, ...] = ()  # classes without an image, with their labels
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` found."""

    sets: list[Verified]
    leaks: list[str]  # the same picture to learn from and to test on
    conflicts: list[str]  # the same picture under two classes
    wrong: list[str]  # of no single set

    def faults(self, *, duplicates: bool = True) -> list[str]:
        """Everything that is wrong, duplicates among it or not."""
        found = [f"{each.name}: {fault}" for each in self.sets for fault in each.wrong] + self.wrong
        if duplicates:
            found += _some(self.leaks, "images to test on are among those to learn from, too")
            found += _some(self.conflicts, "pictures have two classes")
        return found


def verify(
    benchmark: Benchmark,
    found: Found,
    progress: Callable[[int, int], None] | None = None,
    *,
    again: bool = False,
) -> Verification:
    """Read every image once, and hold counts and digests against the published ones.

    What was read before and did not change is read `again` only if it is said.
    """
    sides = {
        f"{name}/{side}": images
        for name, both in found.domains.items()
        for side, images in both.named().items()
        if f"{name}/{side}" in benchmark.sets or f"{name}/{side}" not in benchmark.expected
    }
    checked = dict(zip(sides, check_all(sides.values(), again=again, progress=progress), strict=True))
    published = benchmark.expected if found.split == "given" else {}
    sets = [_verified(name, result, sides[name], published) for name, result in checked.items()]
    for each in sets:
        if each.name not in benchmark.sets:
            each.wrong.append("is no part of it")
    missing = [name for name in benchmark.sets if name not in sides]
    sets += [Verified(name, 0, {}, "", (), wrong=["is missing"]) for name in missing]
    wrong = _totals(benchmark, sets)
    if found.variant is not None and benchmark.variants and found.variant not in benchmark.variants:
        wrong.append(f"variant: {' or '.join(benchmark.variants)} wanted, {found.variant} came")
    return Verification(sets, *_duplicates(checked), wrong)


def sizes_off(benchmark: Benchmark, found: Found) -> list[str]:
    """The sets that hold more or fewer images than published; none is read."""
    if found.split != "given":
        return []
    held = {f"{name}/{side}": len(each) for name, both in found.domains.items() for side, each in both.named().items()}
    return [
        f"{name}: {images_of(wanted):,} images are published, {held.get(name, 0):,} are here"
        for name, wanted in benchmark.expected.items()
        if name in benchmark.sets and held.get(name, 0) != images_of(wanted)
    ]


def _verified(name: str, checked: Checked, images: ImageSet, published: Mapping[str, Any]) -> Verified:
    counts = checked.images.counts()
    wrong = [f"{len(checked.unreadable)} images cannot be read"] if checked.unreadable else []
    wanted = published.get(name)
    if wanted is not None:
        wrong += _differences(images, counts, wanted)
        if not wrong and checked.sha256 != wanted.get("sha256", checked.sha256):
            wrong.append("as many images as published, but not the same")
        same = [other for other, known in published.items() if images_of(known) == len(images) != images_of(wanted)]
        if wrong and same:
            wrong.append(f"as many images as published for {same[0]}: are two lists swapped?")
    empty = tuple(f"{each} ({label})" for label, each in enumerate(images.classes) if not counts.get(each))
    return Verified(name, len(checked.images), counts, checked.sha256, checked.unreadable, empty, wrong)


def _differences(images: ImageSet, counts: Mapping[str, int], wanted: Mapping[str, Any]) -> list[str]:
    """How the number of images, listed and readable, differs from what was published."""
    wrong = []
    if len(images) != images_of(wanted):
        wrong.append(f"{images_of(wanted):,} images wanted, {len(images):,} came")
    if "classes" in wanted:
        classes = wanted["classes"]
        off = sorted(c for c in {*counts, *classes} if counts.get(c, 0) != classes.get(c, 0))
        some = [f"{c}: {classes.get(c, 0)} images wanted, {counts.get(c, 0)} came" for c in off[:SHOWN]]
        more = [f"and {len(off) - SHOWN} classes more"] if len(off) > SHOWN else []
        wrong += ["; ".join(some + more)] if off else []
    return wrong


def images_of(wanted: Mapping[str, Any]) -> int:
    """How many images are published of a set."""
    return int(wanted["images"] if "images" in wanted else sum(wanted["classes"].values()))


def _totals(benchmark: Benchmark, sets: list[Verified]) -> list[str]:
    """What is published of whole domains, or of all of them, and does not hold."""
    wrong = []
    for name, wanted in benchmark.expected.items():
        if name.rpartition("/")[2] in ("train", "test"):
            continue
        sides = [each for each in sets if name in ("all", each.name.rpartition("/")[0])]
        came = sum(each.images + len(each.unreadable) for each in sides)
        if came != wanted["images"]:
            wrong.append(f"{name}: {wanted['images']:,} images wanted, {came:,} came")
        for each in sorted(wanted.get("classes", {})):
            held = sum(side.classes.get(each, 0) for side in sides)
            if held != wanted["classes"][each]:
                wrong.append(f"{name}: {each}: {wanted['classes'][each]} images wanted, {held} came")
    return wrong


def _duplicates(checked: Mapping[str, Checked]) -> tuple[list[str], list[str]]:
    """Test images that are also to learn from, and pictures of two classes, by content."""
    first: dict[bytes, tuple[str, Path]] = {}  # a picture -> its class and where it was found first
    learned: dict[bytes, Path] = {}
    conflicts, leaks = [], []
    for name in sorted(checked, key=lambda name: name.endswith("/test")):  # what is learned from first
        images = checked[name].images
        for path, label, file in zip(images.paths, images.labels, checked[name].files, strict=True):
            shown, before = first.setdefault(file, (images.classes[label], path))
            if shown != images.classes[label]:
                conflicts.append(f"{before} ({shown}) and {path} ({images.classes[label]})")
            if name.endswith("/train"):
                learned.setdefault(file, path)
            elif file in learned:
                leaks.append(f"{learned[file]} and {path}")
    return leaks, conflicts


def _some(faults: list[str], what: str) -> list[str]:
    if not faults:
        return []
    more = f" and {len(faults) - SHOWN:,} more" if len(faults) > SHOWN else ""
    return [f"{len(faults):,} {what}: {'; '.join(faults[:SHOWN])}{more}"]
