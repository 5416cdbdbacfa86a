"""From folders of images to answers: every verb as a user types it, with good input and bad."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from bpg import BPG, Domain, load, load_backbone, read_folder
from tests.command import bpg, document, done, model_files, refused
from tests.toy import CLASSES, toy_checkpoint, toy_folder

LEARN = (
    "--set", "rank=4", "--set", "optimisation.epochs=20", "--set", "optimisation.batch_size=8",
    "--set", "optimisation.lr=0.02", "--set", "augmentation={area = [0.9, 1.0], flip = false}",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Folders of two domains, a small ViT, and a model of both."""

    data: Path
    vit: Path
    model: Path


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The same bytes here and in the processes, which share the machine with other tests."""
    before, known = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    yield
    torch.set_num_threads(before)
    os.environ.pop("OMP_NUM_THREADS")
    if known is not None:
        os.environ["OMP_NUM_THREADS"] = known


@pytest.fixture(scope="module")
def place(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Place:
    def make(root: Path) -> None:
        data, vit = toy_folder(root / "data", count=15), toy_checkpoint(root / "vit")
        for name in ("red", "blue"):
            done("learn", root / "model", data / name, "--backbone", vit, "--threads", 1, *LEARN)

    root = made_once("verbs", make)
    return Place(root / "data", root / "vit", root / "model")


@pytest.fixture
def copy(place: Place, tmp_path: Path) -> Path:
    """A copy of the model, to be changed."""
    shutil.copytree(place.model, tmp_path / "model")
    return tmp_path / "model"


def test_learn_says_what_it_did_and_holds_images_out(place: Place, tmp_path: Path) -> None:
    found = document(
        "learn", tmp_path / "new", place.data / "red", "--name", "site a", "--backbone", place.vit, "--seed", 3, *LEARN
    )
    assert (found["domain"], found["classes"], found["rank"]) == ("site a", 3, 4)
    assert found["images"] + found["held_out_images"] == 45
    assert found["held_out_accuracy"] > 60
    assert found["unreadable"] == []
    assert document("inspect", tmp_path / "new")["settings"]["seed"] == 3
    assert not (tmp_path / "new" / "scratch").exists()
    all_of_them = document("learn", tmp_path / "all", place.data / "red", "--backbone", place.vit, *LEARN,
                           "--test-share", 0)  # fmt: skip
    assert all_of_them["images"] == 45
    assert "held_out_accuracy" not in all_of_them


def test_learn_by_verb_is_learn_in_python(place: Place, tmp_path: Path) -> None:
    model = BPG(
        load_backbone(str(place.vit)),
        rank=4,
        optimisation={"epochs": 20, "batch_size": 8, "lr": 0.02},
        augmentation={"area": (0.9, 1.0), "flip": False},
    )
    for name in ("blue", "red"):  # in another order
        train = read_folder(place.data / name).only()[1].train
        assert train is not None
        model.learn(Domain(name, train))
    model.save(tmp_path / "python")
    assert model_files(tmp_path / "python") == model_files(place.model)


def test_learn_refuses_what_cannot_be_meant(place: Place, copy: Path, tmp_path: Path) -> None:
    red, new = place.data / "red", tmp_path / "none"
    assert "a new model needs a backbone" in refused("learn", new, red)
    assert "holds 2 domains" in refused("learn", new, place.data, "--backbone", place.vit)
    assert "cannot look into" in refused("learn", new, tmp_path / "gone", "--backbone", place.vit)
    (tmp_path / "empty").mkdir()
    assert "there are no images" in refused("learn", new, tmp_path / "empty", "--backbone", place.vit)
    said = refused("learn", new, red, "--backbone", place.vit, "--set", "rnak=4", "--set", "optimisation.epocs=3")
    assert "rnak: no such setting, did you mean rank?" in said
    assert "optimisation.epocs: no such setting, did you mean epochs?" in said
    assert "no method is called 'bgp'" in refused("learn", new, red, "--backbone", place.vit, "--method", "bgp")
    assert "s_0 of vit is not known" in " ".join(
        refused("learn", new, red, "--backbone", place.vit).replace("reference separability ", "").split()
    )
    assert not new.exists()
    said = refused("learn", copy, red, "--backbone", place.vit, "--set", "rank=8", "--seed", 1)
    assert "rank: 4, not 8; seed: 0, not 1" in said
    said = refused("learn", copy, red, code=1)
    assert "--backbone FILE" in said
    strange = toy_folder(tmp_path / "strange", ("green",), count=2)
    (strange / "green" / "bar").rename(strange / "green" / "barr")
    said = refused("learn", copy, strange / "green", "--backbone", place.vit, "--test-share", 0)
    assert "barr besides" in said
    assert model_files(copy) == model_files(place.model)


def test_a_known_domain_is_not_lost_by_a_slip(place: Place, copy: Path, tmp_path: Path) -> None:
    found = bpg("learn", copy, place.data / "red", "--backbone", place.vit, "--json")
    assert "learned already, from these very images" in found.stderr
    assert json.loads(found.stdout)["digest"] == document("inspect", place.model)["digest"]
    other = toy_folder(tmp_path / "other", ("red",), count=3)
    again = ("learn", copy, other / "red", "--backbone", place.vit, "--test-share", 0)
    assert "knows a domain red already, from other images" in refused(*again)
    assert model_files(copy) == model_files(place.model)
    assert "learned anew" in bpg(*again, "--again").stderr
    assert model_files(copy) != model_files(place.model)
    (tmp_path / "file").write_text("")
    assert "no place for a model" in refused("learn", tmp_path / "file", place.data / "red", "--backbone", place.vit)


def test_broken_images_are_skipped_or_stop_the_run(place: Place, tmp_path: Path) -> None:
    data = shutil.copytree(place.data / "red", tmp_path / "red")
    (data / "bar" / "loose").mkdir()
    bad = data / "bar" / "zz\udcff.png"  # a name that is no UTF-8
    bad.write_bytes(b"no image")
    (data / "bar" / "clip.gif").write_bytes(b"GIF89a")
    arguments = ("learn", tmp_path / "m", data, "--backbone", place.vit, "--test-share", 0, *LEARN)
    assert "1 of 46 images cannot be read" in refused(*arguments, "--strict", code=1)
    assert not (tmp_path / "m" / "model.json").exists()
    found = bpg(*arguments)
    assert found.returncode == 0, found.stderr
    assert "unreadable: " in found.stderr
    assert "zz\\udcff.png: 8 bytes that fail to decode (unknown format)" in found.stderr
    assert "1 .gif" in found.stderr
    for file in data.rglob("*.png"):
        file.write_bytes(b"")
    assert "no image of red, to learn can be read" in refused(*arguments, code=1)


def test_an_interrupted_learn_goes_on_and_nothing_is_lost(place: Place, copy: Path, tmp_path: Path) -> None:
    toy_folder(tmp_path / "data", ("green",), count=60)  # some seconds of training
    arguments = (
        "learn",
        copy,
        tmp_path / "data" / "green",
        "--name",
        "[/green]",
        "--backbone",
        place.vit,
        "--threads",
        1,
    )
    command = [sys.executable, "-m", "bpg", *map(str, arguments)]
    twin = shutil.copytree(copy, tmp_path / "twin")
    master, terminal = pty.openpty()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal)
    os.close(terminal)
    said = b""
    while b"[/green]: training" not in said:
        said += os.read(master, 4096)
    assert b"images/s" in said  # the bar, as a terminal shows it
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    said += _rest(master)
    assert process.returncode == 130
    assert b"The model is as it was; the same command goes on from here." in said
    assert model_files(copy).keys() - {"scratch"} >= model_files(twin).keys()
    assert (copy / "model.json").read_bytes() == (twin / "model.json").read_bytes()
    done(*arguments)
    done(arguments[0], twin, *arguments[2:])
    assert model_files(copy) == model_files(twin)


def _rest(master: int) -> bytes:
    """What is left to read of a terminal whose other side is closed."""
    said = b""
    try:
        while piece := os.read(master, 4096):
            said += piece
    except OSError:  # Linux's way of saying that this was all
        pass
    os.close(master)
    return said


def test_predict_in_every_format(place: Place, tmp_path: Path) -> None:
    inbox = tmp_path / "in box"
    inbox.mkdir()
    truth = {}
    for domain in ("red", "blue"):
        for name in CLASSES:
            file = inbox / "deeper" / f"{domain} {name} é.png"
            file.parent.mkdir(exist_ok=True)
            shutil.copy(place.data / domain / name / "001.png", file)
            truth[str(file)] = (domain, name)
    (inbox / "deeper" / "loop").symlink_to(inbox)
    (inbox / "broken.jpg").write_bytes(b"\xff\xd8 broken")
    ways = ("predict", place.model, inbox, "--backbone", place.vit)
    found = document(*ways)
    assert {row["file"] for row in found["predictions"]} == set(truth)
    assert [row["path"] for row in found["unreadable"]] == [str(inbox / "broken.jpg")]
    right = 0
    for row in found["predictions"]:
        assert 0 < row["probability"] <= 1
        assert sum(row["domain_weights"].values()) == pytest.approx(1, abs=1e-3)
        assert row["experts"] == sum(weight > 0 for weight in row["domain_weights"].values())
        right += row["label"] == truth[row["file"]][1]
    assert right >= 5
    table = list(csv.DictReader(io.StringIO(done(*ways, "--csv"))))
    assert list(table[0]) == ["file", "label", "probability", "weight:blue", "weight:red", "experts", "unknown"]
    assert [(row["file"], row["label"]) for row in table] == [(r["file"], r["label"]) for r in found["predictions"]]
    text = done(*ways, "--router", "hard")
    header, *lines = (line.split("\t") for line in text.splitlines())
    assert header == ["file", "label", "probability", "domains", "experts", "unknown"]
    assert {line[-2] for line in lines} == {"1"}
    assert {line[3].split()[0] for line in lines} == {"red", "blue"}
    # answers depend neither on batch size nor on batch mates
    alone = document("predict", place.model, found["predictions"][0]["file"], "--backbone", place.vit)
    assert alone["predictions"] == found["predictions"][:1]
    assert document(*ways, "--batch-size", 1)["predictions"] == found["predictions"]


def test_what_is_unknown_to_a_domain_of_one_image_is_not_made_up(place: Place, tmp_path: Path) -> None:
    picture = tmp_path / "single" / "bar" / "000.png"
    picture.parent.mkdir(parents=True)
    shutil.copy(place.data / "red" / "bar" / "000.png", picture)
    model = tmp_path / "model"
    done("learn", model, tmp_path / "single", "--backbone", place.vit, "--test-share", 0, *LEARN)
    (row,) = document("predict", model, picture, "--backbone", place.vit)["predictions"]
    assert (row["experts"], row["unknown"]) == (1, None)


QUIET = """
from dataclasses import replace
from bpg.methods.bpg import BPG


