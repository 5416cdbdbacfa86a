"""Downloads from a real server: whole, cut and gone on with, changed meanwhile, refused."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bpg.data.benchmark import Download
from bpg.data.download import DownloadError, fetch
from bpg.errors import WrongUse

CONTENT = bytes(range(256)) * 4000  # of a file that is no archive


class Server(ThreadingHTTPServer):
    """Serves one file, with ranges; may cut its answers short."""

    content = CONTENT
    tag = '"one"'
    cuts = 0  # answers still to be cut
    ranges = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/data/images.bin"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        asked = self.headers.get("Range", "")
        server.asked.append(asked)
        if "missing" in self.path:
            self.send_error(404)
            return
        if asked == f"bytes={len(server.content)}-":
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(server.content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        same = self.headers.get("If-Range") == server.tag
        found = re.fullmatch(r"bytes=(\d+)-", asked)
        start = int(found[1]) if found and same and server.ranges else 0
        body = server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("ETag", server.tag)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.cuts:
            server.cuts -= 1
            body = body[: len(body) // 2]
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr("bpg.data.download.PAUSE", 0.01)
    found = Server()
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()


def quiet(_done: int, _total: int) -> None:
    pass


def test_a_file_comes_whole_and_is_not_asked_for_again(server: Server, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    download = Download(server.address, sha256=hashlib.sha256(CONTENT).hexdigest())
    file = fetch(download, tmp_path, tell=lambda *now: told.append(now))
    assert file.read_bytes() == CONTENT
    assert told[-1] == (len(CONTENT), len(CONTENT))
    fetch(download, tmp_path, tell=quiet)
    assert len(server.asked) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["images.bin"]


def test_a_cut_download_goes_on_where_it_was(server: Server, tmp_path: Path) -> None:
    server.cuts = 2
    assert fetch(Download(server.address), tmp_path, tell=quiet).read_bytes() == CONTENT
    half = len(CONTENT) // 2
    assert server.asked == ["", f"bytes={half}-", f"bytes={half + half // 2}-"]


def test_what_came_stays_when_all_tries_fail_and_the_next_call_goes_on(server: Server, tmp_path: Path) -> None:
    server.cuts = 4
    with pytest.raises(DownloadError, match="goes on with it"):
        fetch(Download(server.address), tmp_path, tell=quiet)
    assert not (tmp_path / "images.bin").exists()
    held = (tmp_path / "images.bin.part").stat().st_size
    assert 0 < held < len(CONTENT)
    assert fetch(Download(server.address), tmp_path, tell=quiet).read_bytes() == CONTENT
    assert server.asked[-1] == f"bytes={held}-"


def test_a_file_that_changed_meanwhile_is_fetched_from_its_beginning(server: Server, tmp_path: Path) -> None:
    server.cuts = 4
    with pytest.raises(DownloadError):
        fetch(Download(server.address), tmp_path, tell=quiet)
    server.content, server.tag = CONTENT[::-1], '"two"'
    assert fetch(Download(server.address), tmp_path, tell=quiet).read_bytes() == CONTENT[::-1]


def test_a_server_without_ranges_begins_anew(server: Server, tmp_path: Path) -> None:
    server.cuts, server.ranges = 1, False
    assert fetch(Download(server.address), tmp_path, tell=quiet).read_bytes() == CONTENT


def test_a_download_that_was_all_there_is_taken_as_it_is(server: Server, tmp_path: Path) -> None:
    (tmp_path / "images.bin.part").write_bytes(CONTENT)
    (tmp_path / "images.bin.part.tag").write_text(server.tag)
    assert fetch(Download(server.address), tmp_path, tell=quiet).read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(CONTENT)}-"]


def test_a_page_in_the_place_of_an_archive_is_not_kept(server: Server, tmp_path: Path) -> None:
    server.content = b"<html>Please log in</html>"
    with pytest.raises(DownloadError, match="a whole archive"):
        fetch(Download(server.address.replace(".bin", ".zip")), tmp_path, tell=quiet)
    assert not list(tmp_path.iterdir())


def test_a_mirror_that_is_no_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="no mirror"):
        fetch(Download("http://nowhere.invalid/a.bin"), tmp_path, mirror="here", tell=quiet)


def test_a_mirror_takes_the_place_of_the_address(server: Server, tmp_path: Path) -> None:
    elsewhere = Download("http://nowhere.invalid/far/images.bin")
    mirror = server.address.removesuffix("images.bin")
    assert fetch(elsewhere, tmp_path, mirror=mirror, tell=quiet).read_bytes() == CONTENT


def test_what_is_not_there_or_not_the_same_is_told(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="--mirror"):
        fetch(Download(server.address.replace("images", "missing")), tmp_path, tell=quiet)
    assert len(server.asked) == 1  # asking again would not help
    with pytest.raises(DownloadError, match="is not images.bin"):
        fetch(Download(server.address, sha256="0" * 64), tmp_path, tell=quiet)
    assert not (tmp_path / "images.bin").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(DownloadError, match="Check the network"):
        fetch(Download("http://127.0.0.1:9/images.bin"), tmp_path / "empty", tell=quiet)
