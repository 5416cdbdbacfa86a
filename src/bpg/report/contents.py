"""What a report says: sections from the records of runs."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from bpg.config import flat_dict
from bpg.experiments.manifest import data_name
from bpg.experiments.records import WAYS, Run
from bpg.metrics import (
    Counts,
    average_accuracy,
    forgetting,
    incremental_accuracy,
    learning_accuracy,
    mean_accuracy,
)
from bpg.registry import DATASETS
from bpg.report.blocks import (
    Answer,
    Answers,
    Block,
    Cell,
    Curves,
    Heat,
    Page,
    Picture,
    Pictures,
    Scatter,
    Section,
    Table,
)
from bpg.report.pictures import Look

MOST_CLASSES = 30  # beyond these, the hardest and the easiest are shown
MOST_PICTURES = 12  # classes of a test set
POINTS = 120  # of a training curve


@dataclass(frozen=True)
class Group:
    """One method with its settings, over its seeds."""

    name: str
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def ways(self) -> list[str]:
        return self.first.ways

    @property
    def own(self) -> str:
        return self.ways[0]

    def over_seeds(self, measure: Callable[[Counts], float], way: str) -> list[float]:
        return [measure(run.counts(way)) for run in self.runs]

    def pooled(self, way: str) -> list[dict[str, Any]]:
        """The last tallies of each test set, counts added up over seeds."""
        return [_added(tests) for tests in zip(*(run.last(way) for run in self.runs), strict=True)]


def contents(runs: Sequence[Run], look: Look | None = None) -> Page:
    """The report of `runs`. What cannot be compared stands in parts of its own.

    `look` gives the pictures of the data set; without it there are none.
    """
    parts: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        parts[json.dumps(_protocol(run), sort_keys=True)].append(run)
    sections: list[Section] = []
    for number, members in enumerate(parts.values(), start=1):
        if len(parts) > 1:
            text = ["Not to be compared with the other parts, and in no table with them."]
            text += _differences(next(iter(parts.values()))[0], members[0]) if number > 1 else []
            sections.append(Section(f"Part {number} of {len(parts)}", text))
        sections += _part(members, look)
    if look is not None:
        sections.insert(1 if len(parts) == 1 else len(sections), _images(runs, look))
    names = sorted({str(run.about["experiment"]) for run in runs})
    return Page(f"bpg: {', '.join(names)}", sections)


def _part(runs: Sequence[Run], look: Look | None) -> list[Section]:
    finished = groups([run for run in runs if run.finished])
    routable = [group for group in finished if "oracle" in group.ways]
    sections = [_summary(runs, finished), _costs(finished)]
    if any(_has_own(group) for group in routable):
        sections.append(_generality([group for group in routable if _has_own(group)]))
    if routable:
        sections.append(_routing(routable))
    sections += [section for group in finished if (section := _capacity(group)) is not None]
    sections.append(Section("Accuracy matrices", [MATRIX], [b for group in finished for b in _matrices(group)]))
    sections.append(_kept(finished))
    if routable:
        sections += _portraits(routable, look)
        text = "Which domain the router holds likeliest, of the test images of each, after the last domain."
        sections.append(Section("Domain confusion", [text], [_confusion(group) for group in routable]))
        text = "How many experts spoke for an image, in percent of the test images, after the last domain."
        sections.append(Section("Experts per image", [text], [_experts(routable)]))
    sections.append(_classes(finished))
    sections.append(_curves(finished))
    sections.append(_provenance(runs))
    return [section for section in sections if section.blocks or section.warnings]


MATRIX = "Rows: after learning this domain. Columns: test set. Percent right; the mean over seeds."


def groups(runs: Sequence[Run]) -> list[Group]:
    """Runs of one method and settings, over seeds. A label with two settings gets a mark."""
    found: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        key = {name: value for name, value in run.about["settings"].items() if name != "seed"}
        found[run.label, json.dumps([run.about["method"], key, run.about["options"]], sort_keys=True)].append(run)
    labels = [label for label, _ in found]
    made = []
    for (label, _), members in found.items():
        twice = labels.count(label) > 1
        name = f"{label} ({members[0].about['digest'][:6]})" if twice else label
        made.append(Group(name, tuple(sorted(members, key=lambda run: run.seed))))
    return sorted(made, key=lambda group: (group.first.about["method"] != "bpg", group.name))


def stuck_at_chance(run: Run) -> list[str]:
    """The domains that a run learned no better than a constant answer, and how it stands on them."""
    found = []
    own = run.ways[0]
    for record in run.records:
        for test in record["ways"][own]:
            if test["domain"] != record["learned"] or not test["total"]:
                continue
            totals = [total for _, total in test["classes"].values()]
            chance = max([1 / max(1, len(run.about["data"]["classes"])), *(n / test["total"] for n in totals)])
            margin = 2 * math.sqrt(chance * (1 - chance) / test["total"])
            share = test["correct"] / test["total"]
            if len(totals) > 1 and share <= chance + margin:
                where = f"{test['name']} {100 * share:.1f} % of {test['total']}"
                found.append(f"{where}, where one answer for all has {100 * chance:.1f} %")
    return found


def _summary(runs: Sequence[Run], finished: Sequence[Group]) -> Section:
    order = runs[0].order
    columns = ["method", "answers by", "A_T", "mean", "A_bar", "F_T", "just learned", "model MB", "seeds"]
    rows: list[list[Cell]] = []
    for group in sorted(finished, key=lambda group: -fmean(group.over_seeds(average_accuracy, group.own))):
        for way in group.ways:
            measures = (average_accuracy, mean_accuracy, incremental_accuracy, forgetting, learning_accuracy)
            values = [spread(group.over_seeds(measure, way)) for measure in measures]
            stored = group.first.records[-1]["stored_bytes"] / 1e6
            rows.append([group.name, way, *values, stored, len(group.runs)])
    warnings = []
    for group in finished:
        for run in group.runs:
            stuck = stuck_at_chance(run)
            if stuck:
                warnings.append(
                    f"{group.name}, seed {run.seed}, cannot be told from chance once learned: {'; '.join(stuck)}."
                )
    for run in runs:
        if not run.finished:
            done = run.records[-1]["stage"] if run.records else 0
            warnings.append(
                f"{run.label}, seed {run.seed}, is not finished: {done} of {len(order)} domains. It is left out."
            )
    backbone = runs[0].about["backbone"]["name"]
    text = [
        f"{' → '.join(order)}, {len(runs[0].about['data']['classes'])} classes, on {backbone}.",
        "Who is right most often, by the method's own way to answer, comes first.",
        "A_T: percent right over all test images after the last domain (pooled). mean: over test sets. A_bar: the mean "
        "of A_1 to A_T. F_T: what old domains lost, on average over later steps; lower is better. just learned: the "
        "mean over domains right after each. model MB: all that the model keeps beside the backbone, images and what "
        "routers need among it. With several seeds: mean ± standard deviation.",
    ]
    return Section("Results", text, [Table(columns, rows)] if rows else [], warnings)


def _costs(finished: Sequence[Group]) -> Section:
    """What each method trains and stores, and what it costs beside fine-tuning."""
    base = next((group for group in finished if group.first.about["method"] == "finetune"), None)
    rows: list[list[Cell]] = []
    for group in finished:
        last = group.first.records[-1]
        trained = [time["trained"] for time in group.first.times if "trained" in time]
        ratios = [spread(found) if (found := _over(group, base, what)) else None for what in ("learn", "answer")]
        routing = last.get("routing_bytes", 0)
        stored = [_stored_numbers(last), (last["stored_bytes"] - routing) / 1e6]
        kept = [routing / 1e6 if routing else None, _kept_images(last)]
        rows.append([group.name, max(trained) if trained else None, *stored, *kept, *ratios])
    if not any(row[1] is not None for row in rows):  # of runs before this was noted, or of none
        return Section("What it costs")
    text = [
        "trained: parameters in the largest training of a domain. stored: numbers after the last domain, the frozen "
        "backbone and kept images aside. stored MB: with kept images; those that are only referred to count by their "
        "paths alone, though the files must stay for the method to go on learning. routing MB: where the domains lie, "
        "at several depths, so that any router can answer for the method; it is not counted as stored, nor is its "
        "making as learning. Who answers by the nearest prototype needs those of the last depth, a sixth of it. "
        "learning, answering: time over fine-tuning's with the same seed, on a CPU the processor's, each counted in "
        "passes through the frozen backbone that were timed beside it, so that machines of several speeds can be "
        "compared; answering by the method's own way, images prepared before. Frozen features that a method learns "
        "from are counted as one pass of each image, whether they were computed or found in the cache. Times of one "
        "seed are good to about a quarter."
    ]
    columns = ["method", "trained", "stored", "stored MB", "routing MB", "kept images", "learning", "answering"]
    return Section("What it costs", text, [Table(columns, rows)])


def _stored_numbers(record: Mapping[str, Any]) -> int | None:
    """None of a record from before kept files were told apart: there, each of their bytes is a number."""
    if record.get("kept_images") and "kept_as" not in record:
        return None
    return int(record["stored_numbers"]) - int(record.get("routing_numbers", 0))


def _kept_images(record: Mapping[str, Any]) -> Cell:
    count = int(record.get("kept_images", 0))
    return f"{count:,} referred to" if record.get("kept_as") == "references" else count


def _over(group: Group, base: Group | None, what: str) -> list[float]:
    """Time of learning a stream, or of answering, over that of `base`, for each seed with passes timed beside both, or
    for all, if there are none.
    """
    theirs = {run.seed: run for run in base.runs} if base is not None else {}
    timed: list[float] = []
    untimed: list[float] = []
    for run in group.runs:
        its = theirs.get(run.seed)
        passes = [_seconds(each, "pass") if each is not None else None for each in (run, its)]
        if its is None or not (its_pass := passes[1] or _seconds(its, "answer")):  # fine-tuning's answers are passes
            continue
        my_pass = passes[0] or its_pass  # who has none is taken to have run beside it
        mine, usual = _seconds(run, what, my_pass), _seconds(its, what, its_pass)
        if mine and usual:
            (timed if all(passes) else untimed).append(mine / my_pass / (usual / its_pass))
    return timed or untimed


def _seconds(run: Run, what: str, a_pass: float = 0.0) -> float | None:
    """Of learning the stream, where images pass in `a_pass`; of answering or passing an image."""
    lines = [time for time in run.times if time["what"] == what]
    key = "processor_seconds" if run.about["machine"]["device"] == "cpu" else "seconds"
    if not lines or any(key not in time for time in lines):
        return None
    if what != "learn":
        return float(sum(time[key] for time in lines) / sum(time["images"] for time in lines))
    return float(sum(time[key] - _routing_time(time, key) + _not_cached(time, key, a_pass) for time in lines))


def _not_cached(time: Mapping[str, Any], key: str, a_pass: float) -> float:
    """What a survey would have taken more if none of its features had been in the cache; below zero, where images had
    to be decoded first.
    """
    spent: Mapping[str, Any] = time.get("of_it", {})
    return float(time["images"] * a_pass - spent["survey"][key]) if "survey" in spent else 0.0


def _routing_time(time: Mapping[str, Any], key: str) -> float:
    """Of learning a domain, the seconds that went into finding out where it lies."""
    spent: Mapping[str, Any] = time.get("of_it", {})
    return float(spent.get("routing", spent.get("prototypes", {})).get(key, 0.0))


def _has_own(group: Group) -> bool:
    return "own" in group.ways and "soft" in group.ways


def _generality(with_own: Sequence[Group]) -> Section:
    """BPG-Inference in the place of each method's own."""
    columns = ["method", "A_T own", "A_T BPG's", "difference", "F_T own", "F_T BPG's", "difference", "A_T calibrated"]
    rows: list[list[Cell]] = []
    for group in with_own:
        cells: list[Cell] = []
        for measure in (average_accuracy, forgetting):
            own, plugged = (group.over_seeds(measure, way) for way in ("own", "soft"))
            apart = [its - mine for mine, its in zip(own, plugged, strict=True)]
            cells += [spread(own), spread(plugged), spread(apart)]
        rows.append([group.name, *cells, spread(group.over_seeds(average_accuracy, "calibrated"))])
    text = [
        "The same trained methods, answering by their own inference and by BPG's (soft: prototypes, threshold, weighted"
        " logits); differences within a seed. calibrated: the mixture that `bpg learn` answers by."
    ]
    return Section("BPG-Inference in other methods", text, [Table(columns, rows)])