class Quiet(BPG):
    method = "quiet"

    def forward(self, images):
        return replace(super().forward(images), unknown=None)
"""


def test_a_method_that_routes_need_not_say_what_is_unknown(place: Place, tmp_path: Path) -> None:
    (tmp_path / "quiet.py").write_text(QUIET)
    info = tmp_path / "quiet-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: quiet\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[bpg.methods]\nquiet = quiet:Quiet\n")
    known = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    model, picture = tmp_path / "model", place.data / "red" / "bar" / "000.png"
    settings = (*LEARN, "--set", "optimisation.epochs=1")
    done("learn", model, place.data / "red", "--method", "quiet", "--backbone", place.vit, *settings, **known)
    ways = ("predict", model, picture, "--backbone", place.vit)
    assert document(*ways, **known)["predictions"][0]["unknown"] is None
    (row,) = csv.DictReader(io.StringIO(done(*ways, "--csv", **known)))
    assert (row["weight:red"], row["experts"], row["unknown"]) == ("1.0", "1", "")
    assert done(*ways, **known).splitlines()[1].split("\t")[-2:] == ["1", "-"]


def test_predict_refuses_in_sentences(place: Place, tmp_path: Path) -> None:
    ways = ("--backbone", place.vit)
    assert "there is no" in refused("predict", place.model, tmp_path / "gone.png", *ways)
    (tmp_path / "empty").mkdir()
    assert "nothing to predict" in refused("predict", place.model, tmp_path / "empty", *ways)
    (tmp_path / "bad.png").write_bytes(b"bad")
    assert "no image of the files can be read" in refused("predict", place.model, tmp_path / "bad.png", *ways, code=1)
    picture = place.data / "red" / "bar" / "000.png"
    assert "there is no model in" in refused("predict", tmp_path, picture, *ways, code=1)
    assert "no router is called 'sotf'" in refused("predict", place.model, picture, "--router", "sotf", *ways)
    assert "no such fusion" in refused("predict", place.model, picture, "--fusion", "sum", *ways)
    assert "both" in refused("predict", place.model, picture, "--csv", "--json", *ways)
    other = toy_checkpoint(tmp_path / "other")
    (other / "config.json").write_text((other / "config.json").read_text().replace("0.5, 0.5, 0.5", "0.4, 0.4, 0.4", 1))
    weights = other / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    assert "another backbone" in refused("predict", place.model, picture, "--backbone", other, code=1)


def test_evaluate_tests_on_what_was_held_out(place: Place, tmp_path: Path) -> None:
    found = document("evaluate", place.model, place.data, "--backbone", place.vit, "--compare")
    rows = {(row["way"], row["test"]): row for row in found["tests"]}
    held = {name: len(sides.test or ()) for name, sides in read_folder(place.data).domains.items()}
    for way in ("calibrated", "soft", "hard", "oracle"):
        assert {name: rows[way, name]["total"] for name in held} == held
        assert rows[way, "all"]["total"] == sum(held.values())
        assert rows[way, "all"]["correct"] == sum(rows[way, name]["correct"] for name in held)
        assert rows[way, "red"]["accuracy"] > 50
        assert sum(cell["total"] for cell in rows[way, "red"]["classes"].values()) == held["red"]
    toy_folder(tmp_path, ("red", "blue", "green"), count=4)
    unseen = bpg("evaluate", place.model, tmp_path, "--backbone", place.vit, "--compare", "--test-share", 1)
    lines = [line.split("\t") for line in unseen.stdout.splitlines()]
    assert [line[1] for line in lines if line[0] == "oracle"] == ["blue", "red"]
    assert [line[4] for line in lines if line[1] == "all"] == ["36"] * 3
    assert "the model has no expert for green: the oracle is left out there and over all" in unseen.stderr
    text = bpg("evaluate", place.model, place.data / "red", "--backbone", place.vit, "--test-share", 1)
    header, row = (line.split("\t") for line in text.stdout.splitlines())
    assert header == ["test", "accuracy", "correct", "total", "domain_found", "experts"]
    assert (row[0], row[3]) == ("red", "45")
    assert "held" not in text.stderr
    assert "nothing to test" in refused("evaluate", place.model, place.data, "--backbone", place.vit, "--test-share", 0)


def test_faster_answers_say_what_they_cost(place: Place, copy: Path) -> None:
    ways = ("--backbone", place.vit)
    rows = document("evaluate", copy, place.data, "--profile", *ways)["choices"]
    exact = rows[0]
    assert (exact["choice"], exact["agreement"], exact["time"]) == ("exact", 100, 1)
    assert {"route_depth 1", "max_experts 1", "max_experts 2", "8-bit", "graph"} < {row["choice"] for row in rows}
    assert next(row["agreement"] for row in rows if row["choice"] == "graph") == 100
    assert all(row["images_per_second"] > 0 and 0 < row["agreement"] <= 100 for row in rows)
    assert next(row["experts"] for row in rows if row["choice"] == "max_experts 1") == 1
    before = document("inspect", copy)["digest"]
    red = ("tune-routing", copy, "--data", place.data / "red", *ways)
    blind = refused(*red, "--save")
    assert "images of blue, red, in folders of these names" in blind
    assert "none of blue" in blind
    assert not (copy / "answering.json").exists()
    only_told = bpg(*red)
    assert "Worth taking: route_depth" in only_told.stdout
    assert "there are no images of blue" in only_told.stderr
    tuned = document("tune-routing", copy, "--data", place.data, "--save", *ways)
    assert tuned["route_depth"] in (0, 1)
    assert json.loads((copy / "answering.json").read_text()) == {"route_depth": tuned["route_depth"]}
    assert document("inspect", copy)["digest"] == before  # what was learned stays as it was
    picture = place.data / "red" / "bar" / "000.png"
    (copy / "answering.json").write_text('{"route_depth": 1, "max_experts": 1}')
    (kept,) = document("predict", copy, picture, *ways)["predictions"]
    (given,) = document("predict", place.model, picture, "--route-depth", 1, "--max-experts", 1, *ways)["predictions"]
    assert {**kept, "file": ""} == {**given, "file": ""}
    assert 0 <= kept["unknown"] <= 1
    (copy / "answering.json").write_text('{"route_deph": 1}')
    assert "names options that do not exist" in refused("predict", copy, picture, *ways, code=1)
    (copy / "answering.json").write_text("[]")
    assert "answering.json is damaged" in refused("predict", copy, picture, *ways, code=1)
    assert "cannot be routed after block 9" in refused("predict", place.model, picture, "--route-depth", 9, *ways)
    assert "no mixture is called 'papr'" in refused("predict", place.model, picture, "--mixture", "papr", *ways)
    assert "two tables" in refused("evaluate", place.model, place.data, "--compare", "--profile", *ways)
    itself = refused("evaluate", place.model, place.data, "--profile", "--max-experts", 1, *ways)
    assert "--profile goes through the choices itself" in itself


def test_nobody_tunes_by_images_of_other_classes(place: Place, copy: Path, tmp_path: Path) -> None:
    for domain in ("blue", "red"):
        shutil.copytree(place.data / domain / "bar", tmp_path / "data" / domain / "kite")
    (tmp_path / "data" / "red" / "kite" / "broken.png").write_bytes(b"no image")
    tune = ("tune-routing", copy, "--data", tmp_path / "data", "--backbone", place.vit, "--test-share", 1)
    assert "images of kite" in refused(*tune, "--save")
    assert not (copy / "answering.json").exists()
    told = bpg(*tune, "--json")
    assert "the model does not know kite" in told.stderr
    assert [Path(row["path"]).name for row in json.loads(told.stdout)["unreadable"]] == ["broken.png"]


def test_inspect_needs_no_backbone(place: Place) -> None:
    found = document("inspect", place.model)
    assert [row["domain"] for row in found["domains"]] == ["blue", "red"]
    for row in found["domains"]:
        assert row["separability"] > 0
        assert (row["rank"], row["classes"]) == (4, 3)
        assert row["parameters"] * 4 / 1e6 < row["megabytes"] < row["parameters"] * 4 / 1e6 + 0.1
    assert found["distances"]["red"]["blue"] == found["distances"]["blue"]["red"] > 0
    assert [entry["event"] for entry in found["history"]] == ["learned red", "learned blue"]
    assert found["history"][-1]["model"] == found["digest"]
    assert found["classes"] == sorted(CLASSES)
    text = done("inspect", place.model)
    for part in ("separability", "distances between domains", "history", "learned blue"):
        assert part in text
    assert "there is no model" in refused("inspect", place.data, code=1)


def test_forget_gives_the_model_that_never_saw_it(place: Place, copy: Path, tmp_path: Path) -> None:
    only = tmp_path / "only"
    done("learn", only, place.data / "red", "--backbone", place.vit, "--threads", 1, *LEARN)
    found = document("forget", copy, "blue")
    assert found["domains"] == ["red"]
    assert model_files(copy) == model_files(only)
    assert [entry["event"] for entry in document("inspect", copy)["history"]][-1] == "forgot blue"
    assert "Did you mean red?" in refused("forget", copy, "redd")
    cached = [tmp_path / "cache" / kind / "x" / "a.safetensors" for kind in ("features", "pixels")]
    for file in cached:
        file.parent.mkdir(parents=True)
        file.write_bytes(b"12345")
    assert document("forget", copy, "red", "--purge-cache", BPG_CACHE=str(tmp_path / "cache"))["purged_bytes"] == 10
    assert not any(file.exists() for file in cached)
    assert "has learned nothing" in refused(
        "predict", copy, place.data / "red" / "bar" / "000.png", "--backbone", place.vit
    )


def test_merge_gives_the_model_that_learned_all(place: Place, tmp_path: Path) -> None:
    for name in ("red", "blue"):
        done("learn", tmp_path / name, place.data / name, "--backbone", place.vit, "--threads", 1, *LEARN)
    assert document("merge", tmp_path / "both", tmp_path / "blue", tmp_path / "red")["domains"] == ["blue", "red"]
    assert model_files(tmp_path / "both") == model_files(place.model)
    done("merge", tmp_path / "red", tmp_path / "blue")  # into one that is there
    assert model_files(tmp_path / "red") == model_files(place.model)
    assert load(tmp_path / "both", backbone=str(place.vit)).classes == tuple(sorted(CLASSES))
    done("learn", tmp_path / "other", place.data / "red", "--backbone", place.vit, "--seed", 5, *LEARN)
    assert "different settings" in refused("merge", tmp_path / "both", tmp_path / "other", code=1)
    assert "there is no model" in refused("merge", tmp_path / "both", tmp_path / "gone", code=1)
    assert model_files(tmp_path / "both") == model_files(place.model)


def test_forget_and_merge_leave_how_a_model_answers(place: Place, copy: Path, tmp_path: Path) -> None:
    other = shutil.copytree(copy, tmp_path / "other")
    own, others = b'{"max_experts": 1, "route_depth": 1}\n', b'{"route_depth": 0}\n'
    (copy / "answering.json").write_bytes(own)
    (other / "answering.json").write_bytes(others)
    done("forget", copy, "blue")
    done("forget", other, "red")
    assert (copy / "answering.json").read_bytes() == own
    done("merge", copy, other)
    assert (copy / "answering.json").read_bytes() == own
    assert (other / "answering.json").read_bytes() == others
    model = load(copy, backbone=str(place.vit))
    assert isinstance(model, BPG)
    assert (model.domains, model.way.route_depth, model.way.max_experts) == (("blue", "red"), 1, 1)
    done("merge", tmp_path / "new", copy, other)  # nobody has said how a new one answers
    assert not (tmp_path / "new" / "answering.json").exists()


def test_a_model_whose_domains_share_parameters_is_not_taken_apart(place: Place, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    found = document("learn", shared, place.data / "red", "--backbone", place.vit, "--method", "sequential_probe")
    assert found["held_out_accuracy"] > 50
    assert "cannot be taken apart" in refused("forget", shared, "red")
    picture = place.data / "red" / "bar" / "000.png"
    row = document("predict", shared, picture, "--backbone", place.vit)["predictions"][0]
    assert sorted(row) == ["file", "label", "probability"]
    said = refused("predict", shared, picture, "--backbone", place.vit, "--router", "hard")
    assert "no experts to choose from" in said
    assert document("inspect", shared)["classes"] == sorted(CLASSES)


def test_plan_tells_before_anything_is_trained(place: Place) -> None:
    ways = ("plan", place.data, "--backbone", place.vit, "--set", "s0=2.0", "--set", "r0=8")
    found = document(*ways)
    rows = {row["domain"]: row for row in found["domains"]}
    learned = {row["domain"]: row for row in document("inspect", place.model)["domains"]}
    for name in ("red", "blue"):
        assert rows[name]["separability"] == pytest.approx(learned[name]["separability"])
        assert rows[name]["rank"] == max(1, int(2.0 * 8 / rows[name]["separability"] + 0.5))
        assert rows[name]["megabytes"] == rows[name]["parameters"] * 4 / 1e6
        assert rows[name]["seconds"] > 0
    assert found["total"]["parameters"] == sum(row["parameters"] for row in rows.values())
    for budget in (0.017, 0.02, 0.03):
        found = document("plan", place.data, "--backbone", place.vit, "--megabytes", budget)
        again = document("plan", place.data, "--backbone", place.vit, "--set", f"lam={found['lam']!r}")
        assert again["total"]["megabytes"] == found["total"]["megabytes"] <= budget
    assert "wanted: at least 0.00" in refused("plan", place.data, "--backbone", place.vit, "--megabytes", 0.0001)
    assert done(*ways).splitlines()[-1].startswith("all\t-")
    assert "needs a backbone" in refused("plan", place.data)


def test_reference_measures_s_0(place: Place) -> None:
    found = document("reference", place.data / "red", "--backbone", place.vit)
    assert (found["classes"], found["images"]) == (3, 45)
    assert 0 < found["s_0_corrected"] < found["s_0_plain"]
    assert "--set s0=" in bpg("reference", place.data / "red", "--backbone", place.vit).stderr
    assert "--backbone" in refused("reference", place.data / "red")


def test_methods_and_their_settings() -> None:
    rows = {row["method"]: row for row in document("methods")}
    assert rows["bpg"]["routable"] is rows["bpg"]["isolated"] is True
    assert rows["finetune"]["isolated"] is False
    assert all(row["what"].endswith(".") for row in rows.values())
    assert document("methods", "bpg")["settings"]["optimisation.epochs"] == 30
    assert "did you mean" in refused("methods", "finetun").lower()
