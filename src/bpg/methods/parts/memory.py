"""A rehearsal memory: images of earlier domains that a method keeps, and how they come back into training.

Reservoir sampling (Vitter 1985): each image seen so far is kept with the same chance. Herding (Welling 2009, as iCaRL
has it): of every class of every domain, the images whose mean comes nearest to that of all. Balanced: as many of every
class of every domain, drawn at random.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import NonNegativeInt
from torch import Tensor

from bpg.config import settings
from bpg.data.batches import Batches, order_of
from bpg.data.domain import Domain
from bpg.data.images import ImageSet
from bpg.randomness import generator_of, seed_of

Features = Callable[[ImageSet], Tensor]  # unit-length features (n, d), which herding looks at


@settings
class MemorySettings:
    """Which images are kept."""

    images: NonNegativeInt = 2000  # M, of all domains together
    choice: Literal["reservoir", "herding", "balanced"] = "reservoir"
    keep: Literal["images", "references"] = "images"  # the encoded files, or only where they are


@dataclass(frozen=True, slots=True)
class Kept:
    """One image in the memory."""

    name: str  # of its class
    domain: str
    path: str  # of a reference; empty where the file itself is kept
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class KeptImages(ImageSet):
    """A set of images some of which are in memory."""

    contents: tuple[bytes | None, ...] = ()

    def encoded(self, index: int) -> bytes:
        content = self.contents[index]
        return content if content is not None else ImageSet.encoded(self, index)

    def subset(self, indices: Iterable[int]) -> KeptImages:
        chosen = list(indices)
        few = ImageSet.subset(self, chosen)
        return KeptImages(few.paths, few.labels, few.classes, tuple(self.contents[index] for index in chosen))


class Memory:
    """At most M images. What is kept of a domain is decided when it is learned."""

    def __init__(self, wanted: MemorySettings) -> None:
        self.wanted = wanted
        self.kept: list[Kept] = []
        self.seen: dict[str, int] = {}  # images of each domain

    def __len__(self) -> int:
        return len(self.kept)

    def after(self, domain: Domain, *, seed: int, features: Features | None = None) -> Memory:
        """The memory when `domain` is learned, too. `features` are what herding looks at."""
        made = self.without(domain.name)  # what is learned anew is kept anew
        if self.wanted.choice == "reservoir" and domain.name in self.seen:  # it has had its share: others keep theirs
            made.kept += made._reservoir([], domain, seed, most=self.wanted.images - len(made.kept), came=0)
        elif self.wanted.choice == "reservoir":
            came = sum(made.seen.values())
            made.kept = made._reservoir(made.kept, domain, seed, most=self.wanted.images, came=came)
        else:
            made.kept = made._cells(made.kept, domain, seed, features)
        made.seen[domain.name] = len(domain.train)
        return made

    def without(self, domain: str) -> Memory:
        """What is kept of the other domains."""
        made = Memory(self.wanted)
        made.kept = [each for each in self.kept if each.domain != domain]
        made.seen = {name: count for name, count in self.seen.items() if name != domain}
        return made

    def images(self, row: Callable[[str, str], str] | None = None) -> KeptImages:
        """The kept images, labelled by class, or by what `row` makes of class and domain."""
        names = [row(each.name, each.domain) if row else each.name for each in self.kept]
        classes = tuple(sorted(set(names)))
        places = {name: place for place, name in enumerate(classes)}
        paths = [Path(each.path or f"memory/{each.domain}/{at}") for at, each in enumerate(self.kept)]
        contents = tuple(each.content for each in self.kept)
        return KeptImages(tuple(paths), tuple(places[name] for name in names), classes, contents)

    def joined(self, domain: Domain, row: Callable[[str, str], str]) -> Domain:
        """`domain` with the kept images among its own, labelled by what `row` makes of class and domain."""
        own, kept = domain.train, self.without(domain.name).images(row)
        named = [row(own.classes[label], domain.name) for label in own.labels]
        named += [kept.classes[label] for label in kept.labels]
        classes = tuple(sorted(set(named)))
        places = {name: place for place, name in enumerate(classes)}
        contents = own.contents if isinstance(own, KeptImages) else (None,) * len(own)
        labels = tuple(places[name] for name in named)
        train = KeptImages((*own.paths, *kept.paths), labels, classes, (*contents, *kept.contents))
        return replace(domain, train=train)

    def digest(self) -> str:
        """The sha256 of what is kept, in its order."""
        found = hashlib.sha256()
        for each in self.kept:
            found.update(hashlib.sha256(each.content or b"").digest())
            found.update(f"{each.name}\0{each.domain}\0{each.path}\0".encode())
        return found.hexdigest()

    def tensors(self) -> dict[str, Tensor]:
        """The kept files, or where they are, as the store takes them."""
        files = [each.content if each.content is not None else each.path.encode() for each in self.kept]
        whole = torch.from_numpy(np.frombuffer(b"".join(files), dtype=np.uint8).copy())
        return {"memory/files": whole, "memory/sizes": torch.tensor([len(file) for file in files], dtype=torch.long)}

    def facts(self) -> dict[str, Any]:
        """What is known of them, as JSON."""
        columns = {f"{what}s": [getattr(each, what) for each in self.kept] for what in ("name", "domain")}
        return columns | {"seen": self.seen, "keeps": self.wanted.keep}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Take up what `tensors` and `facts` tell."""
        sizes, files = tensors["sizes"].tolist(), tensors["files"].numpy().tobytes()
        ends = torch.tensor([0, *sizes], dtype=torch.long).cumsum(0).tolist()
        if ends[-1] != len(files) or facts["keeps"] != self.wanted.keep:
            raise ValueError(f"{ends[-1]} bytes of {facts['keeps']} are told, {len(files)} are there")
        cut = [files[begin:end] for begin, end in pairwise(ends)]
        refers = self.wanted.keep == "references"
        self.kept = [
            Kept(name, domain, file.decode()) if refers else Kept(name, domain, "", file)
            for name, domain, file in zip(facts["names"], facts["domains"], cut, strict=True)
        ]
        self.seen = {str(name): int(count) for name, count in facts["seen"].items()}

    def _item(self, domain: Domain, index: int) -> Kept:
        own = domain.train
        name = own.classes[own.labels[index]]
        if self.wanted.keep == "references":
            return Kept(name, domain.name, str(own.paths[index].absolute()))
        return Kept(name, domain.name, "", own.encoded(index))

    def _reservoir(self, before: Sequence[Kept], domain: Domain, seed: int, *, most: int, came: int) -> list[Kept]:
        """`most` of what is kept of the `came` images before and of the domain's, each once, as the first epoch has it.

        An image of this domain is a number until it is known to stay.
        """
        slots: list[Kept | int] = [*before]
        generator = generator_of(seed, domain.name, "reservoir")
        for place, index in enumerate(order_of(seed, domain.name, 0, len(domain.train)), start=came):
            if len(slots) < most:
                slots.append(index)
            elif (slot := int(torch.randint(place + 1, (1,), generator=generator))) < most:
                slots[slot] = index
        return [self._item(domain, slot) if isinstance(slot, int) else slot for slot in slots]

    def _cells(self, before: Sequence[Kept], domain: Domain, seed: int, features: Features | None) -> list[Kept]:
        """As many of each class of each domain; those that are kept of old ones are the first of before."""
        own = domain.train
        cells: dict[tuple[str, str], list[Any]] = {}
        for each in before:
            cells.setdefault((each.domain, each.name), []).append(each)
        found = features(own) if features is not None and self.wanted.choice == "herding" else None
        for label, name in enumerate(own.classes):
            members = [index for index, its in enumerate(own.labels) if its == label]
            if not members:
                continue
            if found is not None:
                order = herding(found[members], most=self.wanted.images)
            else:
                generator = generator_of(seed, domain.name, "balanced", name)
                order = torch.randperm(len(members), generator=generator).tolist()
            cells[domain.name, name] = [members[place] for place in order]
        quotas = shares({cell: len(members) for cell, members in cells.items()}, self.wanted.images)
        kept = [each for cell, members in sorted(cells.items()) for each in members[: quotas[cell]]]
        return [self._item(domain, each) if isinstance(each, int) else each for each in kept]


