"""Decoded images are kept as they are, and a cache that is full, damaged or gone changes nothing."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import bpg.data.pixels as module
from bpg.data.decode import decode
from bpg.data.domain import Domain
from bpg.data.images import ImageSet
from bpg.data.pixels import LIMIT, Decoded, PixelCache, pixel_limit
from bpg.errors import ImageError, WrongUse
from tests.conftest import ROOT
from tests.unit.test_batches import DIGESTS, KINDS, batches_of, digest_of, photos


@pytest.fixture
def domain(tmp_path: Path) -> Domain:
    return photos(tmp_path / "photos")


@pytest.fixture
def few_a_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of a few images, so that there are many."""
    monkeypatch.setattr(module, "SHARD", 15_000)


def shards(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "bpg-cache" / "pixels").rglob("*.safetensors"))


def count(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a file is read and an image decoded from here on."""
    done: Counter[str] = Counter()
    read = ImageSet.encoded

    def counted_read(self: ImageSet, index: int) -> bytes:
        done["read"] += 1
        return read(self, index)

    def counted_decode(encoded: bytes, *, where: str) -> torch.Tensor:
        done["decoded"] += 1
        return decode(encoded, where=where)

    monkeypatch.setattr(ImageSet, "encoded", counted_read)
    monkeypatch.setattr(module, "decode", counted_decode)
    return done


@pytest.mark.usefixtures("few_a_shard")
def test_later_epochs_neither_read_nor_decode(domain: Domain, monkeypatch: pytest.MonkeyPatch) -> None:
    done = count(monkeypatch)
    assert len(list(batches_of(domain, epochs=4).stream(0))) == 16
    assert done == {"read": 23, "decoded": 23}
    list(batches_of(domain, "shifted", epochs=2).stream(0))  # another run, with other pixels wanted
    assert done == {"read": 46, "decoded": 23}


@pytest.mark.usefixtures("few_a_shard")
@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_from_the_cache_is_the_same_bytes(
    kind: str, domain: Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert digest_of(batches_of(domain, kind)) == DIGESTS[kind]
    assert len(shards(tmp_path)) > 1
    assert digest_of(batches_of(domain, kind)) == DIGESTS[kind]
    monkeypatch.setenv("BPG_PIXEL_CACHE", "0")
    assert digest_of(batches_of(domain, kind)) == DIGESTS[kind]


def test_pixels_are_those_of_decode(domain: Domain, tmp_path: Path) -> None:
    for _ in range(2):
        cache = PixelCache("noise", 23, limit=LIMIT)
        decoded = Decoded(domain, cache)
        for index, path in enumerate(domain.train.paths):
            pixels, _ = decoded.open(index)
            assert torch.equal(pixels, decode(path.read_bytes(), where="here"))
        cache.flush()
    assert len(shards(tmp_path)) == 1


def test_the_cache_can_be_switched_off(domain: Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BPG_PIXEL_CACHE", "0")
    done = count(monkeypatch)
    list(batches_of(domain, epochs=2).stream(0))
    assert done["decoded"] == 46
    assert shards(tmp_path) == []


@pytest.mark.parametrize(
    ("given", "size"),
    [("", LIMIT), ("0", 0), ("2G", 2 * 2**30), ("1.5 GiB", 3 * 2**29), ("500m", 500 * 2**20), ("1000", 1000)],
)
def test_sizes(given: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BPG_PIXEL_CACHE", given)
    assert pixel_limit() == size


@pytest.mark.parametrize("given", ["no", "-1", "4 gigabytes", "2GG", "nan", "٣G"])
def test_what_is_no_size_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BPG_PIXEL_CACHE", given)
    with pytest.raises(WrongUse, match="BPG_PIXEL_CACHE is no size.*500M or 8G, or 0"):
        pixel_limit()


@pytest.mark.usefixtures("few_a_shard")
def test_a_domain_that_does_not_fit_is_not_cached_and_it_is_said_once(
    domain: Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BPG_PIXEL_CACHE", "20K")
    done = count(monkeypatch)
    with pytest.warns(UserWarning, match="the images of noise take about 0.0 GiB when decoded") as said:
        list(batches_of(domain, epochs=3).stream(0))
    assert len(said) == 1
    assert "decoded in every epoch ($BPG_PIXEL_CACHE sets its size)" in str(said[0].message)
    assert done["decoded"] == 3 * 23
    assert shards(tmp_path) == []


def test_half_of_the_free_disk_is_left_alone(domain: Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100_000))
    with pytest.warns(UserWarning, match="they are decoded in every epoch"):
        list(batches_of(domain, epochs=1).stream(0))
    assert shards(tmp_path) == []


def cached(domain: Domain, indices: range, *, limit: int = LIMIT) -> None:
    """Keep some images of a domain, as if it had no others."""
    cache = PixelCache("part", len(indices), limit=limit)
    decoded = Decoded(domain, cache)
    for index in indices:
        decoded.open(index)
    cache.flush()


def test_what_was_not_used_for_longest_makes_way(domain: Domain, tmp_path: Path) -> None:
    cached(domain, range(8))
    (oldest,) = shards(tmp_path)
    cached(domain, range(8, 16))
    (other,) = set(shards(tmp_path)) - {oldest}
    for age, file in ((100, oldest), (50, other)):
        os.utime(file, (time.time() - age,) * 2)
    cached(domain, range(8))  # it is used again
    assert oldest.stat().st_mtime > other.stat().st_mtime
    room = sum(file.stat().st_size for file in (oldest, other)) + 1000
    cached(domain, range(16, 23), limit=room)
    assert oldest in shards(tmp_path)
    assert other not in shards(tmp_path)
    assert sum(file.stat().st_size for file in shards(tmp_path)) <= room


def test_a_shard_in_use_that_makes_way_is_still_read(domain: Domain, tmp_path: Path) -> None:
    cached(domain, range(23))
    decoded = Decoded(domain, PixelCache("noise", 23, limit=LIMIT))
    decoded.open(3)
    shutil.rmtree(tmp_path / "bpg-cache")
    pixels, _ = decoded.open(3)
    assert torch.equal(pixels, decode(domain.train.encoded(3), where="here"))


@pytest.mark.parametrize("where", ["pixels", "table", "end", "header", "empty"])
def test_damage_is_found_out(where: str, domain: Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(domain, range(23))
    (shard,) = shards(tmp_path)
    content = bytearray(shard.read_bytes())
    path = domain.train.paths[1]
    if where == "pixels":
        content[content.index(decode(path.read_bytes(), where="here").permute(1, 2, 0).numpy().tobytes()) + 77] ^= 1
    elif where == "table":
        content[content.index(Decoded(domain).open(1)[1])] ^= 1
    elif where == "end":
        content = content[:-100]
    elif where == "header":
        content[3] ^= 255
    else:
        content.clear()
    shard.write_bytes(content)
    done = count(monkeypatch)
    with pytest.warns(UserWarning, match="cache file"):
        assert digest_of(batches_of(domain)) == DIGESTS["resized"]
    assert done["decoded"] >= 1
    done.clear()
    assert digest_of(batches_of(domain)) == DIGESTS["resized"]
    assert done["decoded"] == 0


@pytest.mark.usefixtures("few_a_shard")
def test_a_full_disk_costs_the_cache_and_not_the_run(
    domain: Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_bytes

    def refuse(self: Path, content: bytes) -> int:
        if self.suffix == ".part" and shards(tmp_path):
            write(self, content[:1000])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(self, content)

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.warns(UserWarning, match="are not cached: .* cannot be written .No space left on device") as said:
        batches = list(batches_of(domain).stream(0))
    assert len(batches) == 12
    assert len(said) == 1
    assert len(shards(tmp_path)) == 1
    assert list((tmp_path / "bpg-cache").rglob("*.part")) == []


def test_a_cache_that_is_no_folder_costs_no_run(domain: Domain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BPG_CACHE", str(domain.train.paths[0]))
    with pytest.warns(UserWarning, match="are not cached"):
        assert len(list(batches_of(domain).stream(0))) == 12


def test_half_written_files_are_not_read_and_do_not_stay(domain: Domain, tmp_path: Path) -> None:
    cached(domain, range(23))
    (shard,) = shards(tmp_path)
    fresh, old = shard.with_suffix(".1.part"), shard.with_suffix(".2.part")
    shard.replace(fresh)
    old.write_bytes(b"half")
    os.utime(old, (time.time() - 2 * module.ABANDONED,) * 2)
    assert PixelCache("noise", 23, limit=LIMIT).get(Decoded(domain).open(0)[1]) is None
    assert fresh.exists()
    assert not old.exists()


def test_two_trainings_at_once_share_what_they_decode(domain: Domain, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = batches_of(domain, epochs=3)
    done = count(monkeypatch)
    alone = [images for images, _, _ in batches.stream(0)]
    assert done["decoded"] == 23
    shutil.rmtree(Path(os.environ["BPG_CACHE"]))
    done.clear()
    ranks = [batches.stream(0, rank=rank, ranks=2) for rank in range(2)]
    for whole, *shares in zip(alone, *ranks, strict=True):
        for rank, (images, _, _) in enumerate(shares):
            assert torch.equal(images, whole[rank::2])
    assert 23 <= done["decoded"] < 2 * 23


KILLED = """
import os, signal, sys
from pathlib import Path
import bpg.data.pixels as module
from tests.unit.test_batches import batches_of, photos
module.SHARD = 5_000
write = Path.write_bytes
def half(self, content):
    if self.suffix == ".part" and len(list(self.parent.glob("*.safetensors"))) >= 2:
        write(self, content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    return write(self, content)
domain = photos(Path(sys.argv[1]))
Path.write_bytes = half
list(batches_of(domain).stream(0))
"""


def test_a_run_killed_while_it_writes_leaves_only_whole_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILLED, str(tmp_path / "photos")]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert found.returncode == -signal.SIGKILL, found.stderr
    assert len(shards(tmp_path)) >= 2  # writes may overlap
    assert len(list((tmp_path / "bpg-cache").rglob("*.part"))) == 1
    done = count(monkeypatch)
    assert digest_of(batches_of(photos(tmp_path / "photos"))) == DIGESTS["resized"]
    assert 0 < done["decoded"] < 23


def test_a_broken_image_is_named_as_ever(domain: Domain) -> None:
    domain.train.paths[4].write_bytes(b"no image")
    with pytest.raises(ImageError, match=r"cannot read the image .*04\.bmp.*unknown format"):
        list(batches_of(domain).stream(0))
    domain.train.paths[4].unlink()
    with pytest.raises(ImageError, match=r"cannot open the image .*04\.bmp"):
        list(batches_of(domain).stream(0))