CALIBRATED = "calibrated: the mixture at a temperature that follows from the domains, over probabilities. "


def _routing(routable: Sequence[Group]) -> Section:
    ways = [way for way in WAYS if way != "own" and all(way in group.ways for group in routable)]
    columns = ["method", *ways, "soft - hard", "oracle - soft", "domain found", "right elsewhere"]
    rows: list[list[Cell]] = []
    for group in routable:
        reached = {way: group.over_seeds(average_accuracy, way) for way in ways}
        gain = [soft - hard for soft, hard in zip(reached["soft"], reached["hard"], strict=True)]
        gap = [oracle - soft for oracle, soft in zip(reached["oracle"], reached["soft"], strict=True)]
        found, elsewhere = [], []
        for run in group.runs:
            tests = [test for test in run.last(group.own) if test["domain"] in run.order]
            if group.own == "own" and any(int(n) > 1 for test in tests for n in test["experts"]):
                tests = []  # its own inference mixes what domains have, and sends no image to one of them
            total = sum(test["total"] for test in tests)
            right = sum(test["chosen"].get(test["domain"], 0) for test in tests)
            found.append(100 * right / total if total else math.nan)
            missed = total - right
            elsewhere.append(100 * sum(t["right_elsewhere"] for t in tests) / missed if missed else math.nan)
        rows.append([group.name, *(spread(values) for values in (*reached.values(), gain, gap, found, elsewhere))])
    text = [
        f"A_T in percent, the same experts under {'four' if 'calibrated' in ways else 'three'} routers. "
        f"{CALIBRATED if 'calibrated' in ways else ''}soft: the mixture of those who are let through. hard: "
        "the nearest domain's expert. oracle: told the domain. domain found: how often the domain that the method "
        "holds likeliest is the true one. right elsewhere: of the images sent to another domain's expert, the share it "
        "gets right.",
        _error_of(routable[0]),
    ]
    return Section("Soft, hard, oracle", text, [Table(columns, rows)])


