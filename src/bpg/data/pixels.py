"""Decoded images on disk, so that an image is decoded once however often it is trained on.

What is kept is exactly what `decode` gave: every crop is cut from it as if the file had been decoded again. A smaller
copy would take less room and change the crops, so that there is none: what does not fit is decoded in every epoch.

A shard holds the pixels of many images. It is named by the sha256 of its table and written whole or not at all; the
pixels of an image are checked when they are first asked for. It is mapped into memory, so that the system's page
cache decides what of it stays there.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
import warnings
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import numpy as np
import PIL
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from bpg.data.decode import decode
from bpg.data.domain import Domain
from bpg.errors import WrongUse
from bpg.folders import cache_folder

FORMAT = 1  # of the shards, and of what `decode` makes of a file
VARIABLE = "BPG_PIXEL_CACHE"
LIMIT = 4 * 2**30  # bytes, of the pixels of all domains together
SHARD = 32 * 2**20  # bytes of pixels in a file: also what a killed run loses at most
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
ABANDONED = 3600  # seconds after which a half-written file is nobody's


def pixel_limit() -> int:
    """The bytes that decoded images may take on disk, from `$BPG_PIXEL_CACHE`; 0 for no cache."""
    given = os.environ.get(VARIABLE, "").strip()
    if not given:
        return LIMIT
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)(?:i?B)?", given, flags=re.IGNORECASE | re.ASCII)
    if found is None:
        raise WrongUse(
            f"{VARIABLE} is no size",
            wanted="a number of bytes such as 500M or 8G, or 0 for no cache of decoded images",
            came=repr(given),
            remedy=f"Correct it, or unset it for {LIMIT // 2**30}G.",
        )
    return int(float(found[1]) * UNITS[found[2].upper()])


@dataclass(frozen=True, slots=True)
class Decoded:
    """The training images of a domain, each read and decoded when it is first asked for; again if there is no cache."""

    domain: Domain
    cache: PixelCache | None = None
    _files: dict[int, bytes] = field(default_factory=dict, repr=False)  # image -> sha256 of its file

    def open(self, index: int) -> tuple[Tensor, bytes]:
        """The pixels (3, H, W) of an image, and the sha256 of its file."""
        train, cache = self.domain.train, self.cache
        if cache is not None and index in self._files and (kept := cache.get(self._files[index])) is not None:
            return kept, self._files[index]
        encoded = train.encoded(index)
        digest = hashlib.sha256(encoded).digest()
        pixels = None if cache is None else cache.get(digest)
        if pixels is None:
            pixels = decode(encoded, where=str(train.paths[index]))
            if cache is not None:
                cache.add(digest, pixels)
        self._files[index] = digest
        return pixels, digest


@dataclass(frozen=True, slots=True, eq=False)
class _Shard:
    file: Path
    pixels: Tensor  # (bytes,) of all its images, one after the other, each (H, W, 3)
    shapes: list[list[int]]
    starts: list[int]
    sums: list[int]  # CRC-32 of each image's pixels
    checked: bytearray  # of each image, whether its sum was compared


class PixelCache:
    """Pixels by the sha256 of their file, for the training of a domain of so many images.

    `get` and `add` may be called from many threads, the rest from one: it alone adds to what is on the disk.
    """

    def __init__(self, domain: str, images: int, *, limit: int, root: Path | None = None) -> None:
        self.root = (root or cache_folder()) / "pixels"
        self.folder = self.root / f"{FORMAT}-pillow-{PIL.__version__}"  # another version may decode otherwise
        self.domain, self.images, self.limit = domain, images, limit
        self._shards: dict[Path, _Shard] = {}
        self._used: set[Path] = set()  # the shards that hold images of this domain
        self._places: dict[bytes, tuple[_Shard, int]] = {}
        self._waiting: dict[bytes, Tensor] = {}  # not on disk yet
        self._weight = 0  # bytes that wait
        self._sizes: dict[bytes, int] = {}  # bytes of the images that were seen
        self._stopped = False
        self._lock = Lock()
        self.refresh()

    def get(self, digest: bytes) -> Tensor | None:
        """The pixels (3, H, W) of an image, or None."""
        place = self._places.get(digest)
        if place is None:
            return self._waiting.get(digest)
        shard, row = place
        height, width = shard.shapes[row]
        pixels = shard.pixels[shard.starts[row] :][: 3 * height * width]
        if not shard.checked[row]:
            if zlib.crc32(pixels.numpy().data) != shard.sums[row]:
                self._discard(shard)
                return None
            shard.checked[row] = True
            self._sizes[digest] = len(pixels)
            self._use(shard)
        return pixels.view(height, width, 3).permute(2, 0, 1)

    def add(self, digest: bytes, pixels: Tensor) -> None:
        """Keep `pixels` (3, H, W), as `decode` gave them."""
        with self._lock:
            self._sizes[digest] = pixels.numel()
            if not self._stopped and digest not in self._waiting and digest not in self._places:
                self._waiting[digest] = pixels
                self._weight += pixels.numel()

    def settle(self) -> None:
        """Write to disk what waits, if it is enough for a shard."""
        if self._weight >= SHARD:
            self.flush()

    def flush(self) -> None:
        """Write to disk what waits. A disk that refuses costs the cache, not the run."""
        with self._lock:
            waiting = dict(self._waiting)
        if not waiting:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write(waiting)
        except OSError as error:
            self._stop(f"decoded images are not cached: {self.folder} cannot be written ({error.strerror})")
        with self._lock:
            late = {} if self._stopped else {d: rows for d, rows in self._waiting.items() if d not in waiting}
            self._waiting, self._weight = late, sum(pixels.numel() for pixels in late.values())

    def refresh(self) -> None:
        """Take up the shards that others have written since."""
        try:
            files = sorted(self.folder.glob("*.safetensors"))
            for part in self.folder.glob("*.part"):
                with suppress(FileNotFoundError):
                    if time.time() - part.stat().st_mtime > ABANDONED:
                        part.unlink()
        except OSError as error:
            files = []
            warnings.warn(f"the cache cannot be read: {self.folder} ({error.strerror})", stacklevel=2)
        for file in files:
            if file not in self._shards:
                self._read(file)

    def _make_room(self, size: int) -> bool:
        """Whether `size` bytes more may be written. Shards of other domains make way, the longest unused first."""
        files: dict[Path, os.stat_result] = {}
        for file in self.root.rglob("*.safetensors"):
            with suppress(FileNotFoundError):  # another process makes room as well
                files[file] = file.stat()
        held = sum(found.st_size for found in files.values())
        room = min(self.limit, (held + shutil.disk_usage(self.folder).free) // 2)
        needed = sum(self._sizes.values()) * self.images // len(self._sizes)  # if the others are like those seen
        others = sorted(files.keys() - self._used, key=lambda file: files[file].st_mtime)
        while held + size > room and others and needed <= room:
            held -= files[others[0]].st_size
            others.pop(0).unlink(missing_ok=True)
        if needed <= room and held + size <= room:
            return True
        self._stop(
            f"the images of {self.domain} take about {needed / 2**30:.1f} GiB when decoded, and the cache may take "
            f"{room / 2**30:.1f} GiB: they are decoded in every epoch (${VARIABLE} sets its size)"
        )
        return False

    def _write(self, images: dict[bytes, Tensor]) -> None:
        rows = [np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()).reshape(-1) for pixels in images.values()]
        table = {
            "images": torch.frombuffer(bytearray(b"".join(images)), dtype=torch.uint8).reshape(len(images), -1),
            "shapes": torch.tensor([pixels.shape[1:] for pixels in images.values()], dtype=torch.int64),
            "sums": torch.tensor([zlib.crc32(row.data) for row in rows], dtype=torch.int64),
        }
        file = self.folder / f"{_name(table)}.safetensors"
        part = file.with_suffix(f".{os.getpid()}.part")
        content = save(table | {"pixels": torch.from_numpy(np.concatenate(rows))})
        if not self._make_room(len(content)):
            return
        try:
            part.write_bytes(content)
            part.replace(file)
        except OSError:
            with suppress(OSError):
                part.unlink()
            raise
        self._read(file)
        if (shard := self._shards.get(file)) is not None:
            shard.checked[:] = b"\1" * len(rows)
            self._use(shard)

    def _read(self, file: Path) -> None:
        try:
            table = load_file(file)  # mapped into memory, not copied
            pixels = table.pop("pixels")
            if _name(table) != file.stem:
                raise ValueError("its table is damaged")
        except FileNotFoundError:  # made way for another domain meanwhile
            return
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            warnings.warn(f"a cache file cannot be used and is removed: {file} ({error})", stacklevel=3)
            with suppress(OSError):
                file.unlink()
            return
        sizes = 3 * table["shapes"].prod(dim=1)
        starts = (sizes.cumsum(dim=0) - sizes).tolist()
        shard = _Shard(
            file, pixels, table["shapes"].tolist(), starts, table["sums"].tolist(), checked=bytearray(len(starts))
        )
        self._shards[file] = shard
        self._places.update((row.tobytes(), (shard, place)) for place, row in enumerate(table["images"].numpy()))

    def _discard(self, shard: _Shard) -> None:
        """Forget a shard whose pixels are not what was written."""
        warnings.warn(f"a damaged cache file is removed and its images decoded again: {shard.file}", stacklevel=3)
        with suppress(OSError):
            shard.file.unlink()
        self._shards.pop(shard.file, None)
        for digest in [digest for digest, (owner, _) in list(self._places.items()) if owner is shard]:
            self._places.pop(digest, None)

    def _use(self, shard: _Shard) -> None:
        if shard.file not in self._used:
            self._used.add(shard.file)
            with suppress(OSError):
                os.utime(shard.file)  # what was used last makes way last

    def _stop(self, why: str) -> None:
        self._stopped = True
        warnings.warn(why, stacklevel=4)


def _name(table: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(table):
        digest.update(table[name].numpy().tobytes())
    return digest.hexdigest()
