"""Folders of images as people have them: layouts, splits, and what is left out."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bpg.data.check import check
from bpg.data.folder import Found, limited, read_folder
from bpg.data.images import ImageSet
from bpg.errors import ImageError, UnknownName, WrongUse


def image(path: Path, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path, "PNG")
    return path


def counts(found: Found) -> dict[str, tuple[int, int]]:
    return {name: (len(sides.train or ()), len(sides.test or ())) for name, sides in found.domains.items()}


def test_a_domain_without_a_split_is_split_by_name(tmp_path: Path) -> None:
    for index in range(200):
        image(tmp_path / "photo" / "cat" / f"{index}.png")
        image(tmp_path / "sketch" / "cat" / f"{index}.png")
    found = read_folder(tmp_path)
    assert found.layout == "domain/class"
    train, test = counts(found)["photo"]
    assert train + test == 200
    assert 20 <= test <= 60
    # the same picture in another style is on the same side: by class and name, not by domain
    assert counts(found)["sketch"] == (train, test)
    one = read_folder(tmp_path / "photo", name="photo")
    assert (one.layout, counts(one)) == ("class", {"photo": (train, test)})
    assert counts(read_folder(tmp_path, test_share=0))["photo"] == (200, 0)
    assert counts(read_folder(tmp_path, test_share=1))["photo"] == (0, 200)


def test_a_file_keeps_its_side_when_others_are_added(tmp_path: Path) -> None:
    for index in range(40):
        image(tmp_path / "cat" / f"{index}.png")
    before = read_folder(tmp_path).only()[1]
    for index in range(40, 90):
        image(tmp_path / "cat" / f"{index}.png")
        image(tmp_path / "dog" / f"{index}.png")
    after = read_folder(tmp_path).only()[1]
    for side in ("train", "test"):
        assert set(getattr(before, side).paths) < set(getattr(after, side).paths)


@pytest.mark.parametrize(
    ("layout", "places"),
    [
        ("{train,test}/domain/class", "{side}/{domain}/{cls}"),
        ("domain/{train,test}/class", "{domain}/{side}/{cls}"),
    ],
)
def test_given_splits_are_taken_as_they_are(layout: str, places: str, tmp_path: Path) -> None:
    for side, number in (("Train", 3), ("test", 2)):
        for domain in ("photo", "sketch"):
            for cls in ("cat", "dog"):
                for index in range(number):
                    image(tmp_path / places.format(side=side, domain=domain, cls=cls) / f"{index}.png")
    found = read_folder(tmp_path)
    assert found.layout == layout
    assert counts(found) == {"photo": (6, 4), "sketch": (6, 4)}
    stream = found.stream(name="s", order=("sketch", "photo"))
    assert [domain.name for domain in stream.domains] == [test.domain for test in stream.tests] == ["sketch", "photo"]
    with pytest.raises(UnknownName, match="Did you mean sketch"):
        found.stream(name="s", order=("scetch",))
    with pytest.raises(WrongUse, match=r"holds 2 domains.*of them"):
        found.only()


def test_one_domain_with_a_split_of_its_own(tmp_path: Path) -> None:
    image(tmp_path / "train" / "cat" / "a.png")
    image(tmp_path / "val" / "cat" / "b.png")
    found = read_folder(tmp_path, name="photo")
    assert (found.layout, counts(found)) == ("{train,test}/class", {"photo": (1, 1)})


def test_lists_go_before_folders(tmp_path: Path) -> None:
    for index in range(30):
        image(tmp_path / "real" / "cat" / f"{index}.png")
    (tmp_path / "real_train.txt").write_text("".join(f"real/cat/{i}.png 0\n" for i in range(20)))
    assert read_folder(tmp_path).layout == "lists"
    train, test = counts(read_folder(tmp_path))["real"]
    assert train + test == 20  # no test list: split by name
    assert test
    (tmp_path / "real_test.txt").write_text("real/cat/25.png 0\n")
    assert counts(read_folder(tmp_path)) == {"real": (20, 1)}
    assert counts(read_folder(tmp_path / "real_test.txt")) == {"real": (1, 0)}
    (tmp_path / "real_train.txt").unlink()
    assert counts(read_folder(tmp_path)) == {"real": (0, 1)}


def test_what_is_no_image_is_named_and_left_out(tmp_path: Path) -> None:
    image(tmp_path / "cat" / "a.png")
    image(tmp_path / "cat" / "B.JPEG")
    for name in (".DS_Store", "Thumbs.db", "notes.txt", "moving.gif", "raw.heic", "README"):
        (tmp_path / "cat" / name).write_text("no image")
    (tmp_path / "cat" / "old").mkdir()
    (tmp_path / "dog").mkdir()
    (tmp_path / ".git").mkdir()
    found = read_folder(tmp_path, test_share=0)
    assert counts(found)[tmp_path.name] == (2, 0)
    assert dict(found.left_out.formats) == {".txt": 1, ".gif": 1, ".heic": 1, "without a suffix": 1}
    said = " ".join(found.left_out.sentences(tmp_path))
    for part in ("1 .gif", "1 .heic", "classes without images: dog", "folders that are no class, left out: cat/old"):
        assert part in said


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "there are no images"),
        (["a.png"], r"images without a class folder, such as a\.png.*Put the images of each class"),
        (["cat/a.png", "photo/dog/b.png"], "laid out in two ways"),
        (["a/b/c/d.png"], "there are no images"),
    ],
)
def test_what_has_no_layout_is_refused_in_a_sentence(files: list[str], message: str, tmp_path: Path) -> None:
    for name in files:
        image(tmp_path / name)
    with pytest.raises(WrongUse, match=message):
        read_folder(tmp_path)


def test_a_place_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="cannot look into .*gone.*No such file"):
        read_folder(tmp_path / "gone")
    with pytest.raises(WrongUse, match="no such share"):
        read_folder(tmp_path, test_share=1.5)


def test_names_that_look_the_same_are_the_same(tmp_path: Path) -> None:
    for form in ("NFC", "NFD"):
        image(tmp_path / f"domain {form}" / unicodedata.normalize(form, "café") / "ein Bild.png")
    found = read_folder(tmp_path, test_share=0)
    assert {sides.train.classes for sides in found.domains.values() if sides.train} == {("café",)}


def test_two_domains_of_one_name_are_refused(tmp_path: Path) -> None:
    for form in ("NFC", "NFD"):
        image(tmp_path / unicodedata.normalize(form, "é") / "cat" / "a.png")
    with pytest.raises(WrongUse, match="names that look the same"):
        read_folder(tmp_path)


def test_what_lies_in_the_wrong_place_is_named(tmp_path: Path) -> None:
    for name in ("train/cat/a.png", "test/cat/b.png", "extra/cat/c.png", "train/stray.png"):
        image(tmp_path / name)
    found = read_folder(tmp_path, name="photo")
    assert counts(found) == {"photo": (1, 1)}
    said = " ".join(found.left_out.sentences(tmp_path))
    assert "left out: extra" in said
    assert "images without a class folder, left out: train/stray.png" in said
    image(tmp_path / "test" / "photo" / "cat" / "d.png")
    (tmp_path / "test" / "cat" / "b.png").unlink()
    with pytest.raises(WrongUse, match="laid out in two ways"):
        read_folder(tmp_path)


def test_a_name_is_for_one_domain(tmp_path: Path) -> None:
    image(tmp_path / "photo" / "cat" / "a.png")
    assert list(read_folder(tmp_path, name="site").domains) == ["site"]
    image(tmp_path / "sketch" / "cat" / "a.png")
    with pytest.raises(WrongUse, match=r"holds 2 domains.*Take one of them: .*photo"):
        read_folder(tmp_path, name="site")
    with pytest.raises(WrongUse, match="no name for a domain"):
        read_folder(tmp_path, name="a\tb")


def test_classes_that_are_only_tested_on_are_known(tmp_path: Path) -> None:
    for name in ("train/cat/a.png", "test/cat/b.png", "test/dog/b.png"):
        image(tmp_path / name)
    assert read_folder(tmp_path, name="photo").untaught() == {"photo": ["dog"]}
    (tmp_path / "empty" / "a" / "train").mkdir(parents=True)
    (tmp_path / "empty" / "a" / "test").mkdir(parents=True)
    with pytest.raises(WrongUse, match="there are no images"):
        read_folder(tmp_path / "empty")


def test_a_name_with_a_line_break_is_refused(tmp_path: Path) -> None:
    image(tmp_path / "cat\nfish" / "a.png")
    with pytest.raises(WrongUse, match="no name for a class"):
        read_folder(tmp_path)


def test_links_that_lead_in_circles_end(tmp_path: Path) -> None:
    image(tmp_path / "photo" / "cat" / "a.png")
    (tmp_path / "photo" / "cat" / "again").symlink_to(tmp_path)
    (tmp_path / "photo" / "self").symlink_to(tmp_path / "photo" / "self")
    (tmp_path / "photo" / "up").symlink_to(tmp_path)
    (tmp_path / "photo" / "cat" / "b.png").symlink_to(tmp_path / "photo" / "cat" / "b.png")
    found = read_folder(tmp_path, test_share=0)
    assert counts(found) == {"photo": (2, 0)}
    train = found.domains["photo"].train
    assert train is not None
    checked = check(train)
    assert [fault.path.name for fault in checked.unreadable] == ["b.png"]
    assert len(checked.images) == 1


def test_thousands_of_classes(tmp_path: Path) -> None:
    first = image(tmp_path / "data" / "c0" / "a.png")
    for index in range(1, 3000):
        folder = tmp_path / "data" / f"c{index}"
        folder.mkdir()
        os.link(first, folder / "a.png")
    found = read_folder(tmp_path / "data", test_share=0)
    assert counts(found) == {"data": (3000, 0)}
    train = found.domains["data"].train
    assert train is not None
    assert len(set(train.classes)) == 3000


def test_a_limit_is_by_class_and_by_name(tmp_path: Path) -> None:
    paths = [image(tmp_path / name / f"{index}.png") for name in ("cat", "dog") for index in range(9)]
    images = ImageSet(tuple(paths), (0,) * 9 + (1,) * 9, ("cat", "dog"))
    few, more = limited(images, 2), limited(images, 5)
    assert [few.labels.count(label) for label in (0, 1)] == [2, 2]
    assert set(few.paths) < set(more.paths)
    assert limited(images, 50) == images


def test_unreadable_images_are_told_or_stop_the_run(tmp_path: Path) -> None:
    good = image(tmp_path / "cat" / "good.png")
    bad = tmp_path / "cat" / "bad.png"
    bad.write_bytes(good.read_bytes()[:40])
    pipe = tmp_path / "cat" / "pipe.png"
    os.mkfifo(pipe)  # to open it would wait for ever
    found = read_folder(tmp_path, test_share=0).only()[1].train
    assert found is not None
    seen: list[tuple[int, int]] = []
    checked = check(found, progress=lambda done, total: seen.append((done, total)))
    assert checked.images.paths == (good,)
    assert {fault.path: fault.reason for fault in checked.unreadable}[pipe] == "no regular file"
    assert seen[-1] == (3, 3)
    assert checked.sha256 == check(checked.images).sha256
    with pytest.raises(ImageError, match=r"2 of 3 images cannot be read.*bad\.png"):
        check(found, strict=True)
