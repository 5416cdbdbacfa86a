"""The paper's tables and figures: which jobs they need at each scale, and what they say of records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bpg.cli.reproduction import seconds_left
from bpg.errors import ModelError, WrongUse
from bpg.experiments.cost import sizes_of
from bpg.experiments.grid import Grid, Standing
from bpg.experiments.paper import ITEMS, Setup, adaptive, equivalent, jobs_of, run, uniform
from bpg.experiments.records import read_run
from bpg.experiments.scale import SCALES, STREAMS, Job, Scale, paper, read_scale, streams_of
from bpg.experiments.workshop import SURVEY, read_survey
from bpg.metrics import average_accuracy
from bpg.registry import METHODS
from bpg.report.blocks import Figure, Lines, Table, shown
from bpg.report.paper_figures import FIGURES
from bpg.report.paper_tables import DOMAINS, TABLES
from bpg.report.reproduction import Results, gained, measured
from tests.unit.test_paper import HARD, SOFT, TESTS, counts

LABELS = {
    "tab:separability_domainnet", "tab:separability_cddb", "tab:separability_core50", "tab:domainnet", "tab:cddb",
    "tab:core50", "tab:ab_component", "tab:ab_other_method", "tab:tuning", "tab:detail_bpg_inference",
    "tab:ab_bpg_inference_weight", "tab:efficiency_params", "tab:efficiency_train", "sec:efficiency", "fig:intro_fig",
    "fig:ab_r", "fig:tsne",
}  # fmt: skip


def setup(scale: str, surveys: Mapping[str, Any] | None = None) -> Setup:
    read = read_scale(scale)
    return Setup(read, streams_of(read), lambda job: (surveys or {}).get(job.key))


def results(scale: str, folders: Mapping[str, Path] | None = None) -> Results:
    return Results(setup(scale), folders or {}, {}, whole=scale == "paper")


def table(name: str, found: Results, title: str = "") -> list[dict[str, str]]:
    """The rows of an item's table, as they are shown."""
    _, blocks, _ = TABLES[name](found)
    (block,) = [b for b in blocks if isinstance(b, Table) and (b.title.startswith(title) if title else not b.title)]
    names = [f"{n} {at}" if block.columns.count(n) > 1 else n for at, n in enumerate(block.columns)]
    return [dict(zip(names, map(shown, row), strict=True)) for row in block.rows]


@pytest.fixture
def printed(tmp_path: Path) -> Results:
    """The paper's own matrices as if they were three runs of ours on DomainNet."""
    made = setup("paper")
    folders = {}
    for seed in made.scale.seeds:
        job = run(made.first, "bpg", seed)
        folders[job.key] = tmp_path / f"bpg-seed{seed}-000000000000"
        write_run(folders[job.key], job, {"soft": SOFT, "hard": HARD, "oracle": SOFT, "threshold+l2": SOFT})
    return Results(made, folders, {}, whole=True)


def write_run(folder: Path, job: Job, ways: Mapping[str, tuple[tuple[float, ...], ...]]) -> None:
    """Records that give the printed percentages."""
    folder.mkdir()
    names = DOMAINS["domainnet"]
    about = {
        "format": 1, "label": job.label, "seed": job.seed, "method": "bpg", "digest": "0" * 64, "options": {},
        "settings": {}, "experiment": "domainnet", "machine": {"device": "cuda"}, "backbone": {"name": "ViT-B/16"},
        "data": {
            "benchmark": "domainnet", "root": None, "protocol": "s-prompts", "classes": [],
            "domains": [{"name": name, "test": True, "train": {"images": 1}} for name in names],
            "tests": [{"name": n, "domain": n, "images": size} for n, size in zip(names, TESTS, strict=True)],
        },
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(about))
    lines = []
    for stage in range(6):
        told: dict[str, list[dict[str, Any]]] = {}
        for way, matrix in ways.items():
            right = counts(matrix).correct[stage]
            told[way] = [
                {"name": n, "domain": n, "correct": right[at], "total": TESTS[at], "experts": {}}
                for at, n in enumerate(names[: stage + 1])
            ]
        lines.append(json.dumps({"stage": stage + 1, "learned": names[stage], "own": "soft", "ways": told}))
    (folder / "records.jsonl").write_text("\n".join(lines))