def _error_of(group: Group) -> str:
    counts = group.first.counts("soft")
    total = sum(counts.total)
    share = average_accuracy(counts) / 100
    error = 100 * math.sqrt(max(share * (1 - share), 0) / total) if total else math.nan
    return f"One standard error of a single A_T over {total:,} test images is {error:.1f} points."


def _capacity(group: Group) -> Section | None:
    facts: Mapping[str, Any] = group.first.records[-1]["facts"]
    if not facts or any(not {"rank", "parameters", "images"} <= set(f) for f in facts.values()):
        return None
    columns = ["domain", "images", "s_t", "between", "within", "r_t", "parameters", "MB"]
    rows: list[list[Cell]] = []
    for name in group.first.order:
        f = facts[name]
        measured = [f.get(key) for key in ("separability", "between", "within")]
        texts: list[Cell] = [None if value is None else f"{value:.4f}" for value in measured]
        rows.append([name, f["images"], *texts, f["rank"], f["parameters"], f["parameters"] * 4 / 1e6])
    images, parameters = (sum(f[key] for f in facts.values()) for key in ("images", "parameters"))
    rows.append(["all", images, None, None, None, None, parameters, parameters * 4 / 1e6])
    s = group.first.about["settings"]
    rule = f"r_t = {s['rank']} for every domain" if s.get("rank") else "r_t = s_0 r_0 / s_t"
    symbols = (("r_0", "r0"), ("s_0", "s0"), ("lambda", "lam"), ("estimator", "estimator"))
    known = ", ".join(f"{symbol} = {s[name]}" for symbol, name in symbols if s.get(name))
    text = [f"{rule} ({known}). s_0 is the backbone's known one where none is set."]
    return Section(f"Capacity plan of {group.name}", text, [Table(columns, rows)])


