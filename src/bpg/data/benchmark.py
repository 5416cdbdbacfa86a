"""A public data set under a name: where its images lie, which split, which order, and what it must hold."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bpg.data.check import Unreadable, check
from bpg.data.domain import Domain, DomainStream, TestSet
from bpg.data.folder import Found
from bpg.data.images import ImageSet
from bpg.errors import WrongUse


@dataclass(frozen=True)
class Benchmark:
    """Domains to learn in an order, and what they are tested on."""

    name: str
    title: str
    licence: str  # SPDX, or in words
    source: str  # where to get it
    read: Callable[[Path | None], Found]  # what lies in a folder; None for one that ships with the package
    order: tuple[str, ...]  # of learning
    unseen: tuple[str, ...] = ()  # domains to test on instead, which are never learned
    credit: str = ""  # whom to name wherever its images are shown
    published: Path | None = None  # JSON: sets "domain/side", each with its classes' counts and its digest

    def stream(self, found: Found, order: Sequence[str] | None = None) -> DomainStream:
        """The stream among what was found, in `order` or the benchmark's own."""
        chosen = tuple(order) if order is not None else self.order
        if not self.unseen:
            return found.stream(name=self.name, order=chosen)
        learned = set(chosen) & set(self.unseen)
        if learned:
            raise WrongUse(
                f"{self.name} tests on domains that are never learned",
                wanted=f"an order of {', '.join(self.order)}",
                came=", ".join(sorted(learned)),
                remedy="Leave them out of the order.",
            )
        seen = found.stream(name=self.name, order=chosen)
        tests = [(name, found.domains[name].test) for name in self.unseen]
        return DomainStream(
            self.name,
            tuple(Domain(domain.name, domain.train) for domain in seen.domains),
            tuple(TestSet(images, None, name) for name, images in tests if images is not None),
        )

    @cached_property
    def expected(self) -> Mapping[str, Any]:
        """The published sets, "domain/side" -> classes and digest; nothing where nothing is published."""
        if self.published is None:
            return {}
        sets: Mapping[str, Any] = json.loads(self.published.read_text(encoding="utf-8"))["sets"]
        return sets


@dataclass(frozen=True, slots=True)
class Verified:
    """One side of a domain: what it holds, and what is wrong with it."""

    name: str  # domain/side
    images: int
    classes: Mapping[str, int]
    sha256: str
    unreadable: tuple[Unreadable, ...]
    wrong: list[str] = field(default_factory=list)


def verify(benchmark: Benchmark, found: Found, progress: Callable[[int, int], None] | None = None) -> list[Verified]:
    """Read every image once, and hold counts and digests against the published ones."""
    sides = {
        f"{name}/{side}": images
        for name, both in found.domains.items()
        for side, images in (("train", both.train), ("test", both.test))
        if images is not None
    }
    done, total = 0, sum(map(len, sides.values()))
    results = []
    for name, images in sides.items():

        def go_on(now: int, _: int, before: int = done) -> None:
            if progress is not None:
                progress(before + now, total)

        results.append(_verified(name, images, benchmark.expected, go_on))
        done += len(images)
    missing = sorted(set(benchmark.expected) - set(sides))
    return results + [Verified(name, 0, {}, "", (), ["is missing"]) for name in missing]


def _verified(
    name: str, images: ImageSet, published: Mapping[str, Any], progress: Callable[[int, int], None]
) -> Verified:
    checked = check(images, progress=progress)
    counts = dict(sorted(Counter(images.classes[label] for label in checked.images.labels).items()))
    wrong = [f"{len(checked.unreadable)} images cannot be read"] if checked.unreadable else []
    wanted = published.get(name)
    if published and wanted is None:
        wrong.append("is no part of it")
    elif wanted is not None:
        off = {c for c in {*counts, *wanted["classes"]} if counts.get(c, 0) != wanted["classes"].get(c, 0)}
        wrong += [f"{c}: {wanted['classes'].get(c, 0)} images wanted, {counts.get(c, 0)} came" for c in sorted(off)]
        if not wrong and checked.sha256 != wanted["sha256"]:
            wrong.append("as many images as published, but not the same")
    return Verified(name, len(checked.images), counts, checked.sha256, checked.unreadable, wrong)
