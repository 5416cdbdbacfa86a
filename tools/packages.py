"""Files out of public packages, fetched by name and version and held to a digest."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class Package:
    """A package of npm, PyPI or Debian, and the sha256 of the archive that carries it."""

    kind: Literal["npm", "pypi", "debian"]
    name: str
    version: str
    sha256: str

    def fetch(self, into: Path) -> Path:
        """The package's archive in `into`, with the registry's own client unless it is there already."""
        file = into / f"{self.name.replace('/', '-').lstrip('@')}-{self.sha256[:12]}"
        if not file.is_file():
            into.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=into) as place:
                subprocess.run(self._command(), cwd=place, check=True, stdout=subprocess.DEVNULL)
                (fetched,) = Path(place).iterdir()
                fetched.replace(file)
        with file.open("rb") as archive:
            digest = hashlib.file_digest(archive, "sha256").hexdigest()
        if digest != self.sha256:
            raise SystemExit(
                f"{file} is not {self.name} {self.version}: wanted sha256 {self.sha256}, came {digest}. "
                "Delete it to fetch it again."
            )
        return file

    def _command(self) -> list[str]:
        if self.kind == "npm":
            return ["npm", "pack", "--silent", f"{self.name}@{self.version}"]
        if self.kind == "pypi":
            return [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"{self.name}=={self.version}"]
        return ["apt-get", "download", "--quiet", f"{self.name}={self.version}"]


def members(archive: Path, wanted: Iterable[str]) -> dict[str, bytes]:
    """The files of a tar archive whose paths begin with one of `wanted`, by path."""
    prefixes = tuple(wanted)
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and member.name.removeprefix("./").startswith(prefixes):
                stream = tar.extractfile(member)
                assert stream is not None
                found[member.name.removeprefix("./")] = stream.read()
    return found
