"""Specs are read strictly, runs keep what they counted, and a report is a function of that."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from bpg.data.folder import read_folder
from bpg.errors import ImageError, ModelError, SettingsError, WrongUse
from bpg.experiments.evaluation import evaluate, ways_of
from bpg.experiments.manifest import find, prepare
from bpg.experiments.records import TIMES, Run, append_line, read_run, read_runs, write_json
from bpg.experiments.runner import learn_part, run_cell
from bpg.experiments.spec import Spec, cells, data_root, read_spec
from bpg.metrics import average_accuracy
from bpg.progress import Progress
from bpg.report.blocks import Table
from bpg.report.contents import contents, stuck_at_chance
from bpg.report.html import html
from bpg.report.markdown import markdown
from bpg.report.pictures import look_at
from bpg.store import digest_of
from tests.toy import toy_backbone, toy_folder

CONFIG = """
name = "toy"
seeds = [0, 1]
unseen = true
[data]
root = "{root}"
order = ["red", "blue"]
[backbone]
source = "toy"
[methods.bpg]
rank = 4
optimisation = {{ epochs = 20, batch_size = 8, lr = 0.02 }}
augmentation = {{ area = [0.9, 1.0], flip = false }}
[methods.still]
method = "finetune"
optimisation = {{ epochs = 1, lr = 0.0 }}
[methods.linear_probe]
router = "soft"
fusion = "max"
"""


def ignore(_: Progress) -> None:
    pass


@contextmanager
def silent(_: str) -> Iterator[Any]:
    yield ignore


def spec_in(folder: Path, *changes: str, text: str = CONFIG) -> Spec:
    (folder / "grid.toml").write_text(text.format(root=folder / "data"))
    return read_spec(folder / "grid.toml", changes)


def run_all(spec: Spec, out: Path) -> list[Any]:
    data = prepare(spec, find(spec.data), ignore)
    backbone = toy_backbone()
    return [run_cell(spec, cell, backbone, data, out, bar=silent) for cell in cells(spec)]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Spec]:
    """A folder with runs of three methods and two seeds."""
    folder = tmp_path_factory.mktemp("runs")
    toy_folder(folder / "data", count=30)
    spec = spec_in(folder)
    run_all(spec, folder / "out")
    return folder, spec


def test_every_fault_of_a_spec_is_told_at_once_with_the_nearest_name(tmp_path: Path) -> None:
    text = """
