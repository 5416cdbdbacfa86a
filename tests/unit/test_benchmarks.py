"""The benchmarks' traps: each of these tests fails when one of them is sprung."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpg.data.benchmark import Benchmark, known_of
from bpg.data.benchmarks import cddb, core50, domainnet
from bpg.data.folder import Found
from bpg.data.lists import read_entries
from bpg.data.pack import pack
from bpg.data.pickles import read_pickle
from bpg.data.samples import SAMPLES, write_sample
from bpg.data.verify import verify
from bpg.errors import BPGError, UnknownName, WrongUse
from bpg.registry import DATASETS
from tests.toy import toy_folder

SHARED = Path(os.environ.get("BPG_SHARED", Path(__file__).parents[3] / "shared")) / "data" / "lists"


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trees")
    for name, classes in (("domainnet", None), ("core50", 6), ("cddb-long", None), ("pacs", None), ("dn4il", None)):
        write_sample(DATASETS[name], folder / name, per_class=1, classes=classes)
    return folder


def copy_of(trees: Path, name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trees / name, tmp_path / name))


def rewritten(file: Path, change: Any) -> None:
    lines = [line.rsplit(" ", 1) for line in file.read_text().splitlines()]
    file.write_text("".join(f"{path} {label}\n" for path, label in change([(p, int(n)) for p, n in lines])))


# DomainNet


def test_labels_come_from_the_lists_and_not_from_the_order_of_folders(trees: Path) -> None:
    found = DATASETS["domainnet"].find(trees / "domainnet")
    classes = known_of("domainnet")["classes"]
    for sides in found.domains.values():
        for images in (sides.train, sides.test):
            assert images is not None
            assert images.classes == tuple(classes)
            assert all(classes[n] == p.parent.name for p, n in zip(images.paths, images.labels, strict=True))
    assert classes.index("t-shirt") == 327
    assert classes.index("t-shirt") != sorted(classes).index("t-shirt")
    assert classes.index("cello") + 1 == classes.index("cell_phone")


def test_folder_order_labels_are_refused(trees: Path, tmp_path: Path) -> None:
    root = copy_of(trees, "domainnet", tmp_path)
    order = sorted(known_of("domainnet")["classes"])
    rewritten(root / "clipart_train.txt", lambda lines: [(path, order.index(path.split("/")[1])) for path, _ in lines])
    with pytest.raises(WrongUse, match="order of folders"):
        DATASETS["domainnet"].find(root)


def test_expanded_labels_are_refused(trees: Path, tmp_path: Path) -> None:
    root = copy_of(trees, "domainnet", tmp_path)
    rewritten(root / "infograph_train.txt", lambda lines: [(path, label + 345) for path, label in lines])
    with pytest.raises(WrongUse, match="go on counting"):
        DATASETS["domainnet"].find(root)


def test_another_domains_list_is_refused(trees: Path, tmp_path: Path) -> None:
    root = copy_of(trees, "domainnet", tmp_path)
    shutil.copy(root / "real_train.txt", root / "sketch_train.txt")
    with pytest.raises(WrongUse, match="another domain"):
        DATASETS["domainnet"].find(root)


def test_the_lists_of_dn4il_are_not_taken_for_domainnets(trees: Path, tmp_path: Path) -> None:
    root = copy_of(trees, "dn4il", tmp_path)
    for file in (root / "dn4il").iterdir():
        file.rename(root / file.name)
    with pytest.raises(WrongUse, match="of a subset"):
        DATASETS["domainnet"].find(root)
    with pytest.raises(WrongUse, match="go on counting|of a subset"):
        DATASETS["dn4il"].find(trees / "domainnet")


def test_painting_has_two_empty_cells_which_are_tolerated(trees: Path) -> None:
    found = DATASETS["domainnet"].find(trees / "domainnet")
    sets = {each.name: each for each in verify(DATASETS["domainnet"], found).sets}
    assert sets["painting/train"].empty == ("t-shirt (327)",)
    assert sets["painting/test"].empty == ("syringe (300)",)
    assert not any(each.empty for name, each in sets.items() if not name.startswith("painting"))
    assert "t-shirt" not in DATASETS["domainnet"].stream(found).domains[2].classes


def test_the_known_fix_moves_one_image_and_says_so(trees: Path) -> None:
    plain, fixed = (DATASETS[name].find(trees / "domainnet") for name in ("domainnet", "domainnet-fixed"))
    for side, change in (("learned", 1), ("tested", -1)):
        assert len(getattr(fixed, side)("painting")) == len(getattr(plain, side)("painting")) + change
    assert fixed.learned("painting").counts()["t-shirt"] == 1
    assert "t-shirt" in str(fixed.variant)
    wanted = DATASETS["domainnet-fixed"].expected
    assert (wanted["painting/train"]["images"], wanted["painting/test"]["images"]) == (50_417, 21_849)


def test_both_orders_in_use_have_a_name(trees: Path) -> None:
    benchmark = DATASETS["domainnet"]
    found = benchmark.find(trees / "domainnet")
    assert [d.name for d in benchmark.stream(found).domains] == sorted(domainnet.DOMAINS)
    assert [d.name for d in benchmark.stream(found, "ranpac").domains] == list(domainnet.OTHER_ORDER)
    with pytest.raises(UnknownName, match="ranpac"):
        benchmark.stream(found, "ranpak")


@pytest.mark.skipif(not (SHARED / "domainnet").is_dir(), reason="needs the official lists under ../shared")
def test_the_official_lists_are_the_cleaned_ones() -> None:
    benchmark = DATASETS["domainnet"]
    found = benchmark.find(SHARED / "domainnet")
    assert found.variant == "cleaned"
    counts = {
        name: tuple(len(side) if side is not None else None for side in (sides.train, sides.test))
        for name, sides in found.domains.items()
    }
    assert counts == {
        "clipart": (33_525, 14_604),
        "infograph": (36_023, 15_582),
        "painting": (50_416, 21_850),
        "quickdraw": (None, 51_750),
        "real": (None, 52_041),
        "sketch": (48_212, 20_916),
    }
    index = [line.split(maxsplit=1)[1] for line in (SHARED / "domainnet" / "class_index.txt").read_text().splitlines()]
    assert list(found.learned("clipart").classes) == index
    lacking = {
        (name, side): [index[label] for label in range(345) if label not in set(images.labels)]
        for name, sides in found.domains.items()
        for side, images in (("train", sides.train), ("test", sides.test))
        if images is not None
    }
    assert {cell: names for cell, names in lacking.items() if names} == {
        ("painting", "train"): ["t-shirt"],
        ("painting", "test"): ["syringe"],
    }
    totals = [benchmark.expected[f"{name}/{side}"]["images"] for side in ("train", "test") for name in benchmark.order]
    assert (sum(totals[:6]), sum(totals[6:])) == (409_832, 176_743)


@pytest.mark.skipif(not (SHARED / "domainnet").is_dir(), reason="needs the official lists under ../shared")
def test_other_lists_than_the_cleaned_ones_are_named(tmp_path: Path) -> None:
    for name in ("clipart_train.txt", "clipart_test.txt"):
        shutil.copy(SHARED / "domainnet" / name, tmp_path)
    train = tmp_path / "clipart_train.txt"
    lines = train.read_text().splitlines(keepends=True)
    assert DATASETS["domainnet"].find(tmp_path).variant == "cleaned"
    train.write_text("".join(line.replace("\n", "\r\n") for line in lines), newline="")
    assert DATASETS["domainnet"].find(tmp_path).variant == "cleaned"  # an end of line is no other list
    more = [f"clipart/zigzag/clipart_345_{n:06}.jpg 344\n" for n in range(900_000, 900_000 + 48_837 - 48_129)]
    train.write_text("".join(lines + more))
    assert DATASETS["domainnet"].find(tmp_path).variant == "original"
    train.write_text("".join(lines[1:]))
    assert DATASETS["domainnet"].find(tmp_path).variant == "other lists"
    faults = verify(DATASETS["domainnet"], DATASETS["domainnet"].find(tmp_path)).faults()
    assert "variant: cleaned wanted, other lists came" in faults
    os.replace(tmp_path / "clipart_test.txt", train)
    assert DATASETS["domainnet"].find(tmp_path).variant == "other lists"


def test_a_swapped_pair_of_lists_is_wrong(tmp_path: Path) -> None:
    root = tmp_path / "domainnet"
    write_sample(DATASETS["domainnet"], root, per_class=2, classes=9)
    benchmark = published_as(DATASETS["domainnet"], root)
    assert not verify(benchmark, benchmark.find(root)).faults()
    os.replace(root / "clipart_train.txt", tmp_path / "kept")
    os.replace(root / "clipart_test.txt", root / "clipart_train.txt")
    os.replace(tmp_path / "kept", root / "clipart_test.txt")
    faults = verify(benchmark, benchmark.find(root)).faults()
    assert any("clipart/train" in fault and "swapped" in fault for fault in faults)
    assert any("clipart/test" in fault and "18 came" in fault for fault in faults)


def published_as(benchmark: Benchmark, root: Path) -> Benchmark:
    """`benchmark`, if what lies at `root` were what is published of it."""
    found = benchmark.find(root)
    sets = {
        f"{name}/{side}": {"images": len(images), "classes": images.counts()}
        for name, sides in found.domains.items()
        for side, images in (("train", sides.train), ("test", sides.test))
        if images is not None
    }
    return replace(benchmark, published=lambda: sets, variants=())


def test_verify_finds_zero_bytes_missing_files_duplicates_and_two_labels(trees: Path, tmp_path: Path) -> None:
    root = copy_of(trees, "pacs", tmp_path)
    benchmark = published_as(DATASETS["pacs"], root)
    assert not verify(benchmark, benchmark.find(root)).faults()
    photo = root / "kfold" / "photo"
    (photo / "dog" / "pic_001.jpg").write_bytes(b"")
    (photo / "dog" / "pic_002.jpg").unlink()
    shutil.copy(photo / "horse" / "pic_001.jpg", photo / "horse" / "pic_002.jpg")  # on both sides
    shutil.copy(photo / "house" / "pic_002.jpg", photo / "guitar" / "pic_002.jpg")  # of two classes
    found = verify(benchmark, benchmark.find(root))
    assert len(found.leaks) == 1
    assert "horse/pic_001" in found.leaks[0]
    assert len(found.conflicts) == 1
    assert "(house)" in found.conflicts[0]
    reasons = [fault.reason for each in found.sets for fault in each.unreadable]
    assert len(reasons) == 2
    assert any("0 bytes" in reason for reason in reasons)
    assert any("No such file" in reason for reason in reasons)
    assert len(found.faults()) > len(found.faults(duplicates=False)) > 0


def test_what_was_read_is_read_again_only_when_it_changed(
    trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = copy_of(trees, "pacs", tmp_path)
    benchmark = published_as(DATASETS["pacs"], root)
    read: list[int] = []
    from bpg.data import check as module

    decode = module.decode
    monkeypatch.setattr(module, "decode", lambda encoded, where: (read.append(1), decode(encoded, where=where))[1])
    first = verify(benchmark, benchmark.find(root))
    count = len(read)
    assert count == 4 * 7 * 2
    second = verify(benchmark, benchmark.find(root))
    assert len(read) == count
    assert [each.sha256 for each in second.sets] == [each.sha256 for each in first.sets]
    (root / "kfold" / "photo" / "dog" / "pic_001.jpg").write_bytes(b"no longer")
    assert verify(benchmark, benchmark.find(root)).faults()
    assert len(read) == count + 1


def test_a_half_finished_download_is_told(trees: Path, tmp_path: Path) -> None:
    root = copy_of(trees, "domainnet", tmp_path)
    (root / "sketch.zip.part").write_bytes(b"PK")
    with pytest.raises(WrongUse, match="goes on with it"):
        DATASETS["domainnet"].find(root)
    (root / "sketch.zip.part").rename(root / "sketch.zip")
    with pytest.raises(WrongUse, match="cannot be unpacked"):
        DATASETS["domainnet"].find(root)


# CDDB


def test_cddb_is_learned_from_train_and_tested_on_val(trees: Path) -> None:
    for name, order in (("cddb-hard", cddb.HARD), ("cddb-easy", cddb.EASY), ("cddb-long", cddb.LONG)):
        stream = DATASETS[name].stream(DATASETS[name].find(trees / "cddb-long"))
        assert tuple(domain.name for domain in stream.domains) == order
        for domain, test in zip(stream.domains, stream.tests, strict=True):
            assert all("train" in path.parts for path in domain.train.paths)
            assert all("val" in path.parts for path in test.images.paths)
            for images in (domain.train, test.images):
                assert images.classes == ("real", "fake")
                names = [path.parent.name for path in images.paths]
                assert [("0_real", "1_fake").index(name) for name in names] == list(images.labels)
    cycle = DATASETS["cddb-long"].find(trees / "cddb-long").learned("cyclegan")
    assert {path.parent.parent.name for path in cycle.paths} == {"apple", "horse"}
    left = DATASETS["cddb-hard"].find(trees / "cddb-long").left_out.folders
    assert {path.name for path in left} >= {"test", "0_real", "1_fake"}


def test_sets_without_published_numbers_are_no_fault(trees: Path) -> None:
    for name in ("cddb-easy", "cddb-long"):
        faults = verify(DATASETS[name], DATASETS[name].find(trees / "cddb-long")).faults()
        assert not any("no part of it" in fault or "cyclegan" in fault for fault in faults)


def test_a_strange_folder_beside_real_and_fake_is_refused(trees: Path, tmp_path: Path) -> None:
    root = copy_of(trees, "cddb-long", tmp_path)
    (root / "san" / "train" / "2_unsure").mkdir()
    with pytest.raises(WrongUse, match="2_unsure"):
        DATASETS["cddb-hard"].find(root)


def test_cddb_is_as_large_as_published() -> None:
    wanted = DATASETS["cddb-hard"].expected
    assert sum(each["images"] for name, each in wanted.items() if name.endswith("/train")) == 16_068
    assert sum(each["images"] for name, each in wanted.items() if name.endswith("/test")) == 5_353


# CORe50


def test_core50_has_one_test_set_that_belongs_to_no_domain(trees: Path) -> None:
    benchmark = DATASETS["core50"]
    found = benchmark.find(trees / "core50")
    stream = benchmark.stream(found)
    assert [domain.name for domain in stream.domains] == ["s1", "s2", "s4", "s5", "s6", "s8", "s9", "s11"]
    assert [(test.name, test.domain) for test in stream.tests] == [("s3+s7+s10", None)]
    learned = {path.parts[-3] for domain in stream.domains for path in domain.train.paths}
    assert learned.isdisjoint({"s3", "s7", "s10"})
    assert {path.parts[-3] for path in stream.tests[0].images.paths} == {"s3", "s7", "s10"}
    assert found.variant == "128x128"
    for images in (stream.domains[0].train, stream.tests[0].images):
        assert [int(path.parts[-2][1:]) - 1 for path in images.paths] == list(images.labels)
    wanted = benchmark.expected
    assert sum(each["images"] for name, each in wanted.items() if name.endswith("/train")) == 119_894
    assert wanted["s3+s7+s10/test"]["images"] == 44_972


def test_core50_by_categories(trees: Path) -> None:
    found = DATASETS["core50-categories"].find(trees / "core50")
    assert found.learned("s1").counts() == {"mobile_phone": 1, "plug_adapter": 5}
    assert len(found.learned("s1").classes) == 10
    wanted = DATASETS["core50-categories"].expected
    assert sum(wanted["s1/train"]["classes"].values()) == DATASETS["core50"].expected["s1/train"]["images"]


def test_run_0_of_core50_is_not_in_natural_order(trees: Path) -> None:
    benchmark = DATASETS["core50"]
    found = benchmark.find(trees / "core50")
    names = [domain.name for domain in benchmark.stream(found, "ni-0").domains]
    assert names == ["s11", "s4", "s2", "s9", "s1", "s6", "s5", "s8"]
    assert names != list(benchmark.order)
    with pytest.raises(UnknownName):
        benchmark.stream(found, "ni-7")


@pytest.mark.parametrize("content", [{}, {"ni": 5}, [1, 2], {"ni": [[[10**6]]]}])
def test_a_lup_that_holds_something_else_is_told(content: Any, trees: Path, tmp_path: Path) -> None:
    root = copy_of(trees, "core50", tmp_path)
    (root / "core50_128x128" / "LUP.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(WrongUse, match="not CORe50's"):
        DATASETS["core50"].find(root)


def test_an_empty_first_frame_of_core50_is_a_row_of_the_table_and_no_end(trees: Path, tmp_path: Path) -> None:
    root = copy_of(trees, "core50", tmp_path)
    (root / "core50_128x128" / "s1" / "o1" / "C_01_01_000.png").write_bytes(b"")
    found = verify(DATASETS["core50"], DATASETS["core50"].find(root))
    assert [len(each.unreadable) for each in found.sets if each.name == "s1/train"] == [1]


@pytest.mark.parametrize("spoil", ["test session in train", "two sessions", "labels"])
def test_a_lup_that_is_not_core50s_is_refused(spoil: str, trees: Path, tmp_path: Path) -> None:
    root = copy_of(trees, "core50", tmp_path) / "core50_128x128"
    lup, labels = (pickle.loads((root / f"{name}.pkl").read_bytes()) for name in ("LUP", "labels"))  # noqa: S301
    if spoil == "labels":
        labels["ni"][0][0][0] += 1
    else:
        other = lup["ni"][0][-1] if spoil == "test session in train" else lup["ni"][0][1]
        lup["ni"][0][0] = other if spoil == "test session in train" else np.concatenate([lup["ni"][0][0], other])
    (root / "LUP.pkl").write_bytes(pickle.dumps(lup))
    (root / "labels.pkl").write_bytes(pickle.dumps(labels))
    with pytest.raises(WrongUse, match=r"not CORe50's.*batch 0 of run 0"):
        DATASETS["core50"].find(root)


def test_a_frame_in_another_objects_folder_is_refused(trees: Path, tmp_path: Path) -> None:
    root = copy_of(trees, "core50", tmp_path) / "core50_128x128"
    (root / "s1" / "o1" / "C_01_01_000.png").rename(root / "s1" / "o2" / "C_01_01_000.png")
    with pytest.raises(WrongUse, match="wrong folder"):
        DATASETS["core50"].find(root)


class Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


def test_a_pickle_is_read_without_running_what_it_says(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="asks for"):
        read_pickle(pickle.dumps({"ni": [Evil(tmp_path / "made")]}), where="LUP.pkl")
    assert not (tmp_path / "made").exists()
    with pytest.raises(WrongUse, match="cannot read"):
        read_pickle(b"garbage", where="LUP.pkl")


def test_a_pickle_that_doubles_itself_is_not_unfolded() -> None:
    value: Any = [0]
    for _ in range(60):
        value = [value, value]
    assert read_pickle(pickle.dumps({"ni": value}), where="LUP.pkl")["ni"]


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_of_numbers_comes_out_as_it_went_in(protocol: int) -> None:
    values = {
        "ni": [[np.arange(6).reshape(2, 3), [1, 2]], [np.array([1.5, 2.5], dtype=">f4"), np.int64(7)]],
        "x": "s1/o1",
    }
    found = read_pickle(pickle.dumps(values, protocol=protocol), where="a pickle")
    assert found["x"] == "s1/o1"
    np.testing.assert_array_equal(np.asarray(found["ni"][0][0]), values["ni"][0][0])
    assert found["ni"][0][1] == [1, 2]
    assert np.asarray(found["ni"][1][0]).tolist() == [1.5, 2.5]
    assert int(found["ni"][1][1]) == 7
    with pytest.raises(WrongUse, match="an array of object"):
        read_pickle(pickle.dumps(np.array([object])), where="a pickle")


# PACS


def test_the_labels_of_pacs_start_at_one_in_its_lists(trees: Path) -> None:
    found = DATASETS["pacs"].find(trees / "pacs")
    assert min(label for _, label in read_entries(trees / "pacs" / "pacs_label" / "photo_train_kfold.txt")) == 1
    for sides in found.domains.values():
        for images in (sides.train, sides.test):
            assert images is not None
            assert [images.classes[label] for label in images.labels] == [path.parent.name for path in images.paths]


# ImageNet-R, corruptions, digits


def test_imagenet_r_calls_its_classes_by_their_names_with_lists_and_without(tmp_path: Path) -> None:
    benchmark = DATASETS["imagenet-r"]
    write_sample(benchmark, tmp_path, per_class=2, classes=3)
    without = benchmark.find(tmp_path)
    for style in benchmark.order:
        for side, numbers in (("train", (0, 1)), ("test", (2,))):
            codes = ("n01443537", "n02106662")
            lines = [f"{code}/{style}_{n}.jpg {label}\n" for label, code in enumerate(codes) for n in numbers]
            (tmp_path / "imagenet-r" / f"{style}_{side}.txt").write_text("".join(lines))
    listed = benchmark.find(tmp_path)
    assert set(listed.learned("art").counts()) == {"goldfish", "german_shepherd_dog"}
    assert set(without.learned("art").counts()) >= {"goldfish", "german_shepherd_dog"}
    assert listed.split == "given"
    assert without.split == "made"


def test_corruptions_of_every_image_are_made_once_and_look_like_it(tmp_path: Path) -> None:
    photos = toy_folder(tmp_path / "toy", ("red",), count=4) / "red"
    shutil.copy(photos / "bar" / "000.png", photos / "bar" / "000.bmp")  # the same stem
    (photos / "bar" / "broken.png").write_bytes(b"no image")
    benchmark, told = DATASETS["corruptions"], []
    assert benchmark.build is not None
    (tmp_path / "out").mkdir()
    benchmark.build(tmp_path / "out", photos, lambda *now: told.append(now))
    assert told[-1][0] == told[-1][1] == 13
    found = benchmark.find(tmp_path / "out")
    assert set(found.domains) == set(benchmark.order)
    counts = {sum(map(len, sides.named().values())) for sides in found.domains.values()}
    assert counts == {13}
    pictures = {name: sides.named()["train"].encoded(0) for name, sides in found.domains.items()}
    assert len(set(pictures.values())) == 15  # no two corruptions are alike
    benchmark.build(tmp_path / "out", photos, lambda *_: None)
    other = toy_folder(tmp_path / "other", ("blue",), count=4) / "blue"
    with pytest.raises(WrongUse, match="of other images"):
        benchmark.build(tmp_path / "out", other, lambda *_: None)
    with pytest.raises(WrongUse, match="in one another"):
        benchmark.build(photos, photos, lambda *_: None)
    again = benchmark.find(tmp_path / "out")
    assert pictures == {name: sides.named()["train"].encoded(0) for name, sides in again.domains.items()}
    (tmp_path / "out" / "corruptions.part").touch()  # as an interrupted one leaves it
    with pytest.raises(WrongUse, match="not complete"):
        benchmark.find(tmp_path / "out")


def test_a_class_that_would_lead_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    toy_folder(tmp_path / "toy", ("red",), count=2)
    lines = [f"red/bar/00{n}.png 0" for n in range(2)] + ["red/box/000.png 1"]
    (tmp_path / "toy" / "red_train.txt").write_text("\n".join(lines))
    (tmp_path / "toy" / "classes.txt").write_text("../../out\nbox\n")
    (tmp_path / "made").mkdir()
    with pytest.raises(WrongUse, match="names no folder"):
        DATASETS["corruptions"].build(tmp_path / "made", tmp_path / "toy", lambda *_: None)
    assert not (tmp_path / "out").exists()


def test_digits_are_made_from_mnists_files(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for stem, count in (("train", 30), ("t10k", 20)):
        pictures = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 10
        head = b"\0\0\x08" + bytes([3]) + np.array([count, 28, 28], dtype=">i4").tobytes()
        (tmp_path / f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + pictures.tobytes()))
        head = b"\0\0\x08" + bytes([1]) + np.array([count], dtype=">i4").tobytes()
        (tmp_path / f"{stem}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(head + labels.tobytes()))
    for name in ("rotated-digits", "permuted-digits"):
        benchmark = DATASETS[name]
        benchmark.build(tmp_path, None, lambda *_: None)
    for name in ("rotated-digits", "permuted-digits"):
        benchmark = DATASETS[name]
        found = benchmark.find(tmp_path)
        first, last = (found.learned(benchmark.order[at]) for at in (0, 19))
        assert first.counts() == dict.fromkeys(map(str, range(10)), 3)
        assert first.labels == last.labels
        assert first.encoded(0) != last.encoded(0)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(b"no gzip")
    with pytest.raises(WrongUse, match="does not hold MNIST"):
        DATASETS["rotated-digits"].build(tmp_path, None, lambda *_: None)


# all of them


@pytest.mark.parametrize("form", ["folder", "zip", "shards"])
def test_upper_and_lower_case_of_a_suffix_do_not_matter(form: Any, trees: Path, tmp_path: Path) -> None:
    root = copy_of(trees, "pacs", tmp_path)
    benchmark = published_as(DATASETS["pacs"], root)
    before = verify(benchmark, benchmark.find(root)).sets
    for file in sorted(root.rglob("*.jpg"))[::2]:
        file.rename(file.with_suffix(".JPG"))
    labels = root / "pacs_label"
    for file in labels.iterdir():  # the same paths in another spelling
        file.write_text("".join(f"{line}\r\n" for line in file.read_text().splitlines()), newline="")
    if form != "folder":
        pack(root, tmp_path / "packed", kind=form)
        root = tmp_path / "packed"
    after = verify(benchmark, benchmark.find(root))
    assert not after.faults()
    assert [each.sha256 for each in after.sets] == [each.sha256 for each in before]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_read_and_verified(name: str, tmp_path: Path) -> None:
    benchmark: Benchmark = DATASETS[name]
    write_sample(benchmark, tmp_path, per_class=2, classes=3)
    found: Found = benchmark.find(tmp_path)
    stream = benchmark.stream(found)
    assert tuple(domain.name for domain in stream.domains) == benchmark.order
    assert {domain.template for domain in stream.domains} == {benchmark.template}
    verified = verify(benchmark, found)
    assert not verified.leaks
    assert not verified.conflicts
    assert not any(each.unreadable for each in verified.sets)


@pytest.mark.parametrize("name", DATASETS)
def test_published_numbers_are_of_its_own_sets(name: str) -> None:
    benchmark: Benchmark = DATASETS[name]
    for each, known in benchmark.expected.items():
        domain, _, side = each.rpartition("/")
        if side in ("train", "test"):
            assert each in benchmark.sets or domain in (*cddb.HARD, *benchmark.order, *benchmark.unseen)
        else:
            assert each == "all" or each in benchmark.order
        if "classes" in known and "images" in known:
            assert sum(known["classes"].values()) == known["images"]


def test_what_a_benchmark_needs_is_told_when_no_folder_is_named() -> None:
    with pytest.raises(WrongUse, match="bpg data prepare domainnet"):
        DATASETS["domainnet"].find(None)


def test_an_empty_folder_and_a_folder_of_something_else_are_refused(tmp_path: Path) -> None:
    (tmp_path / "else" / "dog").mkdir(parents=True)
    for name in SAMPLES:
        for folder in (tmp_path, tmp_path / "else", tmp_path / "nowhere"):
            with pytest.raises(BPGError):
                DATASETS[name].find(folder)


def test_the_published_numbers_are_json_that_ships() -> None:
    for name in ("domainnet", "dn4il", "core50", "cddb", "pacs"):
        assert json.dumps(known_of(name))
    assert core50.TEST_NAME == "s3+s7+s10"
