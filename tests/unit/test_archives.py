"""Images in archives: read in place, packed, and unpacked without harm."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from bpg.data.files import inside, read
from bpg.data.folder import read_folder
from bpg.data.pack import pack
from bpg.data.places import Place
from bpg.data.shards import domain_and_side
from bpg.data.unpack import unpack
from bpg.errors import BPGError, WrongUse
from tests.toy import toy_folder


def tar_of(path: Path, files: dict[str, bytes], **options: object) -> Path:
    with tarfile.open(path, "w", **options) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


LONG = "a" * 90 + "/" + "b" * 90 + "/" + "c" * 120 + ".jpg"


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_tar_is_read_as_the_standard_library_reads_it(kind: int, tmp_path: Path) -> None:
    names = ["./one.jpg", "photo/dog/ü.jpg", "x" * 100] + ([LONG] if kind != tarfile.USTAR_FORMAT else [])
    files = {name: name.encode() * 100 for name in names}
    archive = tar_of(tmp_path / "images.tar", files, format=kind)
    with tarfile.open(archive, "a") as more:
        more.addfile(folder := tarfile.TarInfo("photo"), None)
        assert folder
    assert inside(archive) == sorted({name.removeprefix("./") for name in files} | {"photo"})
    for name, content in files.items():
        assert read(archive / name) == content


def test_a_folder_or_a_link_in_a_tar_is_no_file(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for kind, name in ((tarfile.DIRTYPE, "photo"), (tarfile.SYMTYPE, "link.jpg"), (tarfile.LNKTYPE, "hard.jpg")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    assert inside(tmp_path / "a.tar") == []


@pytest.mark.parametrize("keep", [100, 700, 1500])
def test_a_tar_that_was_cut_is_told(keep: int, tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "images.tar", {"a.jpg": b"x" * 900, "b.jpg": b"y" * 900})
    archive.write_bytes(archive.read_bytes()[:keep])
    with pytest.raises(OSError, match="cut short"):
        inside(archive)


def test_what_is_no_archive_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"no tar at all" * 100)
    (tmp_path / "a.zip").write_bytes(b"no zip at all" * 100)
    for name in ("a.tar", "a.zip"):
        with pytest.raises(OSError, match="cannot be unpacked"):
            inside(tmp_path / name)
        with pytest.raises(WrongUse):
            read_folder(tmp_path / name)


@pytest.mark.parametrize("name", ["../out.jpg", "/out.jpg", "photo/../../out.jpg"])
def test_a_name_that_leads_out_is_refused(name: str, tmp_path: Path) -> None:
    tar_of(tmp_path / "a.tar", {name: b"x"})
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(name, b"x")
    for kind in ("a.tar", "a.zip"):
        with pytest.raises(OSError, match="lead out"):
            inside(tmp_path / kind)
        with pytest.raises(WrongUse, match="names below one folder"):
            unpack(tmp_path / kind, tmp_path / "into")
    assert not (tmp_path / "out.jpg").exists()
    assert not list((tmp_path / "into").iterdir())


def test_links_are_not_unpacked(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        info = tarfile.TarInfo("photo")
        info.type, info.linkname = tarfile.SYMTYPE, str(tmp_path)
        archive.addfile(info)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        link = zipfile.ZipInfo("photo")
        link.external_attr = 0o120777 << 16
        packed.writestr(link, str(tmp_path))
    for kind in ("a.tar", "a.zip"):
        with pytest.raises(WrongUse, match="link"):
            unpack(tmp_path / kind, tmp_path / "into")


def test_too_many_files_or_bytes_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tar_of(tmp_path / "many.tar", {f"{number}.jpg": b"" for number in range(11)})
    monkeypatch.setattr("bpg.data.unpack.MOST_FILES", 10)
    with pytest.raises(WrongUse, match="10 files"):
        unpack(tmp_path / "many.tar", tmp_path / "into")
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.jpg", b"0" * 2**20)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 2**19})())
    with pytest.raises(WrongUse, match="room"):
        unpack(tmp_path / "bomb.zip", tmp_path / "into")
    assert not list((tmp_path / "into").iterdir())


def test_a_file_that_is_there_is_not_overwritten_and_nothing_else_is_written(tmp_path: Path) -> None:
    tar_of(tmp_path / "a.tar", {"photo/a.jpg": b"new", "photo/b.jpg": b"new"})
    (tmp_path / "photo").mkdir()
    (tmp_path / "photo" / "b.jpg").write_bytes(b"old")
    with pytest.raises(WrongUse, match="there already"):
        unpack(tmp_path / "a.tar", tmp_path)
    assert [(file.name, file.read_bytes()) for file in (tmp_path / "photo").iterdir()] == [("b.jpg", b"old")]
    (tmp_path / "photo" / "b.jpg").unlink()
    assert unpack(tmp_path / "a.tar", tmp_path) == 2
    assert (tmp_path / "photo" / "b.jpg").read_bytes() == b"new"


def test_a_compressed_tar_is_unpacked_and_not_read_in_place(tmp_path: Path) -> None:
    tar_of(tmp_path / "a.tgz", {"photo/dog/1.jpg": b"x"}).rename(tmp_path / "a.tar.gz")
    with pytest.raises(WrongUse, match="bpg data pack"):
        read_folder(tmp_path)
    assert unpack(tmp_path / "a.tar.gz", tmp_path / "into") == 1


@pytest.mark.parametrize("kind", ["zip", "shards"])
def test_a_packed_folder_reads_as_the_folder_does(kind: str, tmp_path: Path) -> None:
    folder = toy_folder(tmp_path / "toy")
    (folder / "red" / "notes.txt").write_text("not an image")
    pack(folder, tmp_path / "packed", kind=kind, shard=20_000)  # type: ignore[arg-type]
    plain, packed = read_folder(folder), read_folder(tmp_path / "packed")
    assert len(list((tmp_path / "packed").glob("*.tar"))) != 1
    assert packed.layout == plain.layout
    assert list(packed.domains) == list(plain.domains)
    for name, sides in plain.domains.items():
        for mine, theirs in ((sides.train, packed.domains[name].train), (sides.test, packed.domains[name].test)):
            assert mine is not None
            assert theirs is not None
            assert mine.labels == theirs.labels
            assert [path.name for path in mine.paths] == [path.name for path in theirs.paths]
            assert [mine.encoded(i) for i in range(len(mine))] == [theirs.encoded(i) for i in range(len(theirs))]
    again = pack(tmp_path / "packed", tmp_path / "again" / "toy", kind=kind, shard=20_000)  # type: ignore[arg-type]
    assert sum(len(inside(path)) for path in again) >= 60


def test_the_same_file_in_two_archives_is_refused(tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar"):
        tar_of(tmp_path / name, {"photo/dog/1.jpg": b"x"})
    with pytest.raises(BPGError, match="in two archives"):
        Place.open(tmp_path)


def test_shards_of_ones_own_say_domain_side_and_class(tmp_path: Path) -> None:
    picture = next(toy_folder(tmp_path / "toy").rglob("*.png")).read_bytes()
    (tmp_path / "shards").mkdir()
    for domain in ("photo", "art-deco"):
        for side, labels in (("train", (0, 1, 1)), ("val", (1,))):
            samples = {f"{n:04}.png": picture for n in range(len(labels))}
            samples |= {f"{n:04}.cls": str(label).encode() for n, label in enumerate(labels)}
            tar_of(tmp_path / "shards" / f"{domain}-{side}-000000.tar", samples)
    (tmp_path / "shards" / "classes.txt").write_text("cat\ndog\n")
    found = read_folder(tmp_path / "shards")
    assert found.layout == "shards"
    assert list(found.domains) == ["art-deco", "photo"]
    assert found.split == "given"
    train = found.domains["photo"].train
    assert train is not None
    assert train.counts() == {"cat": 1, "dog": 2}
    tar_of(tmp_path / "shards" / "photo-train-000001.tar", {"0009.png": picture, "1.cls": b"1"})
    with pytest.raises(WrongUse, match="has no label"):
        read_folder(tmp_path / "shards")


@pytest.mark.parametrize(
    ("name", "domain", "side"),
    [
        ("photo-train-000000", "photo", "train"),
        ("art-deco_val", "art-deco", "test"),
        ("art_painting.test.03", "art_painting", "test"),
        ("s1", "s1", ""),
        ("s2", "s2", ""),
        ("office31", "office31", ""),
        ("contest-000", "contest", ""),
        ("interval", "interval", ""),
        ("train-0001", "shards", "train"),
        ("0001", "shards", ""),
    ],
)
def test_what_a_shards_name_says(name: str, domain: str, side: str) -> None:
    assert domain_and_side(Path("/data/shards") / f"{name}.tar") == (domain, side)


def test_an_interrupted_pack_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    folder = toy_folder(tmp_path / "toy")

    def stop(done: int, _total: int) -> None:
        if done == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(folder, tmp_path / "packed", kind="shards", shard=5000, tell=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]
    pack(folder, tmp_path / "packed", kind="shards", shard=5000)
    with pytest.raises(WrongUse, match="is taken"):
        pack(folder, tmp_path / "packed", kind="shards")
    with pytest.raises(WrongUse, match="lies in"):
        pack(folder, folder / "packed", kind="shards")


def test_labelled_shards_packed_anew_keep_their_labels(tmp_path: Path) -> None:
    picture = next(toy_folder(tmp_path / "toy").rglob("*.png")).read_bytes()
    (tmp_path / "photo").mkdir()
    tar_of(tmp_path / "photo" / "photo-0.tar", {"1.png": picture, "1.cls": b"cat", "2.png": picture, "2.cls": b"dog"})
    pack(tmp_path / "photo", tmp_path / "again", kind="shards")
    (sides,) = read_folder(tmp_path / "again", test_share=0).domains.values()
    assert sides.train is not None
    assert sides.train.counts() == {"cat": 1, "dog": 1}


def test_shards_with_a_side_and_without_are_refused(tmp_path: Path) -> None:
    picture = next(toy_folder(tmp_path / "toy").rglob("*.png")).read_bytes()
    (tmp_path / "photo").mkdir()
    for name in ("photo-train-0.tar", "photo-1.tar"):
        tar_of(tmp_path / "photo" / name, {"1.png": picture, "1.cls": b"cat"})
    with pytest.raises(WrongUse, match="with a side and without"):
        read_folder(tmp_path / "photo")


def test_a_zip_written_elsewhere_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("photo\\dog\\1.jpg", b"one")
        archive.writestr("./photo/dog/2.JPG", b"two")
    place = Place.open(tmp_path)
    assert read(place.file("photo/dog/1.jpg")) == b"one"
    assert read(place.file("./photo/dog/2.jpg")) == b"two"


def test_a_suffix_in_the_wrong_case_is_forgiven(tmp_path: Path) -> None:
    (tmp_path / "a.JPG").write_bytes(b"x")
    assert read(tmp_path / "a.jpg") == b"x"
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "b.jpg")