def _matrices(group: Group) -> list[Block]:
    ways = [way for way in group.ways if way != "oracle"]
    found: list[Block] = []
    for way in ways:
        title = f"{group.name}, {way}" if len(ways) > 1 else group.name
        found.append(Heat(title, "after ↓ on →", group.first.order, group.first.tests, _grid(group, way)))
    return found


def _grid(group: Group, way: str) -> list[list[float | None]]:
    """The accuracy matrix, the mean over seeds."""
    grids = [run.counts(way).accuracies for run in group.runs]
    return [
        [_mean([float(grid[i, j]) for grid in grids]) for j in range(grids[0].shape[1])] for i in range(len(grids[0]))
    ]


def _kept(finished: Sequence[Group]) -> Section:
    """What becomes of old domains as new ones are learned."""
    first = finished[0].first if finished else None
    if first is None or not first.of_domains or len(first.order) < 2:
        return Section("What is kept")
    oldest, old = {}, {}
    for group in finished:
        grid = _grid(group, group.own)
        oldest[group.name] = [(stage, row[0]) for stage, row in enumerate(grid, start=1)]
        old[group.name] = [(stage, _mean(row[: stage - 1])) for stage, row in enumerate(grid, start=1) if stage > 1]
    text = [f"In percent of the test images, by the number of domains learned: {', '.join(first.order)}."]
    titles = {f"{first.order[0]}, learned first": oldest, "all domains learned before the newest": old}
    return Section(
        "What is kept", text, [Curves(t, _defined(lines), "right", "domains", 100) for t, lines in titles.items()]
    )


