"""Which images make up which training batch, and what is done to each of them.

Order is a pure function of (seed, domain, epoch), augmentation of (seed, domain, epoch, image): a run that goes on
after an interruption, or on two processes, sees what an undisturbed one sees.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from bpg.data.ahead import ahead
from bpg.data.domain import Domain
from bpg.data.pixels import Decoded, PixelCache, pixel_limit
from bpg.data.transforms import Augmentation, Preprocessing, training, training_batch
from bpg.randomness import generator_of

PIECE = 8  # images that one thread prepares at a time


@dataclass(frozen=True)
class Batches:
    """The training batches of a domain, by step; `labels` are indices into the domain's own classes."""

    domain: Domain
    preprocessing: Preprocessing
    augmentation: Augmentation
    seed: int
    batch_size: int
    epochs: int

    @property
    def steps_an_epoch(self) -> int:
        return -(-len(self.domain.train) // self.batch_size)

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_an_epoch

    def indices(self, step: int) -> list[int]:
        """The images of a step. Every image comes once an epoch; the last batch may be smaller."""
        epoch, place = divmod(step, self.steps_an_epoch)
        order = order_of(self.seed, self.domain.name, epoch, len(self.domain.train))
        return order[place * self.batch_size : (place + 1) * self.batch_size]

    def epoch(self, step: int) -> int:
        """The pass over the domain that a step belongs to."""
        return step // self.steps_an_epoch

    def image(self, index: int, epoch: int) -> Tensor:
        """One image as this epoch sees it."""
        pixels, content = Decoded(self.domain).open(index)
        return training(pixels, self.preprocessing, self.augmentation, self._generator(epoch, content))

    def labels(self, indices: Sequence[int]) -> Tensor:
        """Of these images, indices into `domain.classes`."""
        return self._targets[list(indices)]

    @cached_property
    def _targets(self) -> Tensor:
        """The labels of all images: to look for the classes of a large domain in every step would take longer."""
        place = {name: index for index, name in enumerate(self.domain.classes)}
        train = self.domain.train
        return torch.tensor([place[train.classes[label]] for label in train.labels], dtype=torch.long)

    def stream(self, first: int, *, rank: int = 0, ranks: int = 1) -> Generator[tuple[Tensor, Tensor, int], None, None]:
        """(images, labels, size of the whole batch) of each step from `first` on; of a batch only this rank's share."""
        size, limit = self.preprocessing.size, pixel_limit()
        cache = PixelCache(self.domain.name, len(self.domain.train), limit=limit) if limit else None
        decoded = Decoded(self.domain, cache)

        def pieces() -> Generator[_Piece, None, None]:
            for step in range(first, self.steps):
                mine = self.indices(step)[rank::ranks]
                images = torch.empty(len(mine), 3, size, size)
                for start in range(0, len(mine), PIECE):
                    yield _Piece(images, start, mine[start : start + PIECE], self.epoch(step))

        def prepare(piece: _Piece) -> Tensor:
            pixels, contents = zip(*map(decoded.open, piece.indices), strict=True)
            generators = [self._generator(piece.epoch, content) for content in contents]
            out = piece.images[piece.start : piece.start + len(pixels)]
            training_batch(pixels, self.preprocessing, self.augmentation, generators, out=out)
            return piece.images

        share = -(-self.batch_size // ranks)
        prepared = ahead(prepare, pieces(), window=2 * -(-share // PIECE))
        try:
            for step in range(first, self.steps):
                whole = self.indices(step)
                mine = whole[rank::ranks]
                images = torch.empty(0, 3, size, size)
                for _ in range(0, len(mine), PIECE):
                    images = next(prepared)
                yield images, self.labels(mine), len(whole)
                if cache is not None and (step + 1) % self.steps_an_epoch:
                    cache.settle()
                elif cache is not None:
                    cache.flush()
                    cache.refresh()  # other ranks saw other images in this epoch
        finally:
            prepared.close()
            if cache is not None:
                cache.flush()  # also when the run is interrupted: nothing decoded is lost

    def _generator(self, epoch: int, content: bytes) -> torch.Generator:
        """Of what an epoch does to an image whose file has the sha256 `content`."""
        return generator_of(self.seed, self.domain.name, "augmentation", epoch, content)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some images of a batch, and where they belong in it."""

    images: Tensor  # of the whole batch
    start: int
    indices: list[int]
    epoch: int


@dataclass(frozen=True, eq=False)
class FeatureBatches:
    """Training batches of frozen features, for heads that need no images; the same order of things."""

    features: Tensor  # (n, d)
    targets: Tensor  # (n,)
    domain: str
    seed: int
    batch_size: int
    epochs: int

    @property
    def steps_an_epoch(self) -> int:
        return -(-len(self.features) // self.batch_size)

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_an_epoch

    def stream(self, first: int, *, rank: int = 0, ranks: int = 1) -> Generator[tuple[Tensor, Tensor, int], None, None]:
        """(features, labels, size of the whole batch) of each step from `first` on."""
        for step in range(first, self.steps):
            epoch, place = divmod(step, self.steps_an_epoch)
            order = order_of(self.seed, self.domain, epoch, len(self.features))
            whole = order[place * self.batch_size : (place + 1) * self.batch_size]
            mine = whole[rank::ranks]
            yield self.features[mine], self.targets[mine], len(whole)


@lru_cache(maxsize=4)
def order_of(seed: int, domain: str, epoch: int, count: int) -> list[int]:
    """The order in which an epoch sees the images of a domain."""
    return torch.randperm(count, generator=generator_of(seed, domain, "order", epoch)).tolist()
