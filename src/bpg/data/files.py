"""The bytes of a file, wherever it lies: `images.zip/photo/dog/1.jpg`, inside an archive, is a path like any other.

Archives are zip and tar, WebDataset's shards among them; a compressed tar can only be read from its beginning and is
none of them.
"""

from __future__ import annotations

import lzma
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Protocol

LARGEST = 2**30  # bytes that an archive may unpack one file to
DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    ValueError,
    RuntimeError,
    IndexError,
)
BLOCK = 512  # bytes, of a tar


def is_archive(path: Path) -> bool:
    """Whether a file is an archive by its name."""
    return path.suffix.lower() in (".zip", ".tar")


def read(path: Path) -> bytes:
    """What the file at `path` holds. OSError if there is none, or it is no file that ends.

    A suffix in the wrong case is forgiven: lists say .jpg where the file is a .JPG.
    """
    try:
        return _whole(path)
    except FileNotFoundError:
        other = next((path.with_name(name) for name in other_cases(path.name) if path.with_name(name).is_file()), None)
        if other is None:
            raise
        return _whole(other)
    except NotADirectoryError:
        found = archive_of(path)
        if found is None:
            raise
        return _unpacked(*found)


def _whole(path: Path) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # to open a pipe may never end
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "no regular file")
        content = os.read(file, found.st_size + 1)
        while len(content) < found.st_size and (more := os.read(file, found.st_size)):  # two gigabytes at a time
            content += more
        return content
    finally:
        os.close(file)


def archive_of(path: Path) -> tuple[Path, str] | None:
    """The archive that a file lies in, and its name there; None if it lies in none."""
    folder, _, name = str(path).rpartition("/")
    found = _archive_above(folder)
    return None if found is None else (found[0], f"{found[1]}{name}")


@lru_cache(maxsize=100_000)
def _archive_above(folder: str) -> tuple[Path, str] | None:
    """The archive at or above a folder, and the way down from there."""
    archive = next((place for place in (Path(folder), *Path(folder).parents) if place.is_file()), None)
    return None if archive is None else (archive, f"{folder[len(str(archive)) :]}/".lstrip("/"))


def other_cases(name: str) -> list[str]:
    """A file's name with its suffix in small letters, in capitals and as a title, but for as it is."""
    stem, suffix = os.path.splitext(name)
    return [stem + other for other in (suffix.lower(), suffix.upper(), suffix.title()) if other != suffix]


def inside(archive: Path) -> list[str]:
    """The names of all files inside an archive, sorted. OSError if it is none, or a name leads out of it."""
    try:
        names = _opened(archive, archive.stat().st_mtime_ns).names()
    except DAMAGED as error:
        raise OSError(0, f"{archive.name} cannot be unpacked: {error}", str(archive)) from error
    for name in names:
        if name.startswith("/") or (".." in name and ".." in name.split("/")):
            raise OSError(0, f"{archive.name} holds names that lead out of it", str(archive))
    return sorted({name for name in names if not name.startswith("__MACOSX/")})


def _unpacked(archive: Path, name: str) -> bytes:
    try:
        return _opened(archive, archive.stat().st_mtime_ns).read(name)
    except KeyError:
        raise FileNotFoundError(2, f"nothing of this name in {archive.name}", str(archive / name)) from None
    except DAMAGED as error:
        raise OSError(0, f"{archive.name} cannot be unpacked: {error}", str(archive / name)) from error


class _Archive(Protocol):
    def names(self) -> list[str]: ...

    def read(self, name: str) -> bytes: ...


@lru_cache(maxsize=512)
def _opened(archive: Path, _changed: int) -> _Archive:
    return _Tar(archive) if archive.suffix.lower() == ".tar" else _Zip(archive)


class _Zip:
    def __init__(self, archive: Path) -> None:
        self._zip = zipfile.ZipFile(archive)  # its readers share one handle under a lock: threads may
        self._shown = archive.name
        # some packers write other separators, or begin at the folder they are in
        self._given = {n.replace("\\", "/").removeprefix("./"): n for n in self._zip.namelist() if not n.endswith("/")}

    def names(self) -> list[str]:
        return list(self._given)

    def read(self, name: str) -> bytes:
        info = self._zip.getinfo(self._given[name])
        if info.file_size > LARGEST:
            raise OSError(0, f"more than {LARGEST:,} bytes in {self._shown}")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            return self._zip.read(info)
        # As images are packed: the bytes lie behind a local header, and many threads may read them at once.
        file = self._zip.fp.fileno()  # type: ignore[union-attr]
        lengths = struct.unpack("<HH", os.pread(file, 4, info.header_offset + 26))
        content = os.pread(file, info.file_size, info.header_offset + 30 + sum(lengths))
        if zlib.crc32(content) != info.CRC:
            raise zipfile.BadZipFile(f"{name} is damaged")
        return content


class _Tar:
    """Where each file of a tar begins. The standard library's own reader takes a minute for 100,000 files."""

    def __init__(self, archive: Path) -> None:
        self._path = archive  # opened for each file: there may be more shards than a process may have files open
        with archive.open("rb") as opened:
            self._places = {name: (start, size) for name, start, size in _tar_files(opened.fileno())}

    def names(self) -> list[str]:
        return list(self._places)

    def read(self, name: str) -> bytes:
        start, size = self._places[name]
        if size > LARGEST:
            raise OSError(0, f"more than {LARGEST:,} bytes in one file")
        with self._path.open("rb", buffering=0) as opened:
            return os.pread(opened.fileno(), size, start)


def _tar_files(file: int) -> Iterator[tuple[str, int, int]]:
    """Name, start and size of each regular file of a tar: POSIX's format, with GNU's and pax's long names."""
    end = os.fstat(file).st_size
    place, longer = 0, ""
    while True:
        header = os.pread(file, BLOCK, place)
        if len(header) < BLOCK:
            raise ValueError("it is cut short, as by a download that was not finished")
        if not any(header):
            return
        if _octal(header[148:156]) != sum(header) - sum(header[148:156]) + 8 * ord(" "):
            raise ValueError("it is no tar, or damaged")
        kind, size, start = header[156:157], _octal(header[124:136]), place + BLOCK
        place = start + -(-size // BLOCK) * BLOCK
        if place > end:
            raise ValueError("it is cut short, as by a download that was not finished")
        if kind == b"L":
            longer = os.pread(file, size, start).rstrip(b"\0").decode(errors="surrogateescape")
        elif kind == b"x":
            longer = _pax_path(os.pread(file, size, start)) or longer
        elif kind in (b"0", b"\0", b"7"):
            name = longer or "/".join(part for part in (_text(header[345:500]), _text(header[:100])) if part)
            yield name.removeprefix("./"), start, size
            longer = ""
        elif kind != b"g":
            longer = ""  # of a folder or a link: neither is an image


def _octal(field: bytes) -> int:
    if field[0] & 0x80:  # GNU's way to write more than eight gigabytes
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    return int(field.strip(b"\0 ") or b"0", 8)


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode(errors="surrogateescape")


def _pax_path(records: bytes) -> str:
    """The path among records of the form `LENGTH KEY=VALUE`."""
    while records:
        length = int(records.split(b" ", 1)[0])
        key, _, value = records[:length].split(b" ", 1)[1].rstrip(b"\n").partition(b"=")
        if key == b"path":
            return value.decode(errors="surrogateescape")
        records = records[length:]
    return ""
