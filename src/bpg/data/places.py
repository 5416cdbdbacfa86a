"""A folder of images wherever it lies: on disk, in archives, or in both."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bpg.data.files import inside, is_archive, other_cases
from bpg.errors import WrongUse

CLUTTER = frozenset(("thumbs.db", "desktop.ini"))  # with hidden files, what systems leave behind: not worth a word


@dataclass(slots=True)
class _Packed:
    """A folder inside archives, perhaps spread over several of them."""

    folders: dict[str, _Packed] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """A folder. What its archives hold is in it as if they were unpacked beside themselves.

    >>> import tempfile, zipfile
    >>> root = Path(tempfile.mkdtemp())
    >>> with zipfile.ZipFile(root / "clipart.zip", "w") as archive:
    ...     archive.writestr("clipart/dog/1.jpg", b"")
    >>> [folder.name for folder in Place.open(root).folders()]
    ['clipart']
    >>> Place.open(root).file("clipart/dog/1.jpg").relative_to(root).as_posix()
    'clipart.zip/clipart/dog/1.jpg'
    """

    path: Path  # where it is, or would be if its archives were unpacked
    _packed: _Packed | None = None
    _disk: bool = True  # whether it is on disk, too

    @classmethod
    def open(cls, root: Path) -> Place:
        """The folder or archive `root`. OSError where it cannot be looked into."""
        if root.is_dir():
            archives = sorted(entry for entry in root.iterdir() if is_archive(entry) and entry.is_file())
            return cls(root, _merged(archives) if archives else None)
        if not is_archive(root):
            raise OSError(0, "neither a folder nor a zip or tar archive", str(root))
        return cls(root, _merged([root]), _disk=False)

    @property
    def name(self) -> str:
        return self.path.name

    def folders(self) -> list[Place]:
        """The folders in it, by name; hidden ones are not there."""
        found = {name: Place(self.path / name, inner, _disk=False) for name, inner in self._inner().items()}
        for entry in self._entries():
            if _is_folder(entry):
                inner = self._packed.folders.get(entry.name) if self._packed else None
                found[entry.name] = Place(self.path / entry.name, inner)
        return [found[name] for name in sorted(found) if not name.startswith(".")]

    def files(self) -> list[Path]:
        """The files in it, by name, whatever they are; hidden ones and archives are not there."""
        packed = self._packed.files if self._packed else {}
        paths = [self.path / entry.name for entry in self._entries() if not _is_folder(entry)]  # a dangling link too
        found = {path.name: path for path in paths if not (self._packed and is_archive(path))} | packed
        return [found[name] for name in sorted(found) if not name.startswith(".") and name.lower() not in CLUTTER]

    def file(self, name: str) -> Path:
        """Where the file `name`, a path from here, lies or would lie."""
        return self._in_archive(name) or self.path / name

    def holds(self, name: str) -> bool:
        """Whether there is a file `name`, a path from here."""
        return self._in_archive(name) is not None or (self._disk and (self.path / name).is_file())

    def folder(self, name: str) -> Place | None:
        """The folder `name` in it, whatever the case of its letters."""
        return next((each for each in self.folders() if each.name.lower() == name.lower()), None)

    def holding(self, *names: str) -> Place | None:
        """The nearest place, this one or up to two folders below it, with a file or folder of one of these names."""
        places = [self]
        for _ in range(3):
            for place in places:
                if any(place.holds(name) or place.folder(name) is not None for name in names):
                    return place
            places = [inner for place in places for inner in place.folders()]
        return None

    def walk(self, name: str = "") -> Iterator[tuple[str, Path]]:
        """All files at and below it, folder by folder: the path from here, after `name`, and where it lies."""
        for file in self.files():
            yield f"{name}{file.name}", file
        for folder in self.folders():
            yield from folder.walk(f"{name}{folder.name}/")

    def _in_archive(self, name: str) -> Path | None:
        packed = self._packed
        *folders, last = [part for part in name.split("/") if part not in ("", ".")] or [""]
        for folder in folders:
            packed = packed.folders.get(folder) if packed is not None else None
        if packed is None:
            return None
        return packed.files.get(last) or next((packed.files[o] for o in other_cases(last) if o in packed.files), None)

    def _inner(self) -> dict[str, _Packed]:
        return self._packed.folders if self._packed else {}

    def _entries(self) -> list[os.DirEntry[str]]:
        if not self._disk:
            return []
        with os.scandir(self.path) as entries:
            return list(entries)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _merged(archives: list[Path]) -> _Packed:
    """What lies in `archives`, as one tree."""
    root = _Packed()
    known: dict[str, tuple[_Packed, Path]] = {}
    for archive in archives:
        known.clear()
        for name in inside(archive):
            folder, _, last = name.rpartition("/")
            if folder not in known:
                packed = root
                for part in folder.split("/") if folder else ():
                    packed = packed.folders.setdefault(part, _Packed())
                known[folder] = packed, archive / folder
            packed, path = known[folder]
            if last in packed.files:
                raise WrongUse(
                    f"{name} is in two archives",
                    wanted="every file once",
                    came=f"{packed.files[last]} and {path / last}",
                    remedy="Remove one of the archives.",
                )
            packed.files[last] = path / last
    return root
