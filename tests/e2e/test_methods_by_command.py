"""Other methods than BPG, as a user meets them: learned, looked into, compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import bpg
from tests.toy import toy_checkpoint, toy_folder

QUICK = "optimisation = { epochs = 1, batch_size = 8 }"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("methods")
    toy_folder(folder / "data")
    toy_checkpoint(folder / "weights")
    return folder


def done(*words: object) -> str:
    found = bpg(*words)
    assert found.returncode == 0, found.stderr
    return found.stdout


def learned(place: Path, model: Path, method: str, *more: str) -> None:
    ways = ("--backbone", place / "weights", "--method", method, *more)
    done("learn", model, place / "data" / "red", *ways)
    done("learn", model, place / "data" / "blue", "--backbone", place / "weights")


def test_a_model_that_keeps_images_says_so(place: Path, tmp_path: Path) -> None:
    quick = ("--set", "optimisation.epochs=1")
    learned(place, tmp_path / "er", "er", *quick, "--set", "memory.images=6")
    told = done("inspect", tmp_path / "er")
    assert "This model stores images: 6" in told
    assert "of red" in told
    kept = json.loads(done("inspect", tmp_path / "er", "--json"))["kept_images"]
    assert (kept["images"], kept["stored"]) == (6, "images")
    assert 0 < kept["megabytes"] < 1
    learned(place, tmp_path / "joint", "joint", *quick)
    assert "This model refers to" in done("inspect", tmp_path / "joint")
    learned(place, tmp_path / "finetune", "finetune", *quick)
    assert "This model" not in done("inspect", tmp_path / "finetune")


@pytest.mark.parametrize("method", ["finetune", "icarl", "coda_prompt", "dualprompt", "sequential_probe"])
def test_a_domain_is_not_learned_again_by_a_slip(method: str, place: Path, tmp_path: Path) -> None:
    model, ways = tmp_path / "model", ("--backbone", place / "weights")
    blocks = {"coda_prompt": ("blocks=[0]",), "dualprompt": ("common_blocks=[0]", "own_blocks=[1]")}
    sets = [word for change in ("optimisation.epochs=1", *blocks.get(method, ())) for word in ("--set", change)]
    learned(place, model, method, *sets)
    before = (model / "model.json").read_bytes()
    again = bpg("learn", model, place / "data" / "red", *ways)
    assert again.returncode == 0, again.stderr
    assert "red is learned already, from these very images" in again.stderr
    assert (model / "model.json").read_bytes() == before
    other = bpg("learn", model, place / "data" / "blue", "--name", "red", *ways)
    assert other.returncode != 0
    assert "knows a domain red already, from other images" in other.stderr
    done("learn", model, place / "data" / "blue", "--name", "red", "--again", *ways)
    assert (model / "model.json").read_bytes() != before


def test_rows_of_domains_are_no_classes(place: Path, tmp_path: Path) -> None:
    learned(place, tmp_path / "icarl", "icarl", "--set", "optimisation.epochs=1")
    assert json.loads(done("inspect", tmp_path / "icarl", "--json"))["classes"] == ["bar", "box", "cross"]


def test_images_do_not_count_twice(place: Path, tmp_path: Path) -> None:
    learned(place, tmp_path / "ncm", "ncm")
    again = bpg("learn", tmp_path / "ncm", place / "data" / "red", "--backbone", place / "weights")
    assert again.returncode != 0
    assert "red is learned already" in again.stderr


def test_one_command_compares_inferences(place: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        f'name = "two"\n[data]\nroot = "{place / "data"}"\n[backbone]\nsource = "{place / "weights"}"\n'
        f"[methods.finetune]\n{QUICK}\n[methods.s_iprompts]\n{QUICK}\n"
        f'[methods.plugged]\nmethod = "s_iprompts"\nrouter = "soft"\n{QUICK}\n'
        f"[methods.er]\nmemory = {{ images = 6 }}\n{QUICK}\n"
    )
    rows = json.loads(done("run", tmp_path / "run.toml", "--out", tmp_path / "runs", "--json"))
    ways = {label: [row["way"] for row in rows if row["label"] == label] for label in ("finetune", "s_iprompts")}
    assert ways == {"finetune": ["own"], "s_iprompts": ["own", "calibrated", "soft", "hard", "oracle"]}
    reached = {(row["label"], row["way"]): row["A_T"] for row in rows}
    assert reached["plugged", "soft"] == reached["s_iprompts", "soft"]  # the same experts, asked in another way
    assert next(row["way"] for row in rows if row["label"] == "plugged") == "soft"
    done("report", tmp_path / "runs" / "two", "--no-images", "--out", tmp_path / "page")
    page = (tmp_path / "page" / "report.md").read_text().replace("\\_", "_")
    generality = page.split("## BPG-Inference in other methods")[1].split("\n## ")[0]
    assert "| s_iprompts |" in generality
    assert "finetune" not in generality
    costs = page.split("## What it costs")[1].split("\n## ")[0]
    assert {"finetune", "s_iprompts", "er"} <= {
        line.split("|")[1].strip() for line in costs.splitlines() if "|" in line
    }


def test_options_that_mean_nothing_are_refused(place: Path, tmp_path: Path) -> None:
    learned(place, tmp_path / "model", "s_iprompts", "--set", "optimisation.epochs=1")
    ways = ("evaluate", tmp_path / "model", place / "data", "--backbone", place / "weights")
    assert "own inference" in bpg(*ways, "--fusion", "max").stderr
    done(*ways, "--router", "soft", "--fusion", "max")
    done(*ways, "--profile")