name = "a/b"
sedes = [0]
seeds = [3, 3]
[data]
root = "x"
benchmark = "emojii"
test_share = 2
oder = ["red"]
[methods.bpgg]
[methods."../up"]
[methods.odd]
method = 3
[methods.bpg]
rankk = 3
seed = 4
router = "sotf"
optimisation = { epocs = 3, lr = -1 }
"""
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_spec(tmp_path / "bad.toml")
    for fault in (
        "name: string should match pattern",
        "seeds: [3, 3] names one twice",
        "methods.../up: a label names a folder",
        "methods.odd: no method is called '3'",
        "sedes: no such setting, did you mean seeds?",
        "data.oder: no such setting, did you mean order?",
        "data.test_share: input should be less than 1",
        "data.benchmark: no benchmark is called 'emojii'. Did you mean emoji",
        "backbone: is not given",
        "methods.bpgg: no method is called 'bpgg'. Did you mean bpg?",
        "methods.bpg.rankk: no such setting, did you mean rank?",
        "methods.bpg.seed: seeds stand at the top",
        "methods.bpg.router: no router is called 'sotf', did you mean soft?",
        "methods.bpg.optimisation.epocs: no such setting, did you mean epochs?",
        "methods.bpg.optimisation.lr: input should be greater than or equal to 0, not -1",
    ):
        assert fault in caught.value.came
    assert caught.value.problem.startswith("15 wrong settings in ")


@pytest.mark.parametrize(
    "change", ["methods.bpg.optimisation.epochs=true", 'seeds=["0"]', "data.strict=1", "data.order=[]", "name=.."]
)
def test_what_is_of_the_wrong_kind_is_not_made_to_fit(change: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=change.split("=")[0]):
        spec_in(tmp_path, change)


def test_changes_are_toml_or_text(tmp_path: Path) -> None:
    changes = ("seeds=[7]", "methods.bpg.rank=9", "data.strict=true", "backbone.source=a b", "methods.new.method=bpg")
    spec = spec_in(tmp_path, *changes)
    assert spec.seeds == (7,)
    assert spec.data.strict is True
    assert spec.backbone.source == "a b"
    assert [(cell.label, cell.method) for cell in cells(spec)] == [
        ("bpg", "bpg"), ("still", "finetune"), ("linear_probe", "linear_probe"), ("new", "bpg"),
    ]  # fmt: skip
    assert cells(spec)[0].values["rank"] == 9
    assert cells(spec)[2].options == {"router": "soft", "fusion": "max"}
    for wrong, message in (("seeds", "NAME=VALUE"), ("=3", "NAME=VALUE"), ("name.x=3", "no settings below")):
        with pytest.raises(WrongUse, match=message):
            spec_in(tmp_path, wrong)
    with pytest.raises(WrongUse, match="is no TOML"):
        spec_in(tmp_path, text="name = ")
    with pytest.raises(WrongUse, match="cannot read"):
        read_spec(tmp_path / "gone.toml")


def test_data_is_looked_for_here_and_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pacs").mkdir()
    monkeypatch.chdir(tmp_path / "pacs")
    with pytest.raises(WrongUse, match=r"Set data.root .* or \$BPG_DATA"):
        data_root("pacs")
    monkeypatch.setenv("BPG_DATA", str(tmp_path))
    assert data_root("pacs") == tmp_path / "pacs"
    assert data_root(str(tmp_path)) == tmp_path


def test_a_run_keeps_what_it_counted(ran: tuple[Path, Spec]) -> None:
    folder, _ = ran
    runs = {(run.label, run.seed): run for run in read_runs([folder / "out"])}
    assert sorted(runs) == [(label, seed) for label in ("bpg", "linear_probe", "still") for seed in (0, 1)]
    run = runs["bpg", 0]
    assert run.finished
    assert run.order == ["red", "blue"]
    assert run.ways == ["soft", "calibrated", "hard", "oracle"]
    assert runs["still", 0].ways == ["own"]
    assert runs["linear_probe", 0].ways == ["soft, max", "calibrated", "soft", "hard", "oracle"]
    counts = run.counts("soft")
    assert all(right is not None for row in counts.correct for right in row)  # unseen = true
    assert run.counts("oracle").correct[0][1] is None  # nobody knows blue yet
    held = [len(read_folder(folder / "data").domains[name].test or ()) for name in run.order]
    assert list(counts.total) == held
    for test in run.last("soft"):
        assert sum(total for _, total in test["classes"].values()) == test["total"] == sum(test["chosen"].values())
        assert sum(right for right, _ in test["classes"].values()) == test["correct"]
        assert sum(test["experts"].values()) == test["total"]
    assert {domain: len(points) for domain, points in run.curves.items()} == {"red": 180, "blue": 180}
    assert [(line["what"], line["domain"]) for line in run.times] == [
        ("learn", "red"), ("test", "red"), ("pass", "red"),
        ("learn", "blue"), ("test", "blue"), ("pass", "blue"), ("answer", ""),
    ]  # fmt: skip
    assert [line["trained"] for line in run.times if line["what"] == "learn"] == [
        run.records[-1]["facts"][name]["parameters"] for name in run.order
    ]
    assert average_accuracy(counts) > 60
    manifest = json.loads((run.folder / "run.json").read_text())["data"]
    assert [domain["train"]["images"] + test["images"] for domain, test in
            zip(manifest["domains"], manifest["tests"], strict=True)] == [90, 90]  # fmt: skip


def test_what_is_finished_is_not_run_again_and_what_is_lost_is(ran: tuple[Path, Spec], tmp_path: Path) -> None:
    spec = ran[1]
    spec = replace(spec, seeds=(0,), methods={"bpg": spec.methods["bpg"]})
    (before,) = run_all(spec, tmp_path)
    stamp = (before.folder / "records.jsonl").stat().st_mtime_ns
    (again,) = run_all(spec, tmp_path)
    assert (again.folder / "records.jsonl").stat().st_mtime_ns == stamp
    wanted, model = (before.folder / "records.jsonl").read_bytes(), digest_of(before.folder / "model")
    # killed after the model was saved and before its record: tested again, not learned again
    (before.folder / "records.jsonl").write_bytes(wanted.split(b"\n")[0] + b"\n")
    (again,) = run_all(spec, tmp_path)
    assert (again.folder / "records.jsonl").read_bytes() == wanted
    assert digest_of(again.folder / "model") == model
    assert len([line for line in again.times if line["what"] == "learn"]) == 2
    (before.folder / "records.jsonl").write_bytes(b"")
    with pytest.raises(ModelError, match="has lost records"):
        run_all(spec, tmp_path)
    (before.folder / "records.jsonl").write_bytes(wanted.split(b"\n")[1] + b"\n")
    with pytest.raises(ModelError, match="no run that can be read"):
        run_all(spec, tmp_path)
    other = run_all(replace(spec, methods={"bpg": {**spec.methods["bpg"], "rank": 5}}), tmp_path)[0]
    assert other.folder != before.folder  # other settings, another run


def test_a_domain_costs_what_it_cost_before_a_kill_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy_folder(tmp_path / "data", count=10)
    spec = spec_in(tmp_path, "methods={bpg={rank=2, optimisation={epochs=4}}}", "seeds=[0]")
    (cell,), data, out = cells(spec), prepare(spec, find(spec.data), ignore), tmp_path / "out"

    @contextmanager
    def killed(_: str) -> Iterator[Any]:
        def show(now: Progress) -> None:
            if (now.activity, now.step) == ("training", 3):
                raise KeyboardInterrupt

        yield show

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def interrupted(bar: Any = silent) -> Path:
        with pytest.raises(KeyboardInterrupt):
            run_cell(spec, cell, toy_backbone(), data, out, bar=bar)
        (note,) = out.rglob("learning.json")
        return note

    def longer(note: Path) -> None:
        """As if it had taken an hour."""
        cost = json.loads(note.read_text())
        cost["seconds"] += 3600
        cost["of_it"]["training"]["seconds"] += 3500
        note.write_text(json.dumps(cost))

    with monkeypatch.context() as patch:
        patch.setattr("bpg.experiments.runner.NOTED", 0.0)
        note = interrupted(killed)
    assert not (note.parent.parent / "times.jsonl").exists()
    longer(note)
    with monkeypatch.context() as patch:  # between the end of learning and the model
        patch.setattr("bpg.methods.bpg.BPG.save", stopped)
        longer(interrupted())
    with monkeypatch.context() as patch:  # between the model and the line
        patch.setattr("bpg.experiments.runner._note_learned", stopped)
        interrupted()
    assert not (note.parent.parent / "times.jsonl").exists()
    learn_part(spec, cell, toy_backbone(), data, out, stage=2, bar=silent)
    run = run_cell(spec, cell, toy_backbone(), data, out, bar=silent)
    red, blue = (line for line in run.times if line["what"] == "learn")
    assert (red["domain"], blue["domain"]) == ("red", "blue")
    assert 7200 < red["seconds"] < 7300
    assert 7000 < red["of_it"]["training"]["seconds"] < 7100
    assert 0 < blue["seconds"] < 100
    assert red["trained"] == blue["trained"] == run.records[-1]["facts"]["red"]["parameters"]


def test_a_full_disk_is_told_with_the_file_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fills(file: Path, *_: object, **__: object) -> None:
        file.touch()
        raise OSError(errno.ENOSPC, "No space left on device")  # as a write does, which knows no name

    monkeypatch.setattr(Path, "write_text", fills)
    with pytest.raises(OSError, match="No space left") as caught:
        write_json(tmp_path / "note.json", {})
    assert caught.value.filename == str(tmp_path / "note.json")
    assert not list(tmp_path.iterdir())


def test_a_line_cut_by_a_kill_costs_only_itself(tmp_path: Path, ran: tuple[Path, Spec]) -> None:
    run = read_runs([ran[0] / "out"])[0]
    (tmp_path / "run.json").write_bytes((run.folder / "run.json").read_bytes())
    (tmp_path / "curves.jsonl").write_bytes(b'{"domain": "red", "step": 1, "loss": 2.0}\n{"domain": "re')
    append_line(tmp_path / "curves.jsonl", {"domain": "red", "step": 2, "loss": 1.0})
    append_line(tmp_path / "curves.jsonl", {"domain": "red", "step": 3, "loss": 0.5})
    append_line(tmp_path / "curves.jsonl", {"domain": "red", "step": 3, "loss": 0.5})
    assert read_run(tmp_path).curves == {"red": [(1, 2.0), (3, 0.5)]}
    for broken in ('{"format": 99}', "[]", "", '{"format": 1}'):
        (tmp_path / "run.json").write_text(broken)
        with pytest.raises(ModelError, match="no run that can be read"):
            read_run(tmp_path)
    with pytest.warns(UserWarning, match="no run that can be read"):
        assert len(read_runs([ran[0] / "out", tmp_path])) == 6
    with pytest.raises(WrongUse, match="there are no runs"):
        read_runs([tmp_path / "nothing"])
    shutil.copytree(run.folder, tmp_path / "copy")
    assert len(read_runs([ran[0] / "out", tmp_path / "copy"])) == 6  # a copy is no further seed


def test_unreadable_images_are_in_the_manifest_or_stop_the_run(tmp_path: Path) -> None:
    data = toy_folder(tmp_path / "data", count=6)
    (data / "red" / "bar" / "zz.png").write_bytes(b"broken")
    found = prepare(spec_in(tmp_path), read_folder(data, test_share=0.5), ignore)
    sides = [found.manifest["domains"][0]["train"], found.manifest["tests"][0]]
    assert [fault["path"] for side in sides for fault in side["unreadable"]] == ["red/bar/zz.png"]
    with pytest.raises(ImageError, match="1 of "):
        prepare(spec_in(tmp_path, "data.strict=true"), read_folder(data, test_share=0.5), ignore)


def test_evaluation_compares_ways_at_once_and_alone_alike(ran: tuple[Path, Spec]) -> None:
    from bpg.methods.bpg import BPG

    folder, _ = ran
    run = next(run for run in read_runs([folder / "out"]) if run.label == "bpg")
    tests = read_folder(folder / "data").stream(name="s").tests
    told: list[Progress] = []
    for router in ("soft", "hard"):
        model = BPG.load(run.folder / "model", backbone=toy_backbone(), router=router)
        every = evaluate(model, tests, progress=told.append)
        assert list(every) == [router, *(way for way in ("calibrated", "soft", "hard", "oracle") if way != router)]
        alone = evaluate(model, tests, ways={router: ways_of(model)[router]}, batch_size=5)
        assert alone[router] == every[router]
    assert (told[-1].step, told[-1].activity) == (sum(len(test.images) for test in tests), "test")


class Checker(HTMLParser):
    """Opens and closes what it finds, and remembers what leads out of the page."""

    VOID = ("meta", "img", "path", "polyline")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        assert tag not in ("script", "link", "iframe")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_a_report_says_all_there_is_to_say(ran: tuple[Path, Spec]) -> None:
    runs = read_runs([ran[0] / "out"])
    page = contents(runs, look_at(ran[0] / "data"))
    text = markdown(page)
    for part in (
        "Results", "Soft, hard, oracle", "Capacity plan of bpg", "Accuracy matrices", "What is kept", "Some answers",
        "Where the domains lie", "Domain confusion", "Experts per image", "Accuracy by class", "Training curves",
        "What ran on what",
    ):  # fmt: skip
        assert f"## {part}" in text
    bpg_runs = [run for run in runs if run.label == "bpg"]
    reached = [average_accuracy(run.counts("soft")) for run in bpg_runs]
    assert f"| bpg | soft | {sum(reached) / 2:.2f} ± " in text
    assert "cannot be told from chance" in text
    assert "> **still, seed 0" in text
    assert str(ran[0]) not in text  # no path of this machine
    whole = html(page)
    checker = Checker()
    checker.feed(whole)
    assert checker.open == []
    assert all(address.startswith(("#", "data:image/jpeg;base64,")) for address in checker.addresses)
    assert sum(address.startswith("data:") for address in checker.addresses) == 6 + 12  # of each class; answers
    assert "polyline" in whole
    assert not re.search(r"https?:|@import|url\(", whole)
    assert str(ran[0]) not in whole
    plain = html(contents(runs))
    assert "data:image" not in plain.replace("img-src data:", "")


KEEPERS = """
name = "toy"
[data]
root = "{root}"
order = ["red", "blue"]
[backbone]
source = "toy"
[methods.finetune]
optimisation = {{ epochs = 1 }}
[methods.joint]
optimisation = {{ epochs = 1 }}
[methods.er]
optimisation = {{ epochs = 1 }}
memory = {{ images = 4 }}
"""


def costs(runs: list[Any], column: str) -> dict[Any, Any]:
    """A column of the report's table of costs, by method."""
    (section,) = (section for section in contents(runs).sections if section.title == "What it costs")
    (table,) = section.blocks
    assert isinstance(table, Table)
    return {row[0]: row[table.columns.index(column)] for row in table.rows}


