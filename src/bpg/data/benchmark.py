"""A public data set under a name: where its images lie, which split, which order, and what it must hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bpg.data.check import Checked, Unreadable, check_all
from bpg.data.domain import Domain, DomainStream, TestSet
from bpg.data.folder import Found
from bpg.errors import WrongUse, unknown_name


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
        domains = tuple(Domain(domain.name, domain.train) for domain in seen.domains)
        return DomainStream(self.name, domains, tuple(self._unseen_test(found, name) for name in self.unseen))

    def _unseen_test(self, found: Found, name: str) -> TestSet:
        if name not in found.domains:
            raise unknown_name("domain", name, found.domains)
        images = found.domains[name].test
        if images is None:
            raise WrongUse(
                f"{name} has no test images",
                wanted=f"some, for {self.name} tests on it",
                came="none",
                remedy="Complete the data.",
            )
        return TestSet(images, None, name)

    @property
    def sets(self) -> tuple[str, ...]:
        """What it is made of, as "domain/side"."""
        tested = self.unseen or self.order
        return (*(f"{name}/train" for name in self.order), *(f"{name}/test" for name in tested))

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
        if images is not None and (f"{name}/{side}" in benchmark.sets or f"{name}/{side}" not in benchmark.expected)
    }
    checked = check_all(sides.values(), progress=progress)
    results = [_verified(name, result, benchmark.expected) for name, result in zip(sides, checked, strict=True)]
    missing = [name for name in benchmark.sets if name in benchmark.expected and name not in sides]
    return results + [Verified(name, 0, {}, "", (), ["is missing"]) for name in missing]


def _verified(name: str, checked: Checked, published: Mapping[str, Any]) -> Verified:
    counts = checked.images.counts()
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
