"""The bytes of a file, wherever it lies: `images.zip/photo/dog/1.jpg`, inside an archive, is a path like any other."""

from __future__ import annotations

import lzma
import stat
import zipfile
import zlib
from functools import lru_cache
from pathlib import Path, PurePosixPath

LARGEST = 2**30  # bytes that an archive may unpack one file to
DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, ValueError, RuntimeError)


def read(path: Path) -> bytes:
    """What the file at `path` holds. OSError if there is none, or it is no file that ends."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # to read from a pipe or a device may never end
            raise OSError(0, "no regular file")
        return path.read_bytes()
    except NotADirectoryError:
        archive = next((parent for parent in path.parents if parent.is_file()), None)
        if archive is None:
            raise
        return _unpacked(archive, path.relative_to(archive).as_posix())


def inside(archive: Path) -> list[Path]:
    """The paths of all files inside a zip archive, sorted. OSError if it is none, or a name leads out of it."""
    try:
        names = _opened(archive, archive.stat().st_mtime_ns).namelist()
    except DAMAGED as error:
        raise OSError(0, f"{archive.name} cannot be unpacked: {error}", str(archive)) from error
    files = [PurePosixPath(name) for name in names if not name.endswith("/")]
    if any(file.is_absolute() or ".." in file.parts for file in files):
        raise OSError(0, f"{archive.name} holds names that lead out of it", str(archive))
    return sorted(archive / file for file in files)


def _unpacked(archive: Path, name: str) -> bytes:
    try:
        opened = _opened(archive, archive.stat().st_mtime_ns)
        if opened.getinfo(name).file_size > LARGEST:
            raise OSError(0, f"more than {LARGEST:,} bytes in {archive.name}")
        return opened.read(name)
    except KeyError:
        raise FileNotFoundError(2, f"nothing of this name in {archive.name}", str(archive / name)) from None
    except DAMAGED as error:
        raise OSError(0, f"{archive.name} cannot be unpacked: {error}", str(archive / name)) from error


@lru_cache(maxsize=16)
def _opened(archive: Path, _changed: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(archive)  # its readers share one handle under a lock: threads may
