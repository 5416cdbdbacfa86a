"""One streaming pass over a set of images: per-class counts, scatter, and the frozen features themselves."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor

from bpg.backbones.backbone import FINISHED, Backbone, Probe, check_probes
from bpg.backbones.cache import FeatureCache, Shelf
from bpg.data.ahead import ahead
from bpg.data.decode import decode
from bpg.data.images import ImageSet, SetDigest
from bpg.errors import WrongUse
from bpg.ranks import in_order, share

ON_DISK = FeatureCache()
FLUSH, FLUSH_SECONDS = 4096, 10.0  # between two writes to the cache: what a killed run loses at most


@dataclass(frozen=True)
class Scatter:
    """How features lie around their class means. Classes without an image do not count."""

    counts: Tensor  # (C,) images of each class
    means: Tensor  # (C, d) float64, mu_{t,c}; zero for a class without an image
    spreads: Tensor  # (C,) float64, sum of |x - mu_{t,c}|^2 over the images of each class

    @property
    def present(self) -> Tensor:
        """Which classes have an image, (C,) bool."""
        return self.counts > 0

    @cached_property
    def mean(self) -> Tensor:
        """mu_t (d,): the mean of the class means, so that classes weigh the same whatever their size."""
        return self.means[self.present].mean(dim=0)

    @cached_property
    def between(self) -> float:
        """R^bcs_t (eq:bcs): the mean squared distance of the class means from their mean."""
        return float((self.means[self.present] - self.mean).square().sum(dim=1).mean())

    @cached_property
    def within(self) -> float:
        """R^wcs_t (eq:wcs): the mean over classes of their images' mean squared distance from the class mean."""
        return float((self.spreads[self.present] / self.counts[self.present]).mean())


