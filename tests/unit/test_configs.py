"""The settings files: all can be read, every method has one for each data set, and each says where it comes from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bpg.errors import WrongUse
from bpg.experiments.scale import read_scale, streams_of
from bpg.experiments.spec import CONFIGS, Cell, Spec, cells, read_spec
from bpg.registry import METHODS

BUDGETS = {"domainnet": 50 * 345, "cddb-hard": 50 * 2 * 5, "core50": 50 * 50}  # images in a rehearsal memory
VARIANTS = {  # of a method
    "bpg-clip": "bpg",
    "pina-clip": "pina",
    "soyo-clip": "soyo",
    "l2p-memory": "l2p",
    "joint_probe": "ranpac",
}
ON_CLIP = {"s_liprompts"} | {name for name in VARIANTS if name.endswith("-clip")}
SOURCE = re.compile(
    r"arXiv \d{4}\.\d{4,5}|\b(CVPR|ICCV|ECCV|WACV|NeurIPS|ICML|ICLR|AAAI|IJCV|TPAMI|PNAS) \d{4}|\bno paper\b"
)
EXPECTED = re.compile(r"\bexpected\b|\bno published number\b", flags=re.IGNORECASE)
MOST_LINES = 12  # of a header

ALL = sorted(CONFIGS.rglob("*.toml"))
OF_METHODS = [path for path in ALL if path.parent.name in BUDGETS]


def short(path: Path) -> str:
    return path.relative_to(CONFIGS).as_posix()


def header(path: Path) -> list[str]:
    """The comment that a file begins with."""
    lines = path.read_text(encoding="utf-8").splitlines()
    end = next(at for at, line in enumerate(lines) if not line.startswith("#"))
    return [line.removeprefix("#").strip() for line in lines[:end]]


def only_cell(spec: Spec) -> Cell:
    """The method of a file that has one."""
    assert len(spec.methods) == 1
    return cells(spec)[0]


@pytest.mark.parametrize("path", ALL, ids=short)
def test_is_read_without_a_fault(path: Path) -> None:
    for cell in cells(read_spec(path)):
        METHODS[cell.method].Settings(**cell.values)


@pytest.mark.parametrize("folder", BUDGETS)
def test_every_method_has_a_file(folder: str) -> None:
    shipped = set(METHODS._shipped)  # without plug-ins
    assert {path.stem for path in (CONFIGS / folder).iterdir()} == shipped | set(VARIANTS)
    assert {path.suffix for path in (CONFIGS / folder).iterdir()} == {".toml"}


@pytest.mark.parametrize("path", OF_METHODS, ids=short)
def test_runs_one_method_in_the_protocol_of_its_folder(path: Path) -> None:
    spec = read_spec(path)
    folder, cell = path.parent.name, only_cell(spec)
    assert (spec.name, spec.data.benchmark, spec.seeds) == (folder, folder, (0, 1, 2))
    assert (cell.label, cell.method) == (path.stem, VARIANTS.get(path.stem, path.stem))
    first = read_spec(CONFIGS / folder / ("bpg-clip.toml" if path.stem in ON_CLIP else "bpg.toml"))
    assert (spec.data, spec.backbone, spec.unseen) == (first.data, first.backbone, first.unseen)
    if "memory" in cell.values:
        assert cell.values["memory"]["images"] == BUDGETS[folder]


@pytest.mark.parametrize("folder", BUDGETS)
def test_one_stream_for_both_backbones(folder: str) -> None:
    vit, clip = (read_spec(CONFIGS / folder / f"{name}.toml") for name in ("bpg", "bpg-clip"))
    assert vit.data == clip.data
    assert vit.backbone != clip.backbone


@pytest.mark.parametrize("folder", BUDGETS)
def test_all_that_keep_images_say_how_many(folder: str) -> None:
    told = {path.stem for path in (CONFIGS / folder).iterdir() if "memory" in only_cell(read_spec(path)).values}
    keep = {name for name in METHODS._shipped if "memory" in METHODS[name].Settings.__dataclass_fields__}
    assert told == (keep | {"l2p-memory"}) - {"l2p"}  # which keeps none unless it is asked to


@pytest.mark.parametrize("folder", BUDGETS)
def test_bic_learns_its_correction_as_its_page_says(folder: str) -> None:
    wanted = METHODS["bic"].Settings(**only_cell(read_spec(CONFIGS / folder / "bic.toml")).values).correction
    assert wanted == METHODS["bic"].Settings().correction
    assert (wanted.lr, wanted.schedule) == (0.1, "cosine")


@pytest.mark.parametrize("path", OF_METHODS, ids=short)
def test_header_names_a_source_and_what_to_expect(path: Path) -> None:
    lines = header(path)
    text = " ".join(lines)
    assert 0 < len(lines) <= MOST_LINES
    assert SOURCE.search(text)
    assert EXPECTED.search(text)


def test_ships_under_a_name_and_a_near_one_is_told() -> None:
    assert read_spec("domainnet/bpg") == read_spec(CONFIGS / "domainnet" / "bpg.toml")
    with pytest.raises(WrongUse, match="domainnet/bpg ships with the package"):
        read_spec("domainnet/bgp")


def test_a_folder_of_images_does_not_hide_the_settings_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pacs" / "photo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert read_spec("pacs") == read_spec(CONFIGS / "pacs.toml")
    assert "bpg" in streams_of(read_scale("small"))["domainnet"].labels
    (tmp_path / "pacs" / "own.toml").write_text((CONFIGS / "domainnet" / "ncm.toml").read_text())
    assert streams_of(read_scale("small"))["domainnet"].labels == ["ncm"]  # a folder with settings is meant