def _defined(lines: Mapping[str, Sequence[tuple[int, float | None]]]) -> dict[str, list[tuple[float, float]]]:
    known = {name: [(float(x), y) for x, y in points if y is not None] for name, points in lines.items()}
    return {name: points for name, points in known.items() if points}


def _portraits(routable: Sequence[Group], look: Look | None) -> list[Section]:
    """Some answers, and where the domains lie, of the first seed of each method."""
    answers: list[Block] = []
    maps: list[Block] = []
    for group in routable:
        drawn = group.first.portrait
        if drawn is None:
            continue
        points, marks = (
            {name: [(x, y) for x, y in pairs] for name, pairs in drawn["map"][kind].items()}
            for kind in ("points", "prototypes")
        )
        names = sorted({*points, *marks})  # in both, so that a domain has one colour
        shown = [_answer(group.first, answer, look) for answer in drawn["answers"]]
        answers.append(Answers(group.name, shown, names))
        maps.append(Scatter(group.name, points, marks, names))
    said = "Test images whose domain nobody told. Bars: the weight of each domain's expert; who has none was silent."
    where = (
        "Frozen features of test images, seen so that the domains' centres lie as far apart as they can. Rings: the "
        "prototypes that an image's distance to a domain is measured from."
    )
    return [Section("Some answers", [said], answers), Section("Where the domains lie", [where], maps)]


def _answer(run: Run, answer: Mapping[str, Any], look: Look | None) -> Answer:
    address = look(run, answer["path"]) if look is not None else None
    picture = Picture(answer["true"], address) if address is not None else None
    said = (answer[key] for key in ("test", "true", "label", "probability", "weights"))
    return Answer(picture, *said)


def _images(runs: Sequence[Run], look: Look) -> Section:
    """An image of each class of each test set, and whose images are gone."""
    notes, blocks = [], []
    for run in {(run.about["data"]["root"], data_name(run.about["data"])): run for run in runs}.values():
        found = []
        for test in run.about["data"]["tests"]:
            samples = list(test["samples"].items())[:MOST_PICTURES]
            shown = [Picture(label, address) for label, path in samples if (address := look(run, path)) is not None]
            if shown:
                found.append(Pictures(test["name"], shown))
        blocks += found
        name = data_name(run.about["data"])
        if not found:
            notes.append(f"The images of {name} are not shown: they are not found. --data says where they lie.")
        elif run.about["data"].get("benchmark") in DATASETS and DATASETS[name].credit:
            notes.append(DATASETS[name].credit)
    return Section("The images", notes, blocks)