def test_kept_files_are_bytes_and_no_numbers_and_references_are_told(tmp_path: Path) -> None:
    toy_folder(tmp_path / "data", count=6)
    runs = run_all(spec_in(tmp_path, text=KEEPERS), tmp_path / "out")
    plain, joint, kept = (run.records[-1] for run in runs)
    assert plain["stored_numbers"] == joint["stored_numbers"] == kept["stored_numbers"]
    assert kept["stored_bytes"] > plain["stored_bytes"] + 4 * 100  # of four image files
    assert [record["kept_as"] for record in (plain, joint, kept)] == [None, "references", "images"]
    assert any("by their paths alone" in text for section in contents(runs).sections for text in section.text)
    assert costs(runs, "kept images") == {"finetune": 0, "joint": f"{joint['kept_images']} referred to", "er": 4}
    old = {key: value for key, value in kept.items() if key != "kept_as"}  # of before, when every byte was a number
    before = replace(runs[2], records=(*runs[2].records[:-1], old))
    assert costs([runs[0], before], "stored") == {"finetune": plain["stored_numbers"], "er": None}


def slowed(run: Run, place: Path, factor: float, *, passes: bool = True) -> Run:
    """The same run as a machine would have timed it that needs `factor` times as long; or before passes were timed."""
    place.mkdir()
    for line in run.times:
        if passes or line["what"] != "pass":
            append_line(place / TIMES, line | {"processor_seconds": factor * line["processor_seconds"], "of_it": {}})
    return Run(place, run.about, run.records)


