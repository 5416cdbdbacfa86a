"""A folder of many small files as few large ones, which are read without being unpacked."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from bpg.data.files import read
from bpg.data.images import SUFFIXES
from bpg.data.places import Place
from bpg.errors import WrongUse

SHARD = 10**9  # bytes
Kind = Literal["zip", "shards"]


def pack(
    root: Path, out: Path, *, kind: Kind, shard: int = SHARD, tell: Callable[[int, int], None] | None = None
) -> list[Path]:
    """Everything below `root` as one zip, or as tar shards of images with the other files beside them, in `out`.

    A shard's samples have their paths for keys, so that lists and folder names hold as before. The same files give the
    same bytes.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise WrongUse(
            f"{out} is no place to pack to", wanted="a new or empty folder", came="another", remedy="Name one."
        )
    files = list(Place.open(root).walk())
    if not files:
        raise WrongUse(f"there is nothing to pack in {root}", wanted="files", came="none", remedy="Check the path.")
    out.mkdir(parents=True, exist_ok=True)
    name = root.resolve().stem if root.is_file() else root.resolve().name
    counted = _counted(len(files), tell)
    if kind == "zip":
        return [_zip(files, out / f"{name}.zip", counted)]
    images = [(key, path) for key, path in files if path.suffix.lower() in SUFFIXES]
    for key, path in files:
        if path.suffix.lower() not in SUFFIXES:
            (out / key).parent.mkdir(parents=True, exist_ok=True)
            (out / key).write_bytes(read(path))
            counted()
    made: list[Path] = []
    while images:
        made.append(out / f"{name}-{len(made):06}.tar")
        images = _shard(images, made[-1], shard, counted)
    return made


def _zip(files: list[tuple[str, Path]], target: Path, counted: Callable[[], None]) -> Path:
    part = target.with_suffix(".part")
    with zipfile.ZipFile(part, "w") as archive:  # images are compressed already
        for key, path in files:
            archive.writestr(zipfile.ZipInfo(key), read(path))
            counted()
    return part.replace(target)


def _shard(
    images: list[tuple[str, Path]], target: Path, most: int, counted: Callable[[], None]
) -> list[tuple[str, Path]]:
    """Fill one shard; the images that are left."""
    part, size = target.with_suffix(".part"), 0
    with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as archive:
        left = list(reversed(images))
        while left and size < most:
            key, path = left.pop()
            content = read(path)
            info = tarfile.TarInfo(key)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
            archive.members.clear()  # type: ignore[attr-defined]  # or many of them would fill the memory
            size += len(content)
            counted()
    part.replace(target)
    return images[len(images) - len(left) :]


def _counted(total: int, tell: Callable[[int, int], None] | None) -> Callable[[], None]:
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        if tell is not None:
            tell(done, total)

    return count