def _confusion(group: Group) -> Heat:
    tests = group.pooled(group.own)
    domains = sorted({name for test in tests for name in test["chosen"]} | set(group.first.order))
    values = [[100 * test["chosen"].get(name, 0) / test["total"] for name in domains] for test in tests]
    return Heat(group.name, "from ↓ held for →", [test["name"] for test in tests], domains, values)


def _experts(routable: Sequence[Group]) -> Table:
    most = max(len(group.first.order) for group in routable)
    rows: list[list[Cell]] = []
    for group in routable:
        for way in (way for way in WAYS[:-1] if way in group.ways):
            counts: dict[int, int] = defaultdict(int)
            for test in group.pooled(way):
                for number, images in test["experts"].items():
                    counts[int(number)] += images
            total = sum(counts.values())
            mean = sum(number * images for number, images in counts.items()) / total
            rows.append([group.name, way, mean, *(100 * counts[n] / total for n in range(1, most + 1))])
    return Table(["method", "answers by", "mean", *map(str, range(1, most + 1))], rows)


def _classes(finished: Sequence[Group]) -> Section:
    """Accuracy of each class over all test sets, and of the first method by test set."""
    shares: dict[str, dict[str, float]] = {}
    for group in finished:
        sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for test in group.pooled(group.own):
            for name, (right, total) in test["classes"].items():
                sums[name][0] += right
                sums[name][1] += total
        shares[group.name] = {name: 100 * right / total for name, (right, total) in sums.items()}
    if not shares:
        return Section("Accuracy by class")
    first = finished[0]
    names = sorted(shares[first.name], key=lambda name: shares[first.name][name])
    text = ["Percent right after the last domain, over all seeds."]
    if len(names) > MOST_CLASSES:
        half = MOST_CLASSES // 2
        text.append(f"Of {len(names)} classes, the {half} that {first.name} finds hardest and the {half} easiest.")
        names = names[:half] + names[-half:]
    else:
        names = sorted(names)
    grid = [[shares[group.name].get(name) for name in names] for group in finished]
    blocks = [Heat("all test sets", "method ↓ class →", [group.name for group in finished], names, grid)]
    tests = first.pooled(first.own)
    each = [
        [100 * test["classes"][n][0] / test["classes"][n][1] if n in test["classes"] else None for n in names]
        for test in tests
    ]
    blocks.append(Heat(f"{first.name}, {first.own}", "test ↓ class →", [test["name"] for test in tests], names, each))
    return Section("Accuracy by class", text, blocks)


def _curves(finished: Sequence[Group]) -> Section:
    blocks = []
    for group in finished:
        lines = {name: _thinned(group.first.curves[name]) for name in group.first.order if name in group.first.curves}
        if lines:
            blocks.append(Curves(f"{group.name}, seed {group.first.seed}", lines))
    return Section("Training curves", ["The training loss by step, averaged over neighbouring steps."], blocks)


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    size = max(1, len(points) // POINTS)
    if len(points) > 20:
        size = max(size, 4)
    pieces = [points[start : start + size] for start in range(0, len(points), size)]
    return [(fmean(step for step, _ in piece), fmean(loss for _, loss in piece)) for piece in pieces]


def _provenance(runs: Sequence[Run]) -> Section:
    about = runs[0].about
    columns = ["run", "method", "seed", "learning", "testing", "bpg", "torch", "python", "system", "device", "threads"]
    rows: list[list[Cell]] = []
    for run in runs:
        v, m = run.about["versions"], run.about["machine"]
        spent = {what: sum(t["seconds"] for t in run.times if t["what"] == what) / 60 for what in ("learn", "test")}
        minutes = [f"{spent[what]:.1f} min" for what in ("learn", "test")]
        rows.append(
            [
                run.folder.name,
                run.about["method"],
                run.seed,
                *minutes,
                v["bpg"],
                v["torch"],
                v["python"],
                m["system"],
                m["device"],
                m["threads"],
            ]
        )
    data: list[list[Cell]] = []
    tests = {test["domain"]: test for test in about["data"]["tests"]}
    for domain in about["data"]["domains"]:
        test = tests.get(domain["name"])
        train = domain["train"]
        bad = len(train["unreadable"]) + (len(test["unreadable"]) if test else 0)
        held = [test["images"], test["sha256"][:12]] if test else [None, None]
        data.append([domain["name"], train["images"], train["sha256"][:12], *held, bad])
    data += [
        [t["name"], None, None, t["images"], t["sha256"][:12], len(t["unreadable"])]
        for t in about["data"]["tests"]
        if t["domain"] is None
    ]
    backbone = about["backbone"]
    text = [
        f"Backbone {backbone['name']}, sha256 {backbone['sha256']}, {backbone['precision']}, "
        f"{backbone['preprocessing']['size']} pixels.",
        *about["data"]["left_out"],
    ]
    given = {what: about["data"].get(what) for what in ("variant", "order", "protocol")}
    text += [f"{what.capitalize()} of the data: {value}." for what, value in given.items() if value is not None]
    settings = [
        Table(
            ["setting", "value"],
            [[key, str(value)] for key, value in flat_dict(group.first.about["settings"]).items() if key != "seed"],
            title=f"Settings of {group.name}",
        )
        for group in groups(runs)
    ]
    columns_of_data = ["domain", "training images", "sha256", "test images", "sha256", "unreadable"]
    return Section("What ran on what", text, [Table(columns, rows), Table(columns_of_data, data), *settings])


def spread(values: Sequence[float]) -> Cell:
    """The mean of a measure over seeds, with its standard deviation where there are several."""
    if any(math.isnan(value) for value in values):
        return None
    if len(values) == 1:
        return values[0]
    return f"{fmean(values):.2f} ± {stdev(values):.2f}"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and not math.isnan(value)]
    return fmean(known) if known and len(known) == len(values) else None