class ScatterSum:
    """Scatter of features that arrive in pieces, in float64.

    Sums are taken of x minus the first feature of its class: the squares then stay of the size of the spread, and
    their difference loses nothing, however far the features lie from zero.
    """

    def __init__(self, classes: int) -> None:
        self._counts = torch.zeros(classes, dtype=torch.int64)
        self._shifts: Tensor | None = None  # (C, d)

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Count `features` (n, d) of classes `labels` (n,) in."""
        x = features.cpu().double()
        if self._shifts is None:
            self._shifts = torch.zeros(len(self._counts), x.shape[1], dtype=torch.float64)
            self._sums = torch.zeros_like(self._shifts)
            self._squares = torch.zeros(len(self._counts), dtype=torch.float64)
        for label in set(labels.tolist()):
            if not self._counts[label]:
                self._shifts[label] = x[int((labels == label).nonzero()[0])]
        shifted = x - self._shifts[labels]
        self._counts.index_add_(0, labels, torch.ones_like(labels))
        self._sums.index_add_(0, labels, shifted)
        self._squares.index_add_(0, labels, shifted.square().sum(dim=1))

    def scatter(self) -> Scatter:
        """The scatter of all that was counted in."""
        if self._shifts is None:
            raise WrongUse(
                "there is nothing to survey",
                wanted="at least one image",
                came="none",
                remedy="Check the set of images.",
            )
        mean_shifts = self._sums / self._counts.clamp(min=1)[:, None]
        spreads = self._squares - self._counts * mean_shifts.square().sum(dim=1)
        return Scatter(self._counts.clone(), self._shifts + mean_shifts, spreads.clamp(min=0))


@dataclass(frozen=True)
class Survey:
    """What one pass over a set of images found."""

    classes: tuple[str, ...]
    labels: Tensor  # (n,) in file order
    sha256: str  # of the images and their classes
    scatters: dict[Probe, Scatter]
    features: dict[Probe, Tensor] = field(repr=False)  # (n, d) float32, unit length, in file order; empty if not kept

    @property
    def scatter(self) -> Scatter:
        """Of the finished feature, from which s_t follows."""
        if FINISHED not in self.scatters:
            raise WrongUse(
                "the finished feature was not surveyed",
                wanted="Probe() among the probes",
                came=", ".join(map(str, self.scatters)),
                remedy="Add it, or ask `scatters` for another probe.",
            )
        return self.scatters[FINISHED]

    @property
    def counts(self) -> dict[str, int]:
        """Images of each class."""
        return dict(zip(self.classes, torch.bincount(self.labels, minlength=len(self.classes)).tolist(), strict=True))


def survey(
    backbone: Backbone,
    images: ImageSet,
    *,
    probes: Sequence[Probe] = (FINISHED,),
    batch_size: int = 32,
    keep_features: bool = True,
    cache: FeatureCache | None = ON_DISK,
    shared: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Survey:
    """Embed `images` once and say how they lie.

    Images are read and decoded ahead in threads while the backbone computes. Features that the `cache` has are not
    computed again; `cache=None` neither reads nor writes one. With `shared`, all ranks call it, each embeds its share
    and all find the same. `progress` is called with the images done and their number.
    """
    probes = tuple(probes)
    check_probes(probes, backbone.depth)
    if not probes or batch_size < 1:
        raise WrongUse(
            "no survey of this kind",
            wanted="at least one probe, and a batch size of 1 or more",
            came=f"{len(probes)} probes, batch size {batch_size}",
            remedy="Leave both out for the usual survey.",
        )
    if not images:
        raise WrongUse(
            "there is nothing to survey", wanted="at least one image", came="none", remedy="Check the set of images."
        )
    labels = torch.tensor(images.labels)
    sums = {probe: ScatterSum(len(images.classes)) for probe in probes}
    kept: dict[Probe, list[Tensor]] = {probe: [] for probe in probes}
    done, digest = 0, SetDigest()
    indices = share(len(images), batch_size) if shared else range(len(images))
    with closing(_embedded(backbone, images, indices, probes, batch_size, cache)) as own:
        for files, features in in_order(own) if shared else own:
            count = len(files)
            for place, file in enumerate(files, start=done):
                digest.add(file, images.classes[images.labels[place]])
            for probe, rows in features.items():
                sums[probe].add(rows, labels[done : done + count])
                if keep_features:
                    kept[probe].append(rows)
            done += count
            if progress is not None:
                progress(done, len(images))
    return Survey(
        classes=images.classes,
        labels=labels,
        sha256=digest.hexdigest(),
        scatters={probe: total.scatter() for probe, total in sums.items()},
        features={probe: torch.cat(rows) for probe, rows in kept.items() if rows},
    )


@dataclass(slots=True)
class _Loaded:
    """An image on its way: its pixels, or what the shelves have of it."""

    digest: bytes
    pixels: Tensor | None
    cached: list[Tensor] | None


def _embedded(
    backbone: Backbone,
    images: ImageSet,
    indices: Sequence[int],
    probes: Sequence[Probe],
    batch_size: int,
    cache: FeatureCache | None,
) -> Generator[tuple[list[bytes], dict[Probe, Tensor]], None, None]:
    """The files' digests and the features of the images at `indices`, in that order, batch by batch."""
    shelves: list[Shelf] = []
    if cache is not None:
        weights = backbone.digest()
        shelves = [cache.shelf(backbone, weights, probe) for probe in probes]

    def load(index: int) -> _Loaded:
        encoded = images.encoded(index)
        digest = hashlib.sha256(encoded).digest()
        cached = [feature for shelf in shelves if (feature := shelf.get(digest)) is not None]
        if shelves and len(cached) == len(shelves):
            return _Loaded(digest, None, cached)
        return _Loaded(digest, backbone.prepare(decode(encoded, where=str(images.paths[index]))), None)

    fresh: dict[bytes, list[Tensor]] = {}  # features not yet on the shelves, by image

    def flush() -> None:
        if not fresh:
            return
        for at, shelf in enumerate(shelves):
            shelf.add(list(fresh), torch.stack([rows[at] for rows in fresh.values()]))
        fresh.clear()

    loaded = ahead(load, indices, window=4 * batch_size)
    written = time.monotonic()
    try:
        while batch := list(islice(loaded, batch_size)):
            wanted = {i.digest: i.pixels for i in batch if i.pixels is not None and i.digest not in fresh}
            computed = dict(zip(wanted, _compute(backbone, probes, list(wanted.values())), strict=True))
            rows = [i.cached or computed.get(i.digest) or fresh[i.digest] for i in batch]
            if shelves:
                fresh |= computed
            features = {probe: torch.stack([row[at] for row in rows]) for at, probe in enumerate(probes)}
            yield [i.digest for i in batch], features
            if len(fresh) >= FLUSH or time.monotonic() - written >= FLUSH_SECONDS:
                flush()
                written = time.monotonic()
    finally:
        loaded.close()
        flush()  # also when the run is interrupted: nothing computed is lost


def _compute(backbone: Backbone, probes: Sequence[Probe], pixels: list[Tensor]) -> list[list[Tensor]]:
    """The features of each image, one a probe."""
    if not pixels:
        return []
    features = [found.cpu() for found in backbone.features(torch.stack(pixels).to(backbone.device), probes)]
    return [list(row) for row in zip(*features, strict=True)]