def test_every_table_and_figure_of_the_paper_is_an_item_with_a_maker() -> None:
    assert {item.label for item in ITEMS.values()} == LABELS
    assert set(TABLES) | set(FIGURES) == set(ITEMS)


@pytest.mark.parametrize("scale", SCALES)
def test_every_job_of_a_scale_can_be_built(scale: str) -> None:
    jobs = jobs_of(ITEMS.values(), setup(scale))
    assert len({job.key for job in jobs}) == len(jobs)
    for job in jobs:
        _, cell = job.spec()
        METHODS[cell.method].Settings(**cell.values)
        assert (cell.label, cell.seed) == (job.label, job.seed)


def test_scales_differ_in_settings_alone() -> None:
    """What `bpg run` would run is the same run: an item asks for the settings as they ship."""
    small = setup("small")
    job = run(small.first, "pina", 0)
    assert job.document["methods"]["pina"] == small.first.document("pina")["methods"]["pina"]
    lora = run(small.first, "bpg-lora", 0).document["methods"]["bpg-lora"]
    own = small.first.document("bpg")["methods"]["bpg"]
    assert lora == {k: v for k, v in own.items() if k != "ways"} | {"method": "bpg", "expert": {"parts": "lora"}}


def test_a_uniform_model_of_equal_size_is_asked_for_once_the_domains_are_surveyed() -> None:
    before = setup("small")
    assert equivalent(before, 4) is None
    survey = before.first.survey(0, r0=4)
    after = setup("small", {survey.key: {"domains": [{"rank": 9}, {"rank": 12}]}})
    assert equivalent(after, 4) == 11  # 10.5, halves up
    wanted = {job.key for job in jobs_of([ITEMS["ranks"]], after)}
    assert uniform(after.first, 11, 2).key in wanted
    assert adaptive(after, 16, 1).key == run(after.first, "bpg", 1).key  # the stream's own r_0


def test_every_row_of_the_paper_is_a_method_here_or_says_that_it_is_none() -> None:
    rows = [row for stream in STREAMS for row in paper()["main"][stream]]
    ours = {row["ours"] for row in rows if row["ours"]}
    variants = {"bpg-clip": "bpg", "pina-clip": "pina", "l2p-memory": "l2p"}
    assert {variants.get(label, label) for label in ours} <= set(METHODS)
    assert {row["average"] for row in rows} == {"pooled", "mean", None}
    for name in STREAMS:
        shown_rows = table(f"main-{name}", results("paper"))
        assert len(shown_rows) == len(paper()["main"][name])
        assert all(row["A_T paper"] != "-" for row in shown_rows)
        assert {row["remark"] for row in shown_rows if row["method"].startswith("ICON")} <= {"not implemented yet"}


def test_capacity_and_sizes_give_the_papers_digits_without_any_data() -> None:
    rows = table("parameters", results("paper"), "From the paper's s_t")
    its = paper()["parameter_budget_domainnet"]
    for at, row in enumerate(rows[:6]):
        assert row["r_t"] == row["r_t paper"] == str(its["r"][at])
        assert row["adapters, M"] == f"{its['adapter_M'][at]:.2f}"
        assert row["in all, M"] == f"{its['domain_total_M'][at]:.2f}"
    assert [row["adapters, M"] for row in rows[6:]] == ["27.63", "7.14", "28.39"]
    assert [row["in all, M"] for row in rows[6:]] == ["29.27", "8.78", "30.02"]  # 29.26 and 8.77 printed: a footnote
    _, blocks, _ = TABLES["parameters"](results("paper"))
    assert any("29.267" in note for block in blocks if isinstance(block, Table) for note in block.notes)