def _added(tests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Tallies of one test set by several seeds, as one."""
    added: dict[str, Any] = {"name": tests[0]["name"], "domain": tests[0]["domain"]}
    added |= {key: sum(test[key] for test in tests) for key in ("correct", "total", "right_elsewhere")}
    for key in ("chosen", "experts"):
        added[key] = {
            name: sum(test[key].get(name, 0) for test in tests) for name in {n for t in tests for n in t[key]}
        }
    added["classes"] = {
        name: [sum(test["classes"][name][i] for test in tests) for i in (0, 1)] for name in tests[0]["classes"]
    }
    return added


def _protocol(run: Run) -> dict[str, Any]:
    """What must be the same for two runs to stand in one table, by what it is called."""
    data, backbone = run.about["data"], run.about["backbone"]
    return {
        "order of domains": run.order,
        "test sets": [test["name"] for test in data["tests"]],
        "images to learn from": {d["name"]: [d["train"]["images"], d["train"]["sha256"]] for d in data["domains"]},
        "images to test on": {t["name"]: [t["images"], t["sha256"]] for t in data["tests"]},
        "backbone": backbone["sha256"],
        "pixels": backbone["preprocessing"],
        "precision": backbone["precision"],
        "protocol": data.get("protocol") or "the backbone's own",
        "tested on domains not yet learned": run.about["unseen"],
    }


def _differences(first: Run, other: Run) -> list[str]:
    """In what the protocol of `other` differs from that of `first`."""
    found = []
    asked = ("benchmark", "variant")
    here_all, there_all = (
        {f"{what} of the data": run.about["data"].get(what) for what in asked} | _protocol(run)
        for run in (other, first)
    )
    for (what, here), there in zip(here_all.items(), there_all.values(), strict=True):
        if here == there:
            continue
        if isinstance(here, dict):
            keys = sorted(key for key in {*here, *there} if here.get(key) != there.get(key))
            some = [f"{key} {_short(here.get(key))}, not {_short(there.get(key))}" for key in keys[:3]]
            found.append(f"Other {what} than part 1: {'; '.join(some)}{' and more' if len(keys) > 3 else ''}.")
        else:
            found.append(f"Another {what} than part 1: {_short(here)}, not {_short(there)}.")
    return found


def _short(value: Any) -> str:
    """A value of a protocol in a sentence; digests by their beginning."""
    if isinstance(value, list):
        return ", ".join(_short(each) for each in value) or "none"
    return str(value)[:12] if isinstance(value, str) and len(value) == 64 else str(value)
