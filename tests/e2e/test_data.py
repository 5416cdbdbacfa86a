"""The verbs of `bpg data`, with a real server."""

from __future__ import annotations

import functools
import json
import shutil
import threading
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.command import bpg, document, done, refused


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    """A server that has CORe50's files, of a small sample."""
    done("data", "sample", "core50", tmp_path / "sample", "--classes", 3, "--per-class", 1)
    served = tmp_path / "served"
    served.mkdir()
    images = tmp_path / "sample" / "core50_128x128"
    for name in ("paths.pkl", "LUP.pkl", "labels.pkl"):
        shutil.move(images / name, served / name)
    with zipfile.ZipFile(served / "core50_128x128.zip", "w") as archive:
        for file in sorted(images.rglob("*.png")):
            archive.write(file, file.relative_to(tmp_path / "sample"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(served)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_benchmark_is_prepared_verified_and_unpacked(mirror: str, tmp_path: Path) -> None:
    root = tmp_path / "core50"
    told = done("data", "prepare", "core50", root, "--mirror", mirror)
    assert "s1, s2, s4, s5, s6, s8, s9, s11, s3+s7+s10" in told
    assert "14,989 images are published, 3 are here" in told
    packed = document("data", "prepare", "core50", root, "--mirror", "http://127.0.0.1:9")  # nothing is fetched again
    verified = bpg("data", "verify", "core50", root, "--json")
    assert verified.returncode == 1  # it is a sample
    found = json.loads(verified.stdout)
    assert found["variant"] == packed["variant"] == "128x128"
    assert found["orders"]["ni-0"][:2] == ["s11", "s4"]
    assert not found["unreadable"]
    done("data", "prepare", "core50", root, "--unpack", "--mirror", "http://127.0.0.1:9")
    assert (root / "core50_128x128" / "s1" / "o1" / "C_01_01_000.png").is_file()
    assert (root / "core50_128x128.zip.unpacked").is_file()
    done("data", "prepare", "core50", root, "--unpack", "--mirror", "http://127.0.0.1:9")  # once more changes nothing
    (root / "core50_128x128.zip").write_bytes(b"another")
    assert "was unpacked before" in refused("data", "prepare", "core50", root, "--unpack")
    (root / "core50_128x128.zip").unlink()
    again = json.loads(bpg("data", "verify", "core50", root, "--json").stdout)
    assert again["sets"] == found["sets"]


def test_archives_that_somebody_else_put_there_stay(tmp_path: Path) -> None:
    done("data", "sample", "cddb-hard", tmp_path / "cddb-hard", "--per-class", 1)
    done("data", "pack", tmp_path / "cddb-hard", tmp_path / "root", "--as", "zip")
    (tmp_path / "root" / "thesis.tar.gz").write_bytes(b"mine")
    told = bpg("data", "prepare", "cddb-hard", tmp_path / "root")
    assert told.returncode == 0, told.stderr
    assert "thesis.tar.gz cannot be read as it is" in told.stderr
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == ["cddb-hard.zip", "thesis.tar.gz"]


def test_what_cannot_be_had_says_how_to_get_it(tmp_path: Path) -> None:
    assert "github.com/Coral79/CDDB" in refused("data", "prepare", "cddb-hard", tmp_path / "new")
    assert "does not take --images" in refused("data", "prepare", "pacs", tmp_path / "new", "--images", tmp_path)
    assert "kind of archive" in refused("data", "pack", tmp_path, tmp_path / "out", "--as", "rar")
    assert "--images" in refused("data", "prepare", "corruptions", tmp_path / "other")
    assert "ships with bpg" in bpg("data", "prepare", "emoji", tmp_path / "x").stderr


def test_a_list_in_another_numbering_is_a_fault_that_verify_tells(tmp_path: Path) -> None:
    root = tmp_path / "domainnet"
    done("data", "sample", "domainnet", root, "--classes", 3)
    text = (root / "real_train.txt").read_text()
    (root / "real_train.txt").write_text(text.replace(" 0\n", " 1\n"))
    found = bpg("data", "verify", "domainnet", root, "--json")
    assert found.returncode == 1
    assert "not the official list" in json.loads(found.stdout)["wrong"][0]
    assert "WRONG" in bpg("data", "verify", "domainnet", root).stdout
    assert bpg("data", "verify", "domainnet", tmp_path / "gone").returncode == 2