def test_the_papers_own_matrix_differs_by_nothing_from_the_paper(printed: Results) -> None:
    bpg = next(r for r in table("main-domainnet", printed) if r["method"] == "BPG" and r["backbone"] == "vit")
    assert (bpg["average"], bpg["A_T ours"], bpg["difference 7"]) == ("pooled", "72.19 ± 0.00", "+0.00")
    assert bpg["F_T ours"] == "0.24 ± 0.00"
    rows = {row["weights"]: row for row in table("weighting", printed)}
    assert rows["hard selection"]["A_T ours"] == "68.33 ± 0.00"
    assert rows["Thres+L1"]["over hard, paper"] == "+3.86"
    assert rows["Thres+L1"]["over hard, ours"] == "+3.86 ± 0.00"
    assert rows["Mean"]["F_T paper"] == rows["Mean"]["F_T ours"] == "-"
    parts = {row["method"]: row for row in table("components", printed, "DomainNet") if row["backbone"] == "vit"}
    assert parts["Baseline + BPG-Adapter"]["A_T ours"] == "68.33 ± 0.00"
    assert parts["Baseline"]["A_T ours"] == "-"
    assert table("matrices", printed, "the paper's, BPG: A_T 72.19, F_T 0.22")
    matrix = table("matrices", printed, "ours, BPG: A_T 72.19 ± 0.00, F_T 0.24 ± 0.00")
    assert matrix[5]["clipart"] == "76.83"
    assert matrix[0]["sketch"] == ""


def test_one_seed_has_heads_of_two_digits(printed: Results) -> None:
    job = run(printed.setup.first, "bpg", 0)
    found = Results(printed.setup, {job.key: printed.folders[job.key]}, {}, whole=True)
    assert table("matrices", found, "ours, hard selection: A_T 68.33, F_T ")


def test_a_survey_of_a_backbone_of_ones_own_is_shown(printed: Results, tmp_path: Path) -> None:
    job = printed.setup.first.survey(0)
    stored = STORED | {"rule": STORED["rule"] | {"s0": None}, "domains": [surveyed("a", 0.5)]}
    (tmp_path / SURVEY).write_text(json.dumps(stored))
    found = Results(printed.setup, {job.key: tmp_path}, {})
    assert table("separability-domainnet", found, "Ours, on ViT-B/16, estimator plain, s_0 = -, r_0 = 64")


def test_gains_are_taken_within_a_seed(printed: Results, tmp_path: Path) -> None:
    setup = printed.setup
    folders = dict(printed.folders)
    for seed in (1, 2):
        job = run(setup.first, "bpg-prompts", seed)
        folders[job.key] = tmp_path / f"prompts-{seed}"
        write_run(folders[job.key], job, {"soft": HARD, "hard": HARD, "oracle": HARD})
    del folders[run(setup.first, "bpg", 2).key]  # seeds 0 and 1 here, 1 and 2 there
    _, blocks, _ = TABLES["components"](Results(setup, folders, {}, whole=True))
    table_of = next(b for b in blocks if isinstance(b, Table) and b.title.startswith("DomainNet"))
    assert any("adapters, mixed +3.86;" in note for note in table_of.notes)  # of seed 1, without a spread
    rows = [dict(zip(table_of.columns, map(shown, row), strict=True)) for row in table_of.rows]
    assert [row["seeds"] for row in rows[:4]] == ["2", "2", "2", "2"]


def test_a_scale_says_what_stands_for_domainnet(tmp_path: Path) -> None:
    text = 'note = "x"\nseeds = [0]\nranks = [2]\ndrawn = [2]\nr0s = [2]\n[streams.cddb]\nconfig = "emoji"\n'
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(WrongUse, match="nothing stands for DomainNet"):
        read_scale(str(tmp_path / "mine.toml"))


def test_a_seed_that_stands_twice_is_refused() -> None:
    values = {"note": "", "ranks": [2], "drawn": [2], "r0s": [2], "streams": {"domainnet": {"config": "emoji"}}}
    with pytest.raises(WrongUse, match="a seed stands twice"):
        Scale(**values, seeds=[0, 1, 0])