def test_costs_of_runs_on_machines_of_two_speeds_can_be_compared(tmp_path: Path) -> None:
    toy_folder(tmp_path / "data", count=6)
    tuned, _, replaying = run_all(spec_in(tmp_path, text=KEEPERS), tmp_path / "out")
    assert [line["domain"] for line in tuned.times if line["what"] == "pass"] == ["red", "blue"]
    same, slow = (slowed(replaying, tmp_path / str(factor), factor) for factor in (1, 3))
    for what in ("learning", "answering"):
        usual = costs([tuned, same], what)
        assert usual["finetune"] == pytest.approx(1.0)
        assert costs([tuned, slow], what)["er"] == pytest.approx(usual["er"])
    both = [slowed(run, tmp_path / f"{run.label}-old", 1, passes=False) for run in (tuned, replaying)]
    spent = [sum(line["processor_seconds"] for line in run.times if line["what"] == "learn") for run in both]
    assert costs(both, "learning")["er"] == pytest.approx(spent[1] / spent[0])


def surveyed(run: Run, place: Path, seconds: float) -> Run:
    """The same run, as if it had looked at the features of each domain for so long before it learned."""
    place.mkdir()
    for line in run.times:
        looked = {"of_it": {"survey": {"processor_seconds": seconds}}} if line["what"] == "learn" else {}
        more = seconds if looked else 0.0
        append_line(place / TIMES, line | {"processor_seconds": line["processor_seconds"] + more} | looked)
    return Run(place, run.about, run.records)


