"""The benchmark that ships: whole, split by emoji; and images inside archives."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from bpg.data.benchmarks.emoji import EMOJI, SHIPPED, STYLES, UNSEEN_STYLES
from bpg.data.files import inside, read
from bpg.data.folder import Found
from bpg.data.images import ImageSet
from bpg.data.verify import verify
from bpg.errors import ImageError, UnknownName, WrongUse
from tests.command import bpg


@pytest.fixture(scope="module")
def found() -> Found:
    return EMOJI.find(None)


def emoji(images: ImageSet | None) -> dict[str, str]:
    """Code -> class."""
    assert images is not None
    return {path.stem: images.classes[label] for path, label in zip(images.paths, images.labels, strict=True)}


def test_every_class_is_well_filled_in_every_domain(found: Found) -> None:
    assert len(EMOJI.sets) == 12
    assert min(min(EMOJI.expected[name]["classes"].values()) for name in EMOJI.sets) >= 10
    assert len(found.domains["google"].train.classes) == 12  # type: ignore[union-attr]
    assert (SHIPPED / "images.zip").stat().st_size <= 12e6


def test_an_emoji_is_on_one_side_in_all_styles(found: Found) -> None:
    first = found.domains["google"]
    learned, held = emoji(first.train), emoji(first.test)
    assert not set(learned) & set(held)
    for style in STYLES:
        assert emoji(found.domains[style].train) == learned
        assert emoji(found.domains[style].test) == held


def test_genders_skins_and_hair_of_one_emoji_are_one_family(found: Found) -> None:
    family = pytest.importorskip("tools.emoji", reason="resvg_py is not installed").family
    assert family("1F468-200D-2695-FE0F") == family("1F469-1F3FD-200D-2695-FE0F") == family("1f9d1-200d-2695")
    assert family("1f9d1-200d-1f9b0") == family("1f468") == family("1f9d1")
    assert family("1f478") == family("1f934") != family("1f9d9")
    codes = [*emoji(found.domains["google"].train), *emoji(found.domains["google"].test)]
    assert len({family(code) for code in codes}) == len(codes)


def test_streams(found: Found) -> None:
    assert tuple(domain.name for domain in EMOJI.stream(found, STYLES[::-1]).domains) == STYLES[::-1]
    apart = UNSEEN_STYLES.stream(found)
    assert not {test.name for test in apart.tests} & {domain.name for domain in apart.domains}
    assert len(apart.tests) == len(apart.domains) == 3
    with pytest.raises(WrongUse, match="never learned"):
        UNSEEN_STYLES.stream(found, ["google", "openmoji"])
    fewer = {name: sides for name, sides in found.domains.items() if name != "openmoji"}
    with pytest.raises(UnknownName, match="no domain is called 'openmoji'"):
        UNSEEN_STYLES.stream(replace(found, domains=fewer))
    bare = found.domains | {"openmoji": replace(found.domains["openmoji"], test=None)}
    with pytest.raises(WrongUse, match="openmoji has no test images"):
        UNSEEN_STYLES.stream(replace(found, domains=bare))


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    with zipfile.ZipFile(SHIPPED / "images.zip") as whole, zipfile.ZipFile(tmp_path / "images.zip", "w") as changed:
        for entry in whole.infolist():
            style, side, name, _ = entry.filename.split("/")
            if style == "twitter" or (style, side, name) == ("google", "test", "sky"):
                continue
            content = whole.read(entry)
            if (style, side, name) == ("openmoji", "test", "body"):
                content = content[:40]
            if (style, side, name) == ("fluent-3d", "test", "body"):
                content = whole.read(entry.filename.replace("fluent-3d", "fluent-flat"))
            changed.writestr(entry.filename, content)
        for side in ("train", "test"):
            changed.writestr(f"apple/{side}/sky/2600.webp", content)
    wrong = {side.name: side.wrong for side in verify(EMOJI, EMOJI.find(tmp_path)).sets if side.wrong}
    assert wrong["google/test"] == ["218 images wanted, 208 came", "sky: 10 images wanted, 0 came"]
    assert wrong["openmoji/test"][0] == "13 images cannot be read"
    assert wrong["fluent-3d/test"] == ["as many images as published, but not the same"]
    assert wrong["twitter/train"] == wrong["twitter/test"] == ["is missing"]
    assert wrong["apple/train"] == wrong["apple/test"] == ["is no part of it"]
    assert len(wrong) == 7
    apart = [side for side in verify(UNSEEN_STYLES, EMOJI.find(tmp_path)).sets if side.wrong]
    assert [side.name for side in apart] == ["apple/train", "apple/test", "openmoji/test", "twitter/train"], (
        "what it is made of"
    )
    told = bpg("data", "verify", "emoji", tmp_path)
    assert told.returncode == 1
    assert told.stdout.count("\nunreadable: ") == 13
    with pytest.raises(WrongUse, match="does not hold emoji"):
        EMOJI.find(tmp_path / "elsewhere")


def test_an_image_in_an_archive_is_read_like_any_other(tmp_path: Path) -> None:
    archive = tmp_path / "some.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("dog/1.png", b"one")
        made.writestr("dog/", b"")
    assert inside(archive) == ["dog/1.png"]
    assert read(archive / "dog" / "1.png") == b"one"
    images = ImageSet((archive / "dog" / "2.png", archive / "dog" / "1.png"), (0, 0), ("dog",))
    assert images.encoded(1) == b"one"
    with pytest.raises(ImageError, match="nothing of this name in some.zip"):
        images.encoded(0)
    whole = archive.read_bytes()
    start = whole.index(b"1.png") + len("1.png")
    archive.write_bytes(whole[:start] + b"\xff\xff" + whole[start + 2 :])  # a stream that no packer wrote
    with pytest.raises(ImageError, match="cannot be unpacked"):
        images.encoded(1)
    archive.write_bytes(b"PK no archive")
    with pytest.raises(ImageError, match="cannot be unpacked"):
        images.encoded(1)
    with pytest.raises(ImageError, match="Not a directory"):
        ImageSet((Path("/dev/null/1.png"),), (0,), ("dog",)).encoded(0)


@pytest.mark.parametrize("name", ["/etc/hostname", "../out.png", "dog/../../out.png"])
def test_a_name_that_leads_out_of_an_archive_is_refused(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as made:
        made.writestr(name, b"one")
    with pytest.raises(OSError, match="lead out of it"):
        inside(tmp_path / "images.zip")
    with pytest.raises(WrongUse, match="does not hold emoji"):
        EMOJI.find(tmp_path)


def test_a_damaged_package_is_not_the_users_fault(tmp_path: Path) -> None:
    damaged = replace(EMOJI, shipped=tmp_path)
    with pytest.raises(ImageError, match="Install the package anew"):
        damaged.find(None)
    (tmp_path / "images.zip").write_bytes((SHIPPED / "images.zip").read_bytes()[:5000])
    with pytest.raises(ImageError, match="Install the package anew"):
        damaged.find(None)
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as other:
        other.writestr("dog.png", b"one")
    with pytest.raises(WrongUse, match="there are no images"):
        EMOJI.find(tmp_path)


def test_the_manifest_names_its_packages() -> None:
    manifest = json.loads((SHIPPED / "manifest.json").read_text(encoding="utf-8"))
    assert set(manifest["packages"]) == set(STYLES)
    notice = (SHIPPED / "README.md").read_text(encoding="utf-8")
    for package in manifest["packages"].values():
        assert package.split("/")[-1] in notice
    assert replace(EMOJI, published=None).expected == {}
