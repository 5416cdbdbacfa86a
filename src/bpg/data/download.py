"""Files from the network, piece by piece: a download that was cut goes on where it was."""

from __future__ import annotations

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from bpg.data.benchmark import UNFINISHED, Download
from bpg.errors import BPGError

CHUNK = 2**18
TRIES, PAUSE = 4, 1.0  # seconds before the second try, twice as many before each further one
TIMEOUT = 60
CUT = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)


class DownloadError(BPGError, OSError):
    """A file that cannot be had."""


def fetch(download: Download, folder: Path, *, mirror: str | None = None, tell: Callable[[int, int], None]) -> Path:
    """The file of `download` in `folder`: as it is there, or from its address, or from the folder `mirror` of a server.

    `tell` is called with the bytes that are there and their number.
    """
    target = folder / download.name
    if target.is_file():
        _check(target, download)
        return target
    address = download.address if mirror is None else f"{mirror.rstrip('/')}/{download.name}"
    part = target.with_name(target.name + UNFINISHED)
    for attempt in range(1, TRIES + 1):
        try:
            _go_on(address, part, tell)
            break
        except CUT as error:
            final = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if final or attempt == TRIES:
                raise _failed(address, part, error) from error
            time.sleep(PAUSE * 2 ** (attempt - 1))
    _check(part, download)
    part.replace(target)
    part.with_name(part.name + ".tag").unlink(missing_ok=True)
    return target


def _go_on(address: str, part: Path, tell: Callable[[int, int], None]) -> None:
    """Fetch what `part` still lacks. The server's mark of the file tells whether it is still the same one."""
    mark = part.with_name(part.name + ".tag")
    have = part.stat().st_size if part.is_file() else 0
    known = mark.read_text(encoding="utf-8") if mark.is_file() else ""
    request = urllib.request.Request(address, headers={"User-Agent": "bpg"})  # noqa: S310: addresses are the catalogue's
    if have and known:
        request.add_header("Range", f"bytes={have}-")
        request.add_header("If-Range", known)
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        part.unlink()  # longer than the file is, so another one
        _go_on(address, part, tell)
        return
    with answer:
        partial = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        have = have if partial else 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else 0
        mark.write_text(answer.headers.get("ETag") or answer.headers.get("Last-Modified") or "", encoding="utf-8")
        with part.open("ab" if partial else "wb") as out:
            while chunk := answer.read(CHUNK):
                out.write(chunk)
                have += len(chunk)
                tell(have, max(have, total))
    if total and have != total:
        raise ConnectionError(f"{have:,} of {total:,} bytes came")


def _check(file: Path, download: Download) -> None:
    if download.sha256 is None:
        return
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != download.sha256:
        raise DownloadError(
            f"{file} is not what was published",
            wanted=f"sha256 {download.sha256}",
            came=digest.hexdigest(),
            remedy="Remove it and run the same command again.",
        )


def _failed(address: str, part: Path, error: Exception) -> DownloadError:
    kept = f" What came stays in {part.name}; the same command goes on with it." if part.is_file() else ""
    return DownloadError(
        f"cannot fetch {address}",
        wanted="an answer from its server",
        came=str(getattr(error, "reason", "") or error),
        remedy=f"Check the network, or name another server with --mirror.{kept}",
    )