def test_a_survey_is_one_job_whoever_asks_for_it() -> None:
    for scale, r0 in (("small", 16), ("paper", 64)):
        first = setup(scale).first
        assert first.survey(0).key == first.survey(0, r0=r0).key
        assert first.survey(0).key != first.survey(0, r0=4).key


def test_the_reference_of_the_rule_stands_before_the_domains() -> None:
    for name in STREAMS:
        first = table(f"separability-{name}", results("paper"), "The paper's")[0]
        assert list(first.values()) == ["ImageNet, t = 0", "0.392", "0.518", "0.756"]


def test_figures_of_one_seed_ask_for_one() -> None:
    made = setup("paper")
    assert {job.seed for job in jobs_of([ITEMS["tsne"]], made)} == {0}
    assert {job.label for job in jobs_of([ITEMS["tsne"]], made)} == {
        "bpg",
        *(f"bpg-r{r}" for r in (4, 16, 64, 256, 1024)),
    }
    assert {job.seed for job in jobs_of([ITEMS["ranks"]], made)} == {0, 1, 2}


def test_the_time_left_follows_from_jobs_of_the_same_kind() -> None:
    first = setup("demo").first
    survey = Standing(first.survey(0), "done", seconds=7)
    ncm, bpg, left = run(first, "ncm", 0), run(first, "bpg", 0), run(first, "bpg", 1)
    assert seconds_left([survey, Standing(ncm, "waiting")], 1) is None  # a survey tells nothing of a run
    known = [survey, Standing(ncm, "done", seconds=10), Standing(bpg, "done", seconds=100)]
    assert seconds_left([*known, Standing(left, "running", seconds=40)], 1) == 60
    assert seconds_left([*known, Standing(run(first, "er", 0), "waiting"), Standing(left, "waiting")], 2) == 100
    assert seconds_left(known, 1) == 0


def test_no_difference_is_taken_across_kinds_of_averages_or_on_other_data(printed: Results, tmp_path: Path) -> None:
    folders = dict(printed.folders)
    for label in ("c_prompt", "pina", "ka_prompt"):
        job = run(printed.setup.first, label, 0)
        folders[job.key] = tmp_path / label
        write_run(folders[job.key], job, {"soft": SOFT, "hard": HARD, "oracle": SOFT})
    found = Results(printed.setup, folders, {}, whole=True)
    rows = {row["method"].rstrip("*"): row for row in table("main-domainnet", found) if row["backbone"] == "vit"}
    last = SOFT[-1]
    mean, pooled = sum(last) / 6, sum(a * t for a, t in zip(last, TESTS, strict=True)) / sum(TESTS)
    assert abs(mean - pooled) > 1  # or nobody could tell which was taken
    assert (rows["PINA"]["average"], rows["PINA"]["A_T ours"]) == ("pooled", f"{pooled:.2f}")
    assert rows["PINA"]["difference 7"] == f"{round(pooled, 2) - float(rows['PINA']['A_T paper'].split()[0]):+.2f}"
    assert (rows["KA-Prompt"]["average"], rows["KA-Prompt"]["A_T ours"]) == ("mean", f"{mean:.2f}")
    assert rows["KA-Prompt"]["difference 7"] == f"{round(mean, 2) - 62.91:+.2f}"
    assert rows["KA-Prompt"]["difference 10"] == "-"  # its authors' F_T
    assert rows["C-Prompt"]["average"].startswith("not said")
    assert (rows["C-Prompt"]["A_T ours"], rows["C-Prompt"]["difference 7"]) == (f"{pooled:.2f}", "-")
    _, blocks, _ = TABLES["generality"](found)
    gains = next(block for block in blocks if isinstance(block, Table) and block.title == "What it brings")
    paper_gain = {str(row[0]): shown(row[1]) for row in gains.rows}
    assert paper_gain["KA-Prompt"] == "-"  # from a mean over domains to a number of an unknown kind
    assert paper_gain["PINA"] != "-"
    assert "difference" not in " ".join(table("main-domainnet", results("demo"))[0])