def test_features_cost_the_same_whether_they_were_in_the_cache_or_not(tmp_path: Path) -> None:
    toy_folder(tmp_path / "data", count=6)
    tuned, _, replaying = run_all(spec_in(tmp_path, text=KEEPERS), tmp_path / "out")
    plain, found, made = (surveyed(replaying, tmp_path / str(took), took) for took in (0.0, 0.001, 7.0))
    costing = {run.folder.name: costs([tuned, run], "learning")["er"] for run in (plain, found, made)}
    assert costing["7.0"] == pytest.approx(costing["0.001"]) == pytest.approx(costing["0.0"])
    assert costing["0.0"] > costs([tuned, slowed(replaying, tmp_path / "none", 1)], "learning")["er"]  # a pass more


def test_a_report_escapes_what_others_named(ran: tuple[Path, Spec]) -> None:
    run = read_runs([ran[0] / "out"])[0]
    evil = "<script>alert(1)</script>|*x*"
    about = json.loads(json.dumps(run.about))
    about |= {"label": evil, "experiment": evil}
    page = contents([replace(run, about=about)])
    assert "<script" not in html(page)
    assert "\\<script>alert(1)\\</script>\\|\\*x\\*" in markdown(page)


def test_runs_that_cannot_be_compared_stand_apart(ran: tuple[Path, Spec]) -> None:
    runs = read_runs([ran[0] / "out"])
    about = json.loads(json.dumps(runs[0].about))
    about["data"]["tests"][0]["sha256"] = "0" * 64
    text = markdown(contents([*runs, replace(runs[0], about=about)]))
    assert "## Part 2 of 2" in text
    apart = contents([*runs, replace(runs[0], about=about)], look_at())
    assert apart.sections[-1].title == "The images", "of all parts, and in none of them"
    assert contents(runs, look_at()).sections[1].title == "The images"
    changed = json.loads(json.dumps(runs[0].about))
    changed["settings"]["rank"] = 77
    changed["digest"] = "abcdef" + changed["digest"][6:]
    text = markdown(contents([*runs, replace(runs[0], about=changed)]))
    assert "bpg (abcdef)" in text  # the same label with other settings is no further seed
    changed = json.loads(json.dumps(runs[0].about)) | {"method": "other", "digest": "fedcba"}
    assert "bpg (fedcba)" in markdown(contents([*runs, replace(runs[0], about=changed)]))
    unfinished = replace(runs[0], records=runs[0].records[:1])
    assert "is not finished: 1 of 2 domains" in markdown(contents([*runs[1:], unfinished]))
    assert "is not finished: 0 of 2" in markdown(contents([replace(runs[0], records=())]))


