"""Archives to folders, safely: nothing is written outside, no links, and no more than was said."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from bpg.data.files import DAMAGED
from bpg.errors import BPGError, WrongUse

MOST_FILES = 5_000_000
CHUNK = 2**20


def unpack(archive: Path, folder: Path) -> int:
    """Unpack a zip or tar archive, compressed or not, into `folder`; how many files it held.

    All or nothing: what it holds is moved to its place when the last file is written.
    """
    part = folder / f".{archive.name}.unpacking"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    room = shutil.disk_usage(folder).free
    count = 0
    try:
        for name, size, file in _members(archive):
            count, room = count + 1, room - size
            if count > MOST_FILES or room < 0:
                what = f"{MOST_FILES:,} files" if room >= 0 else "the disk has room for"
                raise _refused(archive, "an archive of ordinary size", f"more than {what}")
            target = part / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as out:
                _copy(file, out, size, archive)
        for file_in in part.rglob("*"):
            target = folder / file_in.relative_to(part)
            if target.exists() and not (target.is_dir() and file_in.is_dir()):
                remedy = "If it is of this archive, rename the archive to *.unpacked; else move it away."
                raise _refused(archive, "a place for it", f"{target}, which is there already", remedy)
        for entry in sorted(part.iterdir()):
            _move(entry, folder / entry.name)
    except BPGError:
        raise
    except (*DAMAGED, tarfile.TarError, FileExistsError) as error:
        raise _refused(archive, "a whole zip or tar archive", f"{type(error).__name__}: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return count


def _members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Name, size and content of each file; whatever is no file, or would lie elsewhere, is refused."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                if (info.external_attr >> 28) == 0xA:  # Unix's mark of a symbolic link
                    raise _refused(archive, "files and folders only", f"the link {info.filename}")
                if not info.is_dir():
                    with packed.open(info) as file:
                        yield _inside(archive, info.filename), info.file_size, file
        return
    with tarfile.open(archive) as tar:  # compressed or not
        for member in tar:
            if member.isdir():
                continue
            content = tar.extractfile(member) if member.isreg() else None
            if content is None:
                raise _refused(archive, "files and folders only", f"the link or device {member.name}")
            yield _inside(archive, member.name), member.size, content
            tar.members.clear()  # type: ignore[attr-defined]  # or a million of them would fill the memory


def _inside(archive: Path, name: str) -> str:
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if name.startswith(("/", "\\")) or ".." in parts or not parts or ":" in parts[0]:
        raise _refused(archive, "names below one folder", repr(name))
    return "/".join(parts)


def _copy(file: IO[bytes], out: IO[bytes], size: int, archive: Path) -> None:
    left = size
    while chunk := file.read(min(CHUNK, left + 1)):
        left -= len(chunk)
        if left < 0:
            raise _refused(archive, f"{size:,} bytes of a file, as the archive says", "more")
        out.write(chunk)
    if left:
        raise EOFError(f"a file ends {left:,} bytes early")


def _move(entry: Path, target: Path) -> None:
    """Move a file or folder to `target`; folders that are there already are filled up."""
    if entry.is_dir() and target.is_dir():
        for inner in sorted(entry.iterdir()):
            _move(inner, target / inner.name)
    else:
        entry.rename(target)


def _refused(archive: Path, wanted: str, came: str, remedy: str = "Fetch it anew from where you trust it.") -> WrongUse:
    return WrongUse(f"{archive} is not unpacked", wanted=wanted, came=came, remedy=remedy)