def test_a_result_that_is_damaged_is_not_done(printed: Results, tmp_path: Path) -> None:
    job, grid = run(printed.setup.first, "bpg", 0), Grid(tmp_path / "out")
    folder = printed.folders[job.key]
    grid.write([job])
    note = tmp_path / "out" / "jobs" / f"{job.key}.json"
    note.write_text(json.dumps({"title": job.title, "state": "done", "run": folder.name}))
    assert grid.standing(job, tmp_path).state == "done"
    records = folder / "records.jsonl"
    whole = records.read_text()
    records.write_text("\n".join(whole.splitlines()[:3]))  # of six domains
    assert grid.standing(job, tmp_path).state == "stopped"
    records.write_text(whole)
    stopped = {"title": job.title, "state": "begun", "seconds": 1.0}
    wrong = [stopped | {key: value} for key, value in (("seconds", "abc"), ("seconds", None), ("state", ["a"]))]
    for text in ("[]", "{", '{"state": "done"}', '{"state": "failed"}', *map(json.dumps, wrong)):
        note.write_text(text)
        assert grid.standing(job, tmp_path).state == "waiting"
    (tmp_path / "out" / "jobs.json").write_text(json.dumps([job.as_dict() | {"document": {}}]))
    with pytest.raises(ModelError, match="cannot be read"):
        grid.jobs()


def test_a_survey_that_is_damaged_is_none_and_told(tmp_path: Path) -> None:
    assert read_survey(tmp_path) is None
    survey = {**STORED, "domains": [surveyed("a", 0.5)]}
    (tmp_path / SURVEY).write_text(json.dumps(survey))
    assert read_survey(tmp_path) == survey
    unsaid = {key: value for key, value in survey.items() if key != "named"}
    odd = [{"domains": [surveyed("a", 0.5) | {key: "many"}]} for key in ("rank", "separability")]
    for wrong in ([], {}, unsaid, *(survey | each for each in ({"rule": {}}, *odd))):
        (tmp_path / SURVEY).write_text(json.dumps(wrong))
        with pytest.warns(UserWarning, match="is left out"):
            assert read_survey(tmp_path) is None
    (tmp_path / SURVEY).write_text("{")
    with pytest.warns(UserWarning, match="is left out"):
        assert read_survey(tmp_path) is None


STORED: dict[str, Any] = {
    "rule": {"r0": 64, "s0": 0.756, "lam": None, "rank": None, "max_rank": 1024, "estimator": "plain"},
    "expert": {}, "named": {"name": "ViT-B/16"}, "backbone": [],
}  # fmt: skip


def surveyed(name: str, separability: float) -> dict[str, Any]:
    """What a survey says of a domain."""
    numbers = {"images": 1, "rank": 4, "parameters": 1, "between": 0.1, "within": 0.2, "separability": separability}
    return {"name": name, "spent": {"pass": {"seconds": 1.0}}, **numbers}


def test_maps_and_records_that_are_damaged_inside_are_told(printed: Results) -> None:
    folder = printed.folders[run(printed.setup.first, "bpg", 0).key]
    drawn = {"classes": ["a"], "labels": [0], "frozen": [[0.0, 1.0]]}
    (folder / "maps.json").write_text(json.dumps({"tests": {"clipart": drawn}, "border": []}))
    assert read_run(folder).maps is not None
    short = drawn | {"expert": [[0.0, 1.0], ["x"]]}
    for tests, border in (({"clipart": {}}, []), ({"clipart": drawn}, [1]), ({"clipart": short}, [])):
        (folder / "maps.json").write_text(json.dumps({"tests": tests, "border": border}))
        with pytest.warns(UserWarning, match=r"maps.json is left out"):
            assert read_run(folder).maps is None
    (folder / "maps.json").unlink()
    records = folder / "records.jsonl"
    first, *rest = map(json.loads, records.read_text().splitlines())
    for ways in ("soft", {"soft": "many"}, {"soft": [{"name": "clipart"}]}):
        records.write_text("\n".join(map(json.dumps, (first | {"ways": ways}, *rest))))
        with pytest.raises(ModelError, match="is no run that can be read"):
            read_run(folder)


