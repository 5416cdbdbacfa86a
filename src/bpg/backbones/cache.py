"""Frozen features on disk, so that an image is embedded once.

A shelf holds the features of one kind: one set of weights, preprocessing, probe and precision. It is a folder of
shards, each named by the sha256 of its bytes and written whole or not at all, so a reader never sees half of one and
a damaged one is found out. Within a shelf, a feature is found by the sha256 of the image file.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from bpg.backbones.backbone import Backbone, Probe
from bpg.folders import cache_folder

FORMAT = 1


@dataclass(frozen=True, slots=True)
class FeatureCache:
    """The shelves below a folder; by default below `cache_folder()`."""

    root: Path | None = None

    def shelf(self, backbone: Backbone, weights: str, probe: Probe) -> Shelf:
        """The shelf of `probe` of `backbone`, whose digest is `weights`."""
        kind = {
            "format": FORMAT,
            "weights": weights,
            "preprocessing": asdict(backbone.preprocessing),
            "probe": asdict(probe),
            "precision": backbone.precision,
            "compiled": backbone.compiled,
        }
        name = hashlib.sha256(json.dumps(kind, sort_keys=True).encode()).hexdigest()[:32]
        return Shelf((self.root or cache_folder()) / "features" / name)


class Shelf:
    """Features of one kind by the digest of their image."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shards: list[Tensor] = []
        self._places: dict[bytes, tuple[int, int]] = {}  # image digest -> shard, row
        try:
            files = sorted(folder.glob("*.safetensors"))
        except OSError as error:
            files = []
            warnings.warn(f"the cache cannot be read: {folder} ({error.strerror})", stacklevel=2)
        for file in files:
            self._read(file)

    def __len__(self) -> int:
        return len(self._places)

    def get(self, digest: bytes) -> Tensor | None:
        """The feature (d,) of an image, or None."""
        place = self._places.get(digest)
        return None if place is None else self._shards[place[0]][place[1]]

    def add(self, digests: Sequence[bytes], features: Tensor) -> None:
        """Keep `features` (n, d) on disk. A disk that refuses costs the cache, not the run."""
        images = torch.frombuffer(bytearray(b"".join(digests)), dtype=torch.uint8).reshape(len(digests), -1)
        content = save({"images": images, "features": features.contiguous()})
        file = self.folder / f"{hashlib.sha256(content).hexdigest()}.safetensors"
        part = file.with_suffix(f".{os.getpid()}.part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            part.write_bytes(content)
            part.replace(file)
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            warnings.warn(f"features are not cached: {self.folder} cannot be written ({error.strerror})", stacklevel=2)
        self._enter(images, features)

    def _read(self, file: Path) -> None:
        try:
            with file.open("rb") as content:
                whole = hashlib.file_digest(content, "sha256").hexdigest() == file.stem
            if not whole:
                warnings.warn(f"a damaged cache file is removed and its features computed again: {file}", stacklevel=2)
                file.unlink(missing_ok=True)
                return
            shard = load_file(file)  # mapped into memory, not copied: a shelf may be larger than what a run asks of it
            self._enter(shard["images"], shard["features"])
        except (OSError, SafetensorError, KeyError) as error:
            warnings.warn(f"a cache file cannot be used and is passed over: {file} ({error})", stacklevel=2)

    def _enter(self, images: Tensor, features: Tensor) -> None:
        self._shards.append(features)  # first: readers in other threads follow a place at once
        shard = len(self._shards) - 1
        self._places.update((row.tobytes(), (shard, index)) for index, row in enumerate(images.numpy()))
