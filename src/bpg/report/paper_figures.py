"""The paper's figures from our runs: motivation, hidden dimension, t-SNE by hidden dimension."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isclose
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from bpg.data.decode import decode
from bpg.data.files import read
from bpg.errors import BPGError
from bpg.experiments.manifest import place_of
from bpg.experiments.maps import BORDER, SEARCHED
from bpg.experiments.paper import adaptive, equivalent, run, uniform
from bpg.experiments.records import Run
from bpg.metrics import Counts, average_accuracy, forgetting
from bpg.report.blocks import (
    Block,
    Case,
    Cases,
    Cell,
    Cloud,
    Clouds,
    Figure,
    Line,
    Lines,
    Panel,
    Point,
    Strips,
    Table,
    Vote,
)
from bpg.report.contents import Group
from bpg.report.reproduction import Made, Results, gained, measured, sources, told

if TYPE_CHECKING:
    from bpg.report.blocks import Pixels

SHOWN = 3  # domains of the motivation: the easiest, one between, the hardest
STRIP = 6  # pictures of a domain


def ranks(results: Results) -> Made:
    """A_T and F_T over the hidden dimension, uniform and adaptive at the same number of parameters."""
    setup = results.setup
    used: dict[str, Group | None] = {}
    seeds = setup.scale.seeds
    equal = {r0: equivalent(setup, r0) for r0 in setup.scale.r0s}
    grid = sorted({*setup.scale.ranks, *(r for r in equal.values() if r is not None)})
    even = {r: results.group(uniform(setup.first, r, seed) for seed in seeds) for r in grid}
    sized = {r0: results.group(adaptive(setup, r0, seed) for seed in seeds) for r0 in setup.scale.r0s}
    used |= {f"uniform, r = {r}": group for r, group in even.items()}
    used |= {f"adaptive, r_0 = {r0}": group for r0, group in sized.items()}
    if not any(used.values()):
        return [], [], ["There are no runs of ours here."]
    panels, rows = [], []
    known = {r: group for r, group in even.items() if group is not None}
    failed = {r: counts for r, group in known.items() if (counts := _not_learned(group))[0]}
    for title, measure in (("A_T", average_accuracy), ("F_T", forgetting)):
        lines = [
            Line("uniform", [_point(r, group, measure) for r, group in known.items() if r not in failed]),
            Line(
                "adaptive (BPG-Adapter)",
                [
                    _point(float(r), group, measure, note=f"r₀ = {r0}")
                    for r0, group in sized.items()
                    if group is not None and (r := equal[r0]) is not None
                ],
            ),
        ]
        lines = [line for line in lines if line.points]
        across, up = "hidden dimension $r$, or the mean of $r_t$", f"${title}$, percent"
        panels.append(Lines(lines, across, up, log2=True, beside=True))
    for name, group in used.items():
        if group is not None:
            cells = [told(measured(group, way, m)) for way in ("hard", "soft") for m in (average_accuracy, forgetting)]
            size = next((equal[r0] for r0, its in sized.items() if its is group), None)
            rows.append([name, size, *cells, len(group.runs)])
    columns = ["model", "mean r_t", "A_T hard", "F_T hard", "A_T mixed", "F_T mixed", "seeds"]
    caption = (
        "Hard selection, as in the paper's figure; mean and standard deviation over seeds where there are several. "
        "Adaptive points stand at the mean of their r_t, moved a little to the right, beside the uniform ones."
    )
    notes = []
    if failed:
        told_of = ", ".join(f"{some} of {every} at r = {r}" for r, (some, every) in failed.items())
        notes = [f"Experts that have not learned, right on fewer than twice as many images as by guessing: {told_of}."]
        caption += f" Left out, since not every expert there has learned: {', '.join(f'r = {r}' for r in failed)}."
    its = results.paper["uniform_vs_adaptive_domainnet_hard"]
    named = {
        "uniform_64": "uniform, r = 64",
        "uniform_256": "uniform, r = 256",
        "bpg_adapter_r0_64": "adaptive, r_0 = 64",
    }
    theirs: list[list[Cell]] = [[name, its[key].get("A_T"), its[key].get("F_T")] for key, name in named.items()]
    blocks: list[Block] = [
        Figure("Hidden dimension", [panels], caption=caption),
        Table(columns, rows, title="Ours", notes=notes),
        *_equal_size(sized, even, equal),
        *_by_domain(known, _separability(results)),
        Table(["model", "A_T hard", "F_T hard"], theirs, title="What the paper prints of its figure, on DomainNet"),
        *sources(
            used,
            results.named(
                *(setup.first.survey(seeds[0], r0=r0) for r0 in setup.scale.r0s), setup.first.survey(seeds[0])
            ),
        ),
    ]
    return [], blocks, []


def _equal_size(
    sized: Mapping[int, Group | None], even: Mapping[int, Group | None], equal: Mapping[int, int | None]
) -> list[Block]:
    """What adapting r to the domains brings over one r for all with as many parameters."""
    rows: list[list[Cell]] = []
    for r0, group in sized.items():
        r = equal[r0]
        if group is None or r is None or even[r] is None:
            continue
        gains = [
            gained(group, way, even[r], way, measure)
            for way in ("hard", "soft")
            for measure in (average_accuracy, forgetting)
        ]
        rows.append([f"r_0 = {r0} over r = {r}", *gains])
    columns = ["model", "A_T hard", "F_T hard", "A_T mixed", "F_T mixed"]
    title, note = "Ours, adaptive over uniform of the same size, within a seed", "Less F_T is better."
    return [Table(columns, rows, title=title, notes=[note])] if rows else []


def _not_learned(group: Group) -> tuple[int, int]:
    """How many experts are right on fewer than twice as many test images as by guessing, and of how many."""
    tests = [
        (test["correct"] / test["total"], len(run.about["data"]["classes"]))
        for run in group.runs
        for test in run.last("oracle")
        if test["total"]
    ]
    return sum(right * classes < 2 for right, classes in tests), len(tests)


def _by_domain(known: Mapping[int, Group], separable: Mapping[str, float]) -> list[Block]:
    """Which r suits each domain, the easiest first."""
    if not known or not separable:
        return []
    rows: list[list[Cell]] = []
    for domain in sorted(separable, key=lambda name: -separable[name]):
        right = {r: [_own_accuracy(run, domain) for run in group.runs] for r, group in known.items()}
        top = max(fmean(values) for values in right.values())
        best = ", ".join(str(r) for r, values in right.items() if isclose(fmean(values), top))
        rows.append([domain, f"{separable[domain]:.3f}", *(told(values) for values in right.values()), best])
    columns = ["domain", "s_t", *(f"r = {r}" for r in known), "best r"]
    note = "The easiest domain first. Percent right of a domain's test images by its own expert."
    return [Table(columns, rows, title="Ours, by domain", notes=[note])]


def _point(x: float, group: Group, measure: Callable[[Counts], float], note: str = "") -> Point:
    values = measured(group, "hard", measure)
    return Point(float(x), fmean(values), stdev(values) if len(values) > 1 else 0.0, note)


def tsne(results: Results) -> Made:
    """What the expert of each domain makes of its test images, by hidden dimension."""
    setup = results.setup
    runs = {r: results.run(uniform(setup.first, r, setup.scale.seeds[0])) for r in setup.scale.drawn}
    known = {r: found for r, found in runs.items() if found is not None and found.maps is not None}
    unseen = [f"r = {r}" for r, found in runs.items() if found is not None and found.maps is None]
    lacking = [f"Maps are missing of {', '.join(unseen)}: their models were not kept."] if unseen else []
    if not known:
        return [], [], lacking or ["There are no runs of ours here."]
    order = next(iter(known.values())).order
    clouds = [[_cloud(found, domain, "expert") for domain in order] for found in known.values()]
    names = _classes(next(iter(known.values())))
    separable = _separability(results)
    columns = [f"{domain}\ns = {separable[domain]:.3f}" if domain in separable else domain for domain in order]
    caption = (
        "Features of the test images under the expert of their own domain, a point an image, a colour a class. Percent "
        "right by that expert; solid frame: the best r of the domain, dashed: the second best."
    )
    figure = Figure(
        "t-SNE by hidden dimension", [[Clouds(clouds, columns, [f"r = {r}" for r in known], names)]], caption
    )
    used = {f"r = {r}": Group("", (found,)) for r, found in known.items()}
    return [], [figure, *sources(used, results.named(setup.first.survey(setup.scale.seeds[0])))], lacking


def _cloud(found: Run, domain: str, what: str) -> Cloud | None:
    drawn = (found.maps or {"tests": {}})["tests"].get(domain)
    if drawn is None or what not in drawn:
        return None
    points = [(float(x), float(y)) for x, y in drawn[what]]
    return Cloud(points, drawn["labels"], _own_accuracy(found, domain) if what == "expert" else None)


def _own_accuracy(found: Run, domain: str) -> float:
    """Of a domain's expert on the domain's test images: the oracle asks nobody else."""
    test = next(test for test in found.last("oracle") if test["domain"] == domain)
    return 100 * float(test["correct"]) / float(test["total"])


def _classes(found: Run) -> list[str]:
    tests = (found.maps or {"tests": {}})["tests"]
    names: list[str] = next(iter(tests.values()))["classes"] if tests else []
    return names if len(names) <= 12 else []


def _separability(results: Results) -> dict[str, float]:
    found = results.survey(results.setup.first.survey(results.setup.scale.seeds[0]))
    domains = found["domains"] if found is not None else []
    return {d["name"]: d["separability"] for d in domains if d["separability"] is not None}


def motivation(results: Results) -> Made:
    """(a) the domains, (b) their frozen features, (c) the best r of each, (d) images between two domains."""
    setup = results.setup
    seed = setup.scale.seeds[0]
    found = results.run(run(setup.first, "bpg", seed))
    separable = _separability(results)
    if found is not None and found.maps is None:
        return [], [], ["Maps are missing of our run: its model was not kept."]
    if found is None or found.maps is None or not separable:
        return [], [], ["There is no run of ours here."]
    easiest = sorted((name for name in found.order if name in separable), key=lambda name: -separable[name])
    domains = list(dict.fromkeys([easiest[0], easiest[len(easiest) // 2], easiest[-1]]))[:SHOWN]
    rows: list[Sequence[Panel]] = []
    strips = {name: pictures for name in domains if (pictures := _pictures(found, name))}
    if strips:
        rows.append([Strips(strips, title="Domains, the easiest first")])
    columns = [f"{name}\ns = {separable[name]:.3f}" for name in domains]
    frozen = [_cloud(found, name, "frozen") for name in domains]
    rows.append([Clouds([frozen], columns, names=_classes(found), title="Frozen features", framed=False)])
    runs = {r: results.run(uniform(setup.first, r, seed)) for r in setup.scale.drawn}
    lines = [
        Line(name, [Point(float(r), _own_accuracy(its, name)) for r, its in runs.items() if its is not None])
        for name in domains
    ]
    if any(line.points for line in lines):
        across, up, title = "hidden dimension $r$", "percent right, less its best", "The best r of each domain"
        rows.append([Lines(lines, across, up, title, log2=True, best="highest", relative=True)])
    cases = [case for answer in found.maps["border"] if (case := _case(found, answer)) is not None]
    if cases:
        rows.append(
            [Cases(cases, sorted(found.order), title="Test images that are nearest to a border between domains")]
        )
    caption = (
        f"(c) accuracy of each domain's own expert, of one seed. (d) of {SEARCHED} test images of each domain the one "
        f"whose two likeliest domains are nearest to equally likely, of these the {BORDER} nearest, chosen by that "
        "alone: the weights of hard selection and the mixture, and what each answers."
    )
    used = {"bpg": Group("", (found,))} | {f"r = {r}": Group("", (its,)) for r, its in runs.items() if its is not None}
    return [], [Figure("Motivation", rows, caption), *sources(used, results.named(setup.first.survey(seed)))], []


def _pictures(found: Run, domain: str) -> list[Pixels]:
    test = next((t for t in found.about["data"]["tests"] if t["domain"] == domain), None)
    paths = list(test["samples"].values())[:STRIP] if test else []
    return [pixels for path in paths if (pixels := _pixels(found, path)) is not None]


def _pixels(found: Run, path: str) -> Pixels | None:
    try:
        return decode(read(place_of(found.about["data"]) / path), where=path).permute(1, 2, 0).numpy()
    except (OSError, BPGError):
        return None  # the data is elsewhere


def _case(found: Run, answer: dict[str, Any]) -> Case | None:
    pixels = _pixels(found, str(answer["path"]))
    if pixels is None:
        return None
    votes = {way: Vote(**answer[way]) for way in ("hard", "soft")}
    return Case(pixels, str(answer["test"]), str(answer["true"]), votes)


FIGURES: dict[str, Callable[[Results], Made]] = {"motivation": motivation, "ranks": ranks, "tsne": tsne}