def test_a_way_that_a_seed_does_not_have_is_not_measured(printed: Results) -> None:
    folder = printed.folders[run(printed.setup.first, "bpg", 2).key]
    (folder / "records.jsonl").unlink()
    (folder / "run.json").unlink()
    folder.rmdir()
    write_run(folder, run(printed.setup.first, "bpg", 2), {"soft": SOFT, "hard": HARD})
    group = printed.of(printed.setup.first, "bpg")
    assert measured(group, "oracle", average_accuracy) == []
    assert gained(group, "oracle", group, "hard", average_accuracy) is None
    assert gained(group, "soft", group, "hard", average_accuracy) == "+3.86 ± 0.00"


def test_experts_that_have_not_learned_are_told_and_not_drawn(printed: Results, tmp_path: Path) -> None:
    setup, folders = printed.setup, dict(printed.folders)
    chance = tuple(tuple(0.2 for _ in row) for row in SOFT)
    for rank, matrix in ((4, HARD), (16, HARD), (64, chance)):
        job = uniform(setup.first, rank, 0)
        folders[job.key] = tmp_path / f"r{rank}"
        write_run(folders[job.key], job, {"soft": matrix, "hard": matrix, "oracle": matrix})
        about = json.loads((folders[job.key] / "run.json").read_text())
        about["data"]["classes"] = [str(place) for place in range(345)]
        (folders[job.key] / "run.json").write_text(json.dumps(about))
    domains = [surveyed(name, s) for s, name in enumerate(DOMAINS["domainnet"], 1)]
    survey = setup.first.survey(0)
    folders[survey.key] = tmp_path / "survey"
    folders[survey.key].mkdir()
    (folders[survey.key] / SURVEY).write_text(json.dumps(STORED | {"domains": domains}))
    _, blocks, _ = FIGURES["ranks"](Results(setup, folders, {}, whole=True))
    figure = next(block for block in blocks if isinstance(block, Figure))
    assert figure.caption.endswith("has learned: r = 64.")
    panel = figure.rows[0][0]
    assert isinstance(panel, Lines)
    (uniform_line,) = [line for line in panel.lines if line.name == "uniform"]
    assert [point.x for point in uniform_line.points] == [4, 16]
    tables = {block.title: block for block in blocks if isinstance(block, Table)}
    assert "6 of 6 at r = 64" in tables["Ours"].notes[0]
    best = {str(row[0]): row[-1] for row in tables["Ours, by domain"].rows}
    assert next(iter(best)) == DOMAINS["domainnet"][-1]  # the easiest first
    assert set(best.values()) == {"4, 16"}  # as good as each other


def test_what_is_tested_on_unseen_domains_is_one_set() -> None:
    spec, _ = run(setup("demo").streams["core50"], "ncm", 0).spec()
    assert sizes_of(spec).test == (360,)


def test_runs_are_named_below_the_numbers_they_give(printed: Results) -> None:
    rows = table("weighting", printed, "Where the numbers come from")
    assert rows[0]["runs"].count("bpg-seed") == 3
    survey = printed.setup.first.survey(0)
    folders = {**printed.folders, survey.key: Path("toy/survey-123")}
    found = Results(printed.setup, folders, {}, latency={"rows": [], "about": ""})
    named = [row["runs"] for row in table("latency", found, "Where the numbers come from")]
    assert named[1:] == ["latency.json", "toy/survey-123"]


def test_what_is_missing_is_shown_with_the_papers_number_and_the_reason() -> None:
    rows = {(r["method"], r["backbone"]): r for r in table("main-domainnet", results("demo"))}
    assert rows["S-liPrompts", "clip"]["remark"] == "needs CLIP weights, not at this scale"
    assert rows["BPG", "vit"]["remark"] == "not run"
    assert rows["DyTox", "vit"]["A_T paper"] == "62.94"
    for maker in (TABLES | FIGURES).values():  # nothing of ours is there, and nothing fails for it
        maker(results("small"))