def of_memory(name: str) -> bool:
    """Whether a shared tensor is of the memory: bytes of files or paths, which are no numbers that a model computes
    with.
    """
    return name.startswith("memory/")


def shares(sizes: Mapping[Any, int], total: int) -> dict[Any, int]:
    """How many of `total` each cell gets: all the same, and what small cells leave is given round by round.

    >>> shares({"a": 9, "b": 1, "c": 9}, 8)
    {'a': 3, 'b': 1, 'c': 4}
    """
    given = dict.fromkeys(sizes, 0)
    left = total
    # What is left over goes to cells in an order of chance, not to the domains that come first by name.
    order = sorted(sizes, key=lambda cell: seed_of(str(cell)))
    while left and (open_ := [cell for cell in order if given[cell] < sizes[cell]]):
        each = max(1, left // len(open_))
        for cell in open_:
            more = min(each, sizes[cell] - given[cell], left)
            given[cell] += more
            left -= more
    return given


def herding(features: Tensor, *, most: int) -> list[int]:
    """The order in which images are taken so that their mean stays nearest to that of all `features` (n, d)."""
    x = features.cpu().double()  # some devices have no float64
    mean, total = x.mean(dim=0), torch.zeros(x.shape[1], dtype=torch.float64)
    order: list[int] = []
    taken = torch.zeros(len(x), dtype=torch.bool)
    for count in range(1, min(most, len(x)) + 1):
        distance = (mean - (total + x) / count).square().sum(dim=1).masked_fill(taken, torch.inf)
        best = int(distance.argmin())
        order.append(best)
        taken[best] = True
        total += x[best]
    return order


@dataclass(frozen=True)
class Drawn(Batches):
    """As many images of the memory, drawn anew, as each batch of the domain has. Labels say which they are."""

    like: Batches | None = None
    first: int = 0  # the label of the first image
    draw: int = 0  # which one, where there are several

    @property
    def steps_an_epoch(self) -> int:
        assert self.like is not None
        return self.like.steps_an_epoch

    def epoch(self, step: int) -> int:
        return step  # an image that comes twice in an epoch is not cropped twice alike

    def indices(self, step: int) -> list[int]:
        assert self.like is not None
        generator = generator_of(self.seed, self.like.domain.name, "replay", step, self.draw)
        return torch.randint(len(self.domain.train), (len(self.like.indices(step)),), generator=generator).tolist()

    def _generator(self, epoch: int, content: bytes) -> torch.Generator:
        assert self.like is not None
        return generator_of(self.seed, self.like.domain.name, "replay", epoch, self.draw, content)

    def labels(self, indices: Sequence[int]) -> Tensor:
        return self.first + torch.tensor(list(indices), dtype=torch.long)


@dataclass(frozen=True)
class Replayed:
    """The batches of a domain, each with `draws` times as many images of the memory behind its own.

    The label of a domain's image is its class's place; of the k-th kept image in draw j, C + j M + k.
    """

    own: Batches
    memory: Memory
    draws: int = 1

    @property
    def steps(self) -> int:
        return self.own.steps

    def stream(self, first: int, *, rank: int = 0, ranks: int = 1) -> Generator[tuple[Tensor, Tensor, int], None, None]:
        """(images, labels, size of the whole batch) of each step from `first` on."""
        kept = Domain("memory", self.memory.images())
        own, classes = self.own, len(self.own.domain.classes)
        parts: list[Batches] = [own]
        for draw in range(self.draws):
            begin = classes + draw * len(self.memory)
            parts.append(
                Drawn(
                    kept,
                    own.preprocessing,
                    own.augmentation,
                    own.seed,
                    own.batch_size,
                    own.epochs,
                    own,
                    begin,
                    draw,
                )
            )
        streams = [part.stream(first, rank=rank, ranks=ranks) for part in parts]
        try:
            for together in zip(*streams, strict=True):
                images, labels, sizes = zip(*together, strict=True)
                yield torch.cat(images), torch.cat(labels), sum(sizes)
        finally:
            for stream in streams:
                stream.close()