def test_chance_is_a_constant_answer_and_some_luck(ran: tuple[Path, Spec]) -> None:
    runs = {(run.label, run.seed): run for run in read_runs([ran[0] / "out"])}
    assert stuck_at_chance(runs["still", 0])
    assert stuck_at_chance(runs["bpg", 0]) == []


def test_a_run_stopped_over_its_portrait_draws_it_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy_folder(tmp_path / "data", count=10)
    spec = spec_in(tmp_path, "methods={bpg={rank=2, optimisation={epochs=1}}}", "seeds=[0]")

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bpg.experiments.runner.portrait", stopped)
        with pytest.raises(KeyboardInterrupt):
            run_all(spec, tmp_path / "out")
    (unfinished,) = read_runs([tmp_path / "out"])
    assert not unfinished.finished
    (run,) = run_all(spec, tmp_path / "out")
    assert run.finished
    assert run.portrait is not None
    assert len(run.portrait["answers"]) == 6
    assert set(run.portrait["map"]["prototypes"]) == {"red", "blue"}
    for damage in ("{", "[]", '{"answers": [{}], "map": {}}', '{"answers": [], "map": {"points": {"red": [1]}}}'):
        (run.folder / "portrait.json").write_text(damage)
        with pytest.warns(UserWarning, match=r"portrait.json is left out"):
            page = contents(read_runs([tmp_path / "out"]))
        assert "Some answers" not in {section.title for section in page.sections}
    (run.folder / "portrait.json").write_text('{"answers": [], "map": {"points": {}, "prototypes": {}}}')
    assert "Results" in html(contents(read_runs([tmp_path / "out"])))
