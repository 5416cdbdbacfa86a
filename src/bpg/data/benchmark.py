"""A public data set under a name: where its images lie, which split, which order, and what it must hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from bpg.data.domain import TEMPLATE, Domain, DomainStream, TestSet
from bpg.data.folder import Found
from bpg.data.places import Place
from bpg.errors import BPGError, ImageError, WrongUse, unknown_name

UNFINISHED = ".part"  # ends the name of a download that is under way


@dataclass(frozen=True, slots=True)
class Download:
    """A file to fetch."""

    address: str
    sha256: str | None = None  # where it is published
    folder: str = ""  # in the benchmark's, where it goes

    @property
    def name(self) -> str:
        return self.address.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Benchmark:
    """Domains to learn in an order, and what they are tested on."""

    name: str
    title: str
    licence: str  # SPDX, or in words
    source: str  # where to get it
    read: Callable[[Place], Found]
    order: tuple[str, ...]  # of learning
    orders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # others in use, by name
    variants: tuple[str, ...] = ()  # in which it is used, of those that are handed round
    unseen: tuple[str, ...] = ()  # what to test on instead, which is never learned and belongs to no domain
    template: str = TEMPLATE  # a text for CLIP that names a class
    shipped: Path | None = None  # where it lies inside the package
    downloads: tuple[Download, ...] = ()  # files that make it up; none where it cannot be had by an address
    gigabytes: float | None = None  # to download
    # Makes it in a folder, from what was downloaded or given, and tells how far it is.
    build: Callable[[Path, Path | None, Callable[[int, int], None]], None] | None = None
    credit: str = ""  # whom to name wherever its images are shown
    published: Callable[[], Mapping[str, Any]] | None = None  # "domain/side" -> images, classes, sha256, if known

    def find(self, root: Path | None) -> Found:
        """What there is of it at `root`, a folder or an archive; what ships with the package needs none."""
        where = self.shipped if root is None else root
        if where is None:
            raise WrongUse(
                f"{self.name} does not ship with bpg",
                wanted="the folder or archive it lies in",
                came="none",
                remedy=f"Name it. {self._remedy}",
            )
        try:
            folders = {"", *(download.folder for download in self.downloads)}
            unfinished = sorted(path.name for each in folders for path in (where / each).glob(f"*{UNFINISHED}"))
            found = self.read(Place.open(where)) if not unfinished else None
        except (OSError, ValueError) as error:
            if isinstance(error, BPGError) and root is not None:
                raise
            raise (ImageError if root is None else WrongUse)(
                f"{where} does not hold {self.name}",
                wanted=f"{self.title}, as it is handed out",
                came=getattr(error, "strerror", None) or str(error) or "something else",
                remedy="Install the package anew." if root is None else self._remedy,
            ) from error
        if found is None:
            raise WrongUse(
                f"{self.name} is not complete in {where}",
                wanted="what `bpg data prepare` finished",
                came=", ".join(unfinished[:3]),
                remedy=f"The same `bpg data prepare {self.name} {where} ...` goes on with it.",
            )
        if not set(found.domains) & set(self.order):
            raise WrongUse(
                f"{where} does not hold {self.name}",
                wanted=f"the domains {', '.join(self.order)}",
                came=", ".join(list(found.domains)[:5]) or "none",
                remedy=self._remedy,
            )
        return found

    def stream(self, found: Found, order: Sequence[str] | str | None = None) -> DomainStream:
        """The stream among what was found, in `order`, by domains or by name, or the benchmark's own."""
        chosen = self.order_of(found, order)
        if not self.unseen:
            stream = found.stream(name=self.name, order=chosen)
            return replace(stream, domains=tuple(replace(d, template=self.template) for d in stream.domains))
        learned = set(chosen) & set(self.unseen)
        if learned:
            raise WrongUse(
                f"{self.name} tests on domains that are never learned",
                wanted=f"an order of {', '.join(self.order)}",
                came=", ".join(sorted(learned)),
                remedy="Leave them out of the order.",
            )
        domains = tuple(Domain(name, found.learned(name), self.template) for name in chosen)
        return DomainStream(self.name, domains, tuple(TestSet(found.tested(name), None, name) for name in self.unseen))

    def order_of(self, found: Found, order: Sequence[str] | str | None) -> tuple[str, ...]:
        """The domains in `order`, where that is a name, too."""
        if order is None:
            return self.order
        if not isinstance(order, str):
            return tuple(order)
        known = {**self.orders, **found.orders}
        if order not in known:
            raise unknown_name(f"order of {self.name}", order, known)
        return known[order]

    @property
    def _remedy(self) -> str:
        return f"`bpg data prepare {self.name} FOLDER` fetches it, or tells how to."

    @property
    def sets(self) -> tuple[str, ...]:
        """What it is made of, as "domain/side"."""
        tested = self.unseen or self.order
        return (*(f"{name}/train" for name in self.order), *(f"{name}/test" for name in tested))

    @cached_property
    def expected(self) -> Mapping[str, Any]:
        """The published sets, "domain/side" -> images, classes, digests; nothing where nothing is published."""
        return self.published() if self.published is not None else {}


@cache
def known_of(name: str) -> Mapping[str, Any]:
    """What ships of a benchmark's published numbers: sets "domain/side", and classes by label where these are fixed."""
    file = files("bpg").joinpath("data", "published", f"{name}.json")
    known: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return known


def published(name: str) -> Callable[[], Mapping[str, Any]]:
    """The published sets of a benchmark, to be read when they are asked for."""

    def sets() -> Mapping[str, Any]:
        found: Mapping[str, Any] = known_of(name)["sets"]
        return found

    return sets
