"""A stored model is whole, safe to read, and never seen half done."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import bpg.store as store
from bpg.errors import ModelError
from bpg.store import Learned, State, digest_of, history, load_state, save_state


def state(*domains: str, shared: bool = True, scale: float = 1.0) -> State:
    generator = torch.Generator().manual_seed(1)
    learned = {
        name: Learned(
            {"classes": ["a", "b"], "note": name},
            {"expert/w": scale * torch.randn(4, 5, generator=generator), "prototypes": torch.zeros(2, 5).double()},
        )
        for name in domains
    }
    kept = {"head": torch.randn(3, generator=generator)} if shared else {}
    return State("bpg", {"seed": 0}, {"name": "toy", "sha256": "0" * 64}, learned, kept, {"classes": ["a"]})


def files(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != ".lock"]


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    saved = state("red", "blue")
    digest = save_state(saved, tmp_path, event="first")
    again = load_state(tmp_path)
    assert (again.method, again.settings, again.backbone) == (saved.method, saved.settings, saved.backbone)
    assert list(again.domains) == ["blue", "red"]
    for name, learned in saved.domains.items():
        assert again.domains[name].facts == learned.facts
        assert all(torch.equal(again.domains[name].tensors[key], tensor) for key, tensor in learned.tensors.items())
    assert torch.equal(again.shared["head"], saved.shared["head"])
    assert digest_of(tmp_path) == digest
    assert save_state(again, tmp_path / "copy", event="copied") == digest


def test_old_files_are_swept_and_other_peoples_left(tmp_path: Path) -> None:
    save_state(state("red", "blue"), tmp_path, event="first")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".model.json.99.part").write_text("half")
    save_state(state("red", shared=False), tmp_path, event="second")
    assert [file.name for file in files(tmp_path) if file.suffix != ".safetensors"] == [
        "history.jsonl", "model.json", "notes.txt",
    ]  # fmt: skip
    assert len(list((tmp_path / "experts").iterdir())) == 1
    assert [entry["event"] for entry in history(tmp_path)] == ["first", "second"]
    assert history(tmp_path)[-1]["model"] == digest_of(tmp_path)


def test_every_flipped_bit_is_detected_and_its_file_named(tmp_path: Path) -> None:
    save_state(state("red", "blue"), tmp_path, event="first")
    save_state(state("red", "blue", "green"), tmp_path, event="second")
    draw = random.Random(0)
    for _ in range(1000):
        file = draw.choice(files(tmp_path))
        content = file.read_bytes()
        flipped = bytearray(content)
        flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        file.write_bytes(bytes(flipped))
        with pytest.raises(ModelError, match=file.name):
            load_state(tmp_path)
        file.write_bytes(content)
    load_state(tmp_path)


def test_every_missing_byte_is_detected_and_its_file_named(tmp_path: Path) -> None:
    save_state(state("red", "blue"), tmp_path, event="first")
    save_state(state("red", "blue", "green"), tmp_path, event="second")
    for file in files(tmp_path):
        content = file.read_bytes()
        for cut in {0, 1, len(content) // 2, len(content) - 1, content.rfind(b"\n", 0, -1) + 1}:
            file.write_bytes(content[:cut])
            with pytest.raises(ModelError, match=file.name):
                load_state(tmp_path)
        file.write_bytes(content + b" ")
        with pytest.raises(ModelError, match=file.name):
            load_state(tmp_path)
        file.unlink()
        with pytest.raises(ModelError, match=file.name if file.name != "model.json" else "no model"):
            load_state(tmp_path)
        file.write_bytes(content)


def sealed(document: dict[str, object], folder: Path) -> None:
    (folder / "model.json").write_bytes(store._sealed(document)[0])


def test_names_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    save_state(state("red"), tmp_path, event="first")
    document = json.loads((tmp_path / "model.json").read_text())
    document.pop("digest")
    document["domains"]["red"]["sha256"] = "../../etc/passwd"
    sealed(document, tmp_path)
    with pytest.raises(ModelError, match=r"model\.json is no sound model\.json.*the domain 'red'"):
        load_state(tmp_path)


def test_a_later_format_is_refused_and_an_earlier_one_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_state(state("red"), tmp_path, event="first")
    document = json.loads((tmp_path / "model.json").read_text())
    document.pop("digest")
    sealed(document | {"format": 99}, tmp_path)
    with pytest.raises(ModelError, match="format that this bpg does not know.*Update bpg"):
        load_state(tmp_path)

    def from_0(old: dict[str, object]) -> dict[str, object]:
        return {**{key: value for key, value in old.items() if key != "kind"}, "method": old["kind"], "format": 1}

    monkeypatch.setitem(store.MIGRATIONS, 0, from_0)
    old = {key: value for key, value in document.items() if key != "method"} | {"format": 0, "kind": "bpg"}
    sealed(old, tmp_path)
    assert load_state(tmp_path).method == "bpg"


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("method", None), ("method", 7), ("settings", []), ("backbone", []), ("backbone", {"name": "x"}),
        ("backbone", {"name": "x", "sha256": 3}), ("domains", []), ("domains", {"red": 3}), ("domains", {"\n": {}}),
        ("shared", "../../etc/passwd"), ("facts", None), ("format", True), ("format", 0), ("format", -3),
        ("format", 1.0), ("format", "1"),
    ],
)  # fmt: skip
def test_a_strange_document_with_a_right_digest_is_refused(part: str, value: object, tmp_path: Path) -> None:
    save_state(state("red"), tmp_path, event="first")
    document = json.loads((tmp_path / "model.json").read_text())
    document.pop("digest")
    sealed(document | {part: value}, tmp_path)
    with pytest.raises(ModelError, match=r"model\.json"):
        load_state(tmp_path)


def test_a_damaged_expert_is_mended_by_saving_again(tmp_path: Path) -> None:
    save_state(state("red"), tmp_path, event="first")
    (expert,) = (tmp_path / "experts").iterdir()
    content = bytearray(expert.read_bytes())
    content[-1] ^= 1
    expert.write_bytes(bytes(content))
    save_state(state("red"), tmp_path, event="second")
    load_state(tmp_path)


def test_a_folder_that_somebody_else_changed_is_left_alone(tmp_path: Path) -> None:
    first = save_state(state("red"), tmp_path, event="mine")
    save_state(state("red", "blue"), tmp_path, event="theirs")
    with pytest.raises(ModelError, match="changed by somebody else"):
        save_state(state("red", "green"), tmp_path, event="mine again", expects=first)
    assert set(load_state(tmp_path).domains) == {"red", "blue"}


def test_a_place_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot be written"):
        save_state(state("red"), tmp_path / "file", event="first")


def test_sizes_are_capped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_state(state("red"), tmp_path, event="first")
    monkeypatch.setattr(store, "LARGEST_TENSORS", 10)
    with pytest.raises(ModelError, match="too large"):
        load_state(tmp_path)
    monkeypatch.setattr(store, "LARGEST_JSON", 10)
    with pytest.raises(ModelError, match=r"model\.json is too large"):
        load_state(tmp_path)


WRITER = """
import sys
from pathlib import Path
from bpg.store import save_state
from tests.unit.test_store import state
for turn in range(int(sys.argv[2])):
    names = ("red", "blue") if turn % 2 else ("red", "blue", "green", "white")
    save_state(state(*names, scale=1.0 + turn % 2), Path(sys.argv[1]), event=f"turn {turn}")
"""


def test_a_reader_never_sees_a_model_half_done(tmp_path: Path) -> None:
    save_state(state("red", "blue", scale=2.0), tmp_path, event="begun")
    wanted = {
        2: state("red", "blue", scale=2.0),
        4: state("red", "blue", "green", "white", scale=1.0),
    }
    root = Path(__file__).resolve().parent.parent.parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), "60"], env=environment, cwd=root)
        for _ in range(2)
    ]
    reads = 0
    while any(writer.poll() is None for writer in writers):
        found = load_state(tmp_path)
        expected = wanted[len(found.domains)]
        for name, learned in expected.domains.items():
            assert torch.equal(found.domains[name].tensors["expert/w"], learned.tensors["expert/w"])
        reads += 1
    assert [writer.wait() for writer in writers] == [0, 0]
    assert reads > 20
    assert len(history(tmp_path)) == 121
