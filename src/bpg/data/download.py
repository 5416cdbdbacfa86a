"""Files from the network, piece by piece: a download that was cut goes on where it was."""

from __future__ import annotations

import hashlib
import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from bpg.data.benchmark import UNFINISHED, Download
from bpg.data.files import inside, is_archive
from bpg.errors import BPGError, WrongUse

CHUNK = 2**18
TRIES, PAUSE = 4, 1.0  # seconds before the second try, twice as many before each further one
TIMEOUT = 60
CUT = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError)
LATER = (408, 429)  # what a server says that is busy


class DownloadError(BPGError, OSError):
    """A file that cannot be had."""


def fetch(download: Download, folder: Path, *, mirror: str | None = None, tell: Callable[[int, int], None]) -> Path:
    """The file of `download` in `folder`: as it is there, or from its address, or from the folder `mirror` of a server.

    `tell` is called with the bytes that are there and their number.
    """
    target = folder / download.folder / download.name
    if target.is_file() or unpacked(target).is_file():
        return target
    if mirror is not None and not mirror.startswith(("http://", "https://", "ftp://")):
        raise WrongUse(
            "no mirror", wanted="an address such as https://server/folder", came=mirror, remedy="Correct it."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    address = download.address if mirror is None else f"{mirror.rstrip('/')}/{download.name}"
    part = target.with_name(target.name + UNFINISHED)
    for attempt in range(1, TRIES + 1):
        try:
            _go_on(address, part, tell)
            break
        except CUT as error:
            final = isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code not in LATER
            if final or attempt == TRIES:
                raise _failed(address, part, error) from error
            time.sleep(PAUSE * 2 ** (attempt - 1))
    part.replace(target)
    part.with_name(part.name + ".tag").unlink(missing_ok=True)
    _check(target, download)
    return target


def unpacked(archive: Path) -> Path:
    """What an archive is called once it is unpacked: it is not fetched again, and not read."""
    return archive.with_name(archive.name + ".unpacked")


def _go_on(address: str, part: Path, tell: Callable[[int, int], None]) -> None:
    """Fetch what `part` still lacks. The server's mark of the file tells whether it is still the same one."""
    mark = part.with_name(part.name + ".tag")
    have = part.stat().st_size if part.is_file() else 0
    known = mark.read_text(encoding="utf-8") if mark.is_file() else ""
    request = urllib.request.Request(address, headers={"User-Agent": "bpg"})
    if have and known:
        request.add_header("Range", f"bytes={have}-")
        request.add_header("If-Range", known)
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        if error.headers.get("Content-Range", "").endswith(f"/{have}"):
            return  # it was all there
        part.unlink()  # longer than the file is, so another one
        _go_on(address, part, tell)
        return
    with answer:
        from_here = answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        partial = answer.status == http.HTTPStatus.PARTIAL_CONTENT and from_here
        have = have if partial else 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else 0
        tag = answer.headers.get("ETag", "")
        if not tag or tag.startswith("W/"):  # of a weak one, bytes may differ
            tag = answer.headers.get("Last-Modified", "")
        mark.write_text(tag, encoding="utf-8")
        with part.open("ab" if partial else "wb") as out:
            while chunk := answer.read(CHUNK):
                out.write(chunk)
                have += len(chunk)
                tell(have, max(have, total))
    if total and have != total:
        raise ConnectionError(f"{have:,} of {total:,} bytes came")


def _check(file: Path, download: Download) -> None:
    """Remove what came, if it is something else."""
    wanted, came = "", ""
    if download.sha256 is not None:
        with file.open("rb") as opened:
            wanted, came = download.sha256, hashlib.file_digest(opened, "sha256").hexdigest()
    if wanted == came and is_archive(file):
        try:
            inside(file)
        except OSError as error:
            wanted, came = "a whole archive", error.strerror or str(error)
    if wanted != came:
        file.unlink()
        raise DownloadError(
            f"what came from {download.address} is not {download.name}",
            wanted=wanted,
            came=came,
            remedy="Run the same command again, or name another server with --mirror.",
        )


def _failed(address: str, part: Path, error: Exception) -> DownloadError:
    kept = f" What came stays in {part.name}; the same command goes on with it." if part.is_file() else ""
    return DownloadError(
        f"cannot fetch {address}",
        wanted="an answer from its server",
        came=str(getattr(error, "reason", "") or error),
        remedy=f"Check the network, or name another server with --mirror.{kept}",
    )
