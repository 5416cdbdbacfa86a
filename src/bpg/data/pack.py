"""A folder of many small files as few large ones, which are read without being unpacked."""

from __future__ import annotations

import io
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from bpg.data.files import read
from bpg.data.images import SUFFIXES
from bpg.data.places import Place
from bpg.data.shards import LABEL
from bpg.errors import WrongUse

SHARD = 10**9  # bytes
Kind = Literal["zip", "shards"]
Files = list[tuple[str, Path]]  # by the path from the folder


def pack(
    root: Path, out: Path, *, kind: Kind, shard: int = SHARD, tell: Callable[[int, int], None] | None = None
) -> list[Path]:
    """Everything below `root` as one zip, or as tar shards of images with the other files beside them, in `out`.

    A shard's samples have their paths for keys, so that lists and folder names hold as before. The same files give the
    same bytes.
    """
    out = out.resolve()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise WrongUse(f"{out} is taken", wanted="a new or empty folder", came="another", remedy="Name one.")
    if out.resolve().is_relative_to(root.resolve()):
        raise WrongUse(f"{out} lies in {root}", wanted="a folder outside", came="one inside", remedy="Name another.")
    files = list(Place.open(root).walk())
    if not files:
        raise WrongUse(f"there is nothing to pack in {root}", wanted="files", came="none", remedy="Check the path.")
    name = root.resolve().stem if root.is_file() else root.resolve().name
    part = out.with_name(f".{out.name}.packing")  # moved to its place when all is written: half of it would look whole
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    counted = _counted(len(files), tell)
    try:
        made = (
            [_zip(files, part / f"{name}.zip", counted)]
            if kind == "zip"
            else _shards(files, part, name, shard, counted)
        )
        if out.exists():
            out.rmdir()
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return [out / path.name for path in made]


def _shards(files: Files, folder: Path, name: str, size: int, counted: Callable[[], None]) -> list[Path]:
    """Images and their labels in shards, all else beside them."""
    samples = [(key, path) for key, path in files if path.suffix.lower() in (*SUFFIXES, LABEL)]
    for key, path in files:
        if path.suffix.lower() not in (*SUFFIXES, LABEL):
            (folder / key).parent.mkdir(parents=True, exist_ok=True)
            (folder / key).write_bytes(read(path))
            counted()
    made: list[Path] = []
    while samples:
        made.append(folder / f"{name}-{len(made):06}.tar")
        samples = _shard(samples, made[-1], size, counted)
    return made


def _zip(files: Files, target: Path, counted: Callable[[], None]) -> Path:
    with zipfile.ZipFile(target, "w") as archive:  # images are compressed already
        for key, path in files:
            archive.writestr(zipfile.ZipInfo(key), read(path))
            counted()
    return target


def _shard(samples: Files, target: Path, most: int, counted: Callable[[], None]) -> Files:
    """Fill one shard; what is left."""
    size, left = 0, list(reversed(samples))
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        while left and size < most:
            key, path = left.pop()
            content = read(path)
            info = tarfile.TarInfo(key)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
            archive.members.clear()  # type: ignore[attr-defined]  # or many of them would fill the memory
            size += len(content)
            counted()
    return left[::-1]


def _counted(total: int, tell: Callable[[int, int], None] | None) -> Callable[[], None]:
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        if tell is not None:
            tell(done, total)

    return count
