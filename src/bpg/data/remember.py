"""Which files were read before, and what was found: a file that did not change since is not read again.

A file is known by its path, size and time of change; one in an archive by those of the archive. What is kept of it is
the sha256 of what it holds, and why it cannot be decoded, if it cannot.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import warnings
from contextlib import suppress
from pathlib import Path
from threading import Lock

import PIL

from bpg.data.files import archive_of
from bpg.folders import cache_folder

FORMAT = 1
WAITING = 2000  # files between two writes: what a killed run reads again
Key = tuple[bytes, int, int]  # of the path, bytes, nanoseconds


def memory_file() -> Path:
    """Where it is kept; another version of Pillow may read other files."""
    return cache_folder() / "checked" / f"{FORMAT}-pillow-{PIL.__version__}.sqlite"


class Memory:
    """What is known of files. May be asked from many threads; a disk that refuses costs the memory, not the work."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: list[tuple[bytes, int, int, bytes, str]] = []
        self._archives: dict[Path, os.stat_result] = {}
        self._base: sqlite3.Connection | None = None
        self._empty = True  # when it was opened: to ask would cost more than the answer
        file = memory_file()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(file, check_same_thread=False, timeout=60)
            self._base.execute("PRAGMA synchronous=OFF")  # what a power cut damages is worked out again
            self._base.execute(
                "CREATE TABLE IF NOT EXISTS files "
                "(path BLOB PRIMARY KEY, size INTEGER, changed INTEGER, sha256 BLOB, fault TEXT) WITHOUT ROWID"
            )
            self._empty = self._base.execute("SELECT 1 FROM files LIMIT 1").fetchone() is None
        except (OSError, sqlite3.Error) as error:
            self._stop(error)

    def key(self, path: Path) -> Key | None:
        """What tells whether a file changed; None where there is no file."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        except OSError:  # inside an archive
            place = archive_of(path)
            if place is None:
                return None
            archive = place[0]
            if archive not in self._archives:
                self._archives[archive] = os.stat(archive)
            found = self._archives[archive]
        where = hashlib.blake2b(os.fsencode(os.path.abspath(path)), digest_size=16).digest()
        return where, found.st_size, found.st_mtime_ns

    def get(self, key: Key) -> tuple[bytes, str] | None:
        """The sha256 of a file and its fault, or nothing if it is new or changed."""
        if self._empty:
            return None
        with self._lock:
            if self._base is None:
                return None
            try:
                row: tuple[bytes, str] | None = self._base.execute(
                    "SELECT sha256, fault FROM files WHERE path = ? AND size = ? AND changed = ?", key
                ).fetchone()
            except sqlite3.Error as error:
                self._stop(error)
                return None
        return row

    def add(self, key: Key, sha256: bytes, fault: str) -> None:
        """Keep what was found of a file."""
        with self._lock:
            self._waiting.append((*key, sha256, fault))
            if len(self._waiting) < WAITING:
                return
        self.flush()

    def flush(self) -> None:
        """Write down what waits."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            if self._base is None or not waiting:
                return
            try:
                with self._base:
                    self._base.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)", waiting)
            except sqlite3.Error as error:
                self._stop(error)

    def close(self) -> None:
        """Write down what waits, and let go of the file."""
        self.flush()
        with self._lock:
            base, self._base = self._base, None
            if base is not None:
                base.close()

    def _stop(self, error: Exception) -> None:
        self._base = None
        warnings.warn(f"what was checked is not remembered: {memory_file()} cannot be used ({error})", stacklevel=4)
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            with suppress(OSError):
                memory_file().unlink()  # damaged: the next one begins anew
