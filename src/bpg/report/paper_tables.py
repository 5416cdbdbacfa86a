"""The paper's tables, one function each: what it prints, what our runs say, and the difference where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bpg.backbones.catalogue import catalogue
from bpg.capacity import allocate
from bpg.experiments.paper import LORA, PROMPTS, run, uniform
from bpg.experiments.scale import STREAMS, Stream
from bpg.metrics import average_accuracy, forgetting, mean_accuracy
from bpg.report.blocks import Cell, Table, shown
from bpg.report.contents import Group
from bpg.report.reproduction import (
    AVERAGES,
    Made,
    Results,
    compared,
    gained,
    mean_of,
    measured,
    printed,
    sources,
    told,
)

DOMAINS = {
    "domainnet": ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
    "cddb": ("gaugan", "biggan", "wild", "whichfaceisreal", "san"),
    "core50": ("s1", "s2", "s4", "s5", "s6", "s8", "s9", "s11"),
}
DEPTH, WIDTH, CLASSES, TOKENS = 12, 768, 345, 10  # of ViT-B/16, DomainNet, and M
WEIGHTINGS = {
    "hard": "hard selection",
    "mean": "Mean",
    "max": "Max",
    "threshold+mean": "Thres+Mean",
    "threshold+l1": "Thres+L1",
    "threshold+l2": "Thres+L2",
}
SAME_WEIGHTS = (
    "Thres+L1 and Thres+L2 weigh an image's experts by the same numbers up to one positive factor, so that both choose "
    "the same class: the same A_T and F_T by construction. The paper prints 72.19 / 0.22 and 72.24 / 0.26, which is "
    "unexplained."
)


ACROSS = (
    "The paper's S-iPrompts on CDDB (74.51) and KA-Prompt on DomainNet (62.91) are means over domains; what is printed "
    "with BPG-Inference beside them is not said to be one. Ours are pooled, so that the two rows of a method compare."
)
GAINS = (
    "The paper's gains are between its own printed numbers, which are of one kind of average on CORe50; elsewhere that "
    "is not said. There is none where one of the two is a mean over domains."
)


def separability(name: str) -> Callable[[Results], Made]:
    """s_t of each domain of a stream."""

    def made(results: Results) -> Made:
        known, names = results.paper["separability"][name], DOMAINS[name]
        stream = results.setup.streams.get(name)
        found = results.survey(stream.survey(results.setup.scale.seeds[0])) if stream is not None else None
        ours = {domain["name"]: domain for domain in found["domains"]} if found else {}
        columns = ["domain", "R_bcs", "R_wcs", "s_t"]
        reference = results.paper["separability"]["imagenet"]
        its: list[list[Cell]] = [["ImageNet, t = 0", *(f"{reference[key]:.3f}" for key in ("bcs", "wcs", "s"))]]
        its += [[domain, *(f"{known[key][at]:.3f}" for key in ("bcs", "wcs", "s"))] for at, domain in enumerate(names)]
        tables = [Table(columns, its, title="The paper's")]
        if found is not None:
            rows: list[list[Cell]] = []
            for domain, row in ours.items():
                values = [row[key] for key in ("between", "within", "separability")]
                rows.append([domain, row["images"], *(None if v is None else f"{v:.3f}" for v in values), row["rank"]])
            tables.append(Table(["domain", "images", *columns[1:], "r_t"], rows, title=_ours(found)))
        text = [
            "Unit-length features of the frozen class token. r_t = s_0 r_0 / s_t; s_0 is that of the images the "
            f"backbone was trained on, t = 0. The paper has r_0 = {known['r0']} here."
        ]
        if results.whole and set(ours) >= set(names):
            rows = []
            for at, domain in enumerate(names):
                mine, s = ours[domain]["separability"], known["s"][at]
                rows.append([domain, f"{s:.3f}", f"{mine:.3f}", f"{mine - s:+.3f}"])
            tables.append(Table(["domain", "s_t, paper", "s_t, ours", "difference"], rows, title="Difference"))
        if stream is not None:
            tables += sources({}, results.named(stream.survey(results.setup.scale.seeds[0])))
        return text, tables, [] if ours else ["There is no survey of ours here."]

    return made


def _ours(found: Mapping[str, Any]) -> str:
    """Whose numbers a survey has, by which estimate, and what r_t follows from."""
    rule, name = found["rule"], found["named"]["name"]
    if rule["rank"] is not None or rule["lam"] is not None:
        follows = f"r_t = {rule['rank']}" if rule["rank"] is not None else f"lambda = {rule['lam']:g}"
    else:
        known = catalogue().get(name)
        s_0 = rule["s0"] if rule["s0"] is not None else known.s_0 if known is not None else None
        follows = f"s_0 = {'-' if s_0 is None else f'{s_0:.3f}'}, r_0 = {rule['r0']}"
    return f"Ours, on {name}, estimator {rule['estimator']}, {follows}"


def main(name: str) -> Callable[[Results], Made]:
    """All methods on a stream."""

    def made(results: Results) -> Made:
        stream = results.setup.streams.get(name)
        rows: list[list[Cell]] = []
        used: dict[str, Group | None] = {}
        for row in results.paper["main"][name]:
            label, upper = row["ours"], row["method"] == "Upper Bound"
            group = results.of(stream, label) if label and stream is not None else None
            remark = _remark(results, stream, row, group)
            way = "" if group is None else "oracle" if upper else group.own
            rows.append([*_named(row), _kept(group), *_compared(results, group, way, row), remark])
            if group is not None:
                used[label] = group
        if stream is not None:
            for label in [label for label in stream.labels if label not in used]:
                group = results.of(stream, label)
                if group is None:
                    continue
                used[label] = group
                blank = {"average": "pooled", "A_T": None, "F_T": None}
                backbone = "clip" if label.endswith("-clip") else "vit"
                cells = _compared(results, group, group.own, blank)
                rows.append([label, backbone, None, _kept(group), *cells, "not in the paper"])
        accuracy, lost = ["A_T paper", "A_T ours", "difference"], ["F_T paper", "F_T ours", "difference"]
        kept = ["kept a class, paper", "kept, ours"]
        columns = ["method", "backbone", *kept, "average", *accuracy, *lost, "seeds", "remark"]
        notes = [AVERAGES, "F_T: what old domains lost, averaged over later steps; lower is better."]
        notes.append("*: as its authors report it; their F_T may be another one, so that there is no difference.")
        notes.append("Upper Bound: BPG's experts, told the domain.")
        blocks = [compared(results, columns, rows, notes=notes), *sources(used)]
        return [], blocks, []

    return made


def _named(row: Mapping[str, Any]) -> list[Cell]:
    star = "*" if row.get("as_reported_by_its_authors") else ""
    return [f"{row['method']}{star}", str(row["backbone"]), int(str(row["buffer_per_class"]))]


def _kept(group: Group | None) -> Cell:
    """Images of a class that our runs keep, on average over classes."""
    if group is None:
        return None
    classes = len(group.first.about["data"]["classes"])
    return round(group.first.records[-1].get("kept_images", 0) / classes) if classes else None


def _remark(results: Results, stream: Stream | None, row: Mapping[str, Any], group: Group | None) -> str:
    if row.get("why_missing"):
        return str(row["why_missing"])
    if row["ours"] is None:
        return "not implemented yet"
    if stream is None:
        return "not at this scale"
    return "" if group is not None else results.why(stream, str(row["ours"]))


def _compared(
    results: Results, group: Group | None, way: str, row: Mapping[str, Any], *, pooled: bool = False
) -> list[Cell]:
    """Average, and paper, ours, difference of A_T and F_T; ours by the paper's kind of average where it is known, or
    `pooled` in any case.
    """
    kind = row["average"]
    alike = kind == "pooled" or (kind == "mean" and not pooled)
    measure = mean_accuracy if alike and kind == "mean" else average_accuracy
    right, lost = measured(group, way, measure), measured(group, way, forgetting)
    return [
        str(kind) if alike else f"{kind or 'not said'}; ours pooled",
        printed(row["A_T"]),
        told(right),
        results.apart(right, mean_of(row["A_T"])) if alike else None,
        printed(row.get("F_T")),
        told(lost),
        # what authors report of themselves may leave out other steps than the paper's F_T does
        None if row.get("as_reported_by_its_authors") else results.apart(lost, mean_of(row.get("F_T"))),
        len(group.runs) if group is not None else None,
    ]


def _streams(results: Results) -> Iterator[tuple[str, str, Stream]]:
    for name, title in STREAMS.items():
        if name in results.setup.streams:
            stream = results.setup.streams[name]
            yield name, f"{title}{f' ({stream.note})' if stream.note else ''}", stream


POOLED = "A_T is pooled over all test images, as BPG's is in the paper's tables of results."
PAIR = ["A_T paper", "A_T ours", "difference", "F_T paper", "F_T ours", "difference", "seeds"]


def _pair(results: Results, group: Group | None, way: str, its: Mapping[str, Any]) -> list[Cell]:
    right, lost = measured(group, way, average_accuracy), measured(group, way, forgetting)
    return [
        printed(its.get("A_T")),
        told(right),
        results.apart(right, mean_of(its.get("A_T"))),
        printed(its.get("F_T")),
        told(lost),
        results.apart(lost, mean_of(its.get("F_T"))),
        len(group.runs) if group is not None else None,
    ]


def components(results: Results) -> Made:
    """Prompts and head alone, with adapters, with the mixture, with both."""
    label_and_way = {
        "Baseline": (PROMPTS, "hard"),
        "Baseline + BPG-Adapter": ("bpg", "hard"),
        "Baseline + BPG-Inference": (PROMPTS, "soft"),
        "BPG": ("bpg", "soft"),
    }
    blocks, used = [], {}
    for name, title, stream in _streams(results):
        rows: list[list[Cell]] = []
        for row in results.paper["ablation_components"]:
            label, way = label_and_way[row["method"]]
            label += "-clip" if row["backbone"] == "clip" else ""
            group = results.of(stream, label)
            rows.append([row["method"], row["backbone"], *_pair(results, group, way, row[name])])
            if group is not None:
                used[f"{title}, {label}"] = group
        notes = [POOLED, *_gains(results, stream)]
        blocks.append(compared(results, ["method", "backbone", *PAIR], rows, title=title, notes=notes))
    text = ["Baseline: prompts and head, no adapters, the nearest domain's expert answers. BPG-Inference: the mixture."]
    return text, [*blocks, *sources(used)], _no_clip(results)


def _gains(results: Results, stream: Stream) -> list[str]:
    """What each component adds within our own runs, seed by seed."""
    both, prompts = results.of(stream, "bpg"), results.of(stream, PROMPTS)
    found = []
    for what, (group, way), (base, own) in (
        ("adapters, hard", (both, "hard"), (prompts, "hard")),
        ("adapters, mixed", (both, "soft"), (prompts, "soft")),
        ("the mixture, without adapters", (prompts, "soft"), (prompts, "hard")),
        ("the mixture, with adapters", (both, "soft"), (both, "hard")),
    ):
        gain = gained(group, way, base, own, average_accuracy)
        if gain is not None:
            found.append(f"{what} {gain}")
    return ["Ours, what is added to A_T within a seed: " + "; ".join(found) + "."] if found else []


def _no_clip(results: Results) -> list[str]:
    if any(label.endswith("-clip") for stream in results.setup.streams.values() for label in stream.labels):
        return []
    return ["The rows of CLIP need its weights, and are not run at this scale."]


def generality(results: Results) -> Made:
    """BPG's inference in the place of other methods' own."""
    names = {"S-iPrompts": "s_iprompts", "PINA": "pina", "C-Prompt": "c_prompt", "KA-Prompt": "ka_prompt"}
    blocks, used = [], {}
    for name, title, stream in _streams(results):
        its = {(row["method"], row["inference"]): row[name] for row in results.paper["generality_of_bpg_inference"]}
        kinds = {row["ours"]: row["average"] for row in results.paper["main"][name]}
        rows: list[list[Cell]] = []
        for method, label in names.items():
            group = results.of(stream, label)
            own = its[method, "own"] | {"average": kinds[label]}
            rows.append([method, *_compared(results, group, _own_way(group), own, pooled=True)])
            plugged = {"F_T": None} | its[method, "bpg-inference"] | {"average": "pooled" if name == "core50" else None}
            rows.append([f"{method} + BPG-Inference", *_compared(results, group, "soft", plugged, pooled=True)])
            if group is not None:
                used[f"{title}, {label}"] = group
        blocks.append(compared(results, ["method", "average", *PAIR], rows, title=title, notes=[AVERAGES, ACROSS]))
        blocks.append(_gain_table(results, stream, its, kinds, names))
    text = ["The same trained parameters, answering by the method's own inference and by BPG's mixture."]
    return text, [*blocks, *sources(used)], []


def _own_way(group: Group | None) -> str:
    """What a method answers by unless it is told otherwise."""
    return group.own if group is not None else ""


def _gain_table(
    results: Results,
    stream: Stream,
    its: dict[tuple[str, str], dict[str, float]],
    kinds: Mapping[str, str | None],
    names: dict[str, str],
) -> Table:
    rows: list[list[Cell]] = []
    for method, label in names.items():
        group = results.of(stream, label)
        cells: list[Cell] = []
        for key, measure in (("A_T", average_accuracy), ("F_T", forgetting)):
            own, plugged = its[method, "own"].get(key), its[method, "bpg-inference"].get(key)
            across = key == "A_T" and kinds[label] == "mean"
            cells.append(f"{plugged - own:+.2f}" if own is not None and plugged is not None and not across else None)
            cells.append(gained(group, "soft", group, _own_way(group), measure))
        rows.append([method, *cells])
    columns = ["method", "gain of A_T, paper", "ours", "change of F_T, paper", "ours"]
    return Table(columns, rows, title="What it brings", notes=[GAINS])


def tuning(results: Results) -> Made:
    """Adapters and LoRA of the same rank."""
    rows_of = (
        (False, False, PROMPTS, PROMPTS, "hard"),
        (True, False, "bpg", LORA, "hard"),
        (True, True, "bpg", LORA, "soft"),
    )
    blocks, used = [], {}
    for name, title, stream in _streams(results):
        its = {
            (r["bpg_adapter"], r["bpg_inference"]): r for r in results.paper["tuning_methods"] if r["dataset"] == name
        }
        rows: list[list[Cell]] = []
        for sized, mixed, adapter, lora, way in rows_of:
            parts = "none" if not sized else "BPG-A + BPG-I" if mixed else "BPG-A"
            for what, label in (("adapter", adapter), ("LoRA", lora)):
                group = results.of(stream, label)
                rows.append([parts, what, *_pair(results, group, way, its[sized, mixed][what.lower()])])
                if group is not None:
                    used[f"{title}, {label}"] = group
        apart = {
            how: gained(results.of(stream, LORA), way, results.of(stream, "bpg"), way, average_accuracy)
            for how, way in (("hard", "hard"), ("mixed", "soft"))
        }
        found = [f"{how} {gain}" for how, gain in apart.items() if gain is not None]
        notes = [POOLED, *([f"Ours, LoRA over adapters within a seed: {'; '.join(found)}."] if found else [])]
        blocks.append(compared(results, ["parts", "tuned by", *PAIR], rows, title=title, notes=notes))
    return ["LoRA on q and v, with the adapters' r_t."], [*blocks, *sources(used)], []


def matrices(results: Results) -> Made:
    """Accuracy on each domain after each, hard and mixed."""
    its, heads = results.paper["accuracy_matrix_domainnet"], results.paper["ablation_weighting_domainnet"]
    blocks: list[Table] = []
    for title, key, head in (("hard selection", "hard_selection", "hard"), ("BPG", "bpg", "threshold+l1")):
        both = f"A_T {printed(heads[head]['A_T'])}, F_T {printed(heads[head]['F_T'])}"
        blocks.append(_triangle(f"the paper's, {title}: {both}", DOMAINS["domainnet"], its[key]))
    group = results.of(results.setup.first, "bpg")
    if group is not None:
        order = group.first.order
        for way in ("hard", "soft"):
            grid = np.mean([each.counts(way).accuracies for each in group.runs], axis=0)
            rows = [[float(grid[stage, at]) for at in range(stage + 1)] for stage in range(len(order))]
            both = ", ".join(
                f"{name} {shown(told(measured(group, way, measure)))}"
                for name, measure in (("A_T", average_accuracy), ("F_T", forgetting))
            )
            blocks.append(_triangle(f"ours, {'BPG' if way == 'soft' else 'hard selection'}: {both}", order, rows))
        blocks += sources({"bpg": group})
    text = [
        "Rows: after learning this domain. Percent right.",
        "The paper's equation of F_T gives 1.585 (hard) and 0.239 (BPG) for its two printed matrices, of one run; "
        "the 1.28 and 0.22 that it prints are means of three seeds. With two domains the mixture is hard selection: of "
        "two confidences only one is above a half.",
    ]
    return text, blocks, [] if group is not None else ["There is no run of ours here."]


def _triangle(title: str, names: Sequence[str], rows: Sequence[Sequence[float]]) -> Table:
    cells: list[list[Cell]] = [
        [name, *(float(value) for value in row), *[""] * (len(names) - len(row))]
        for name, row in zip(names, rows, strict=True)
    ]
    return Table(["after ↓ test →", *names], cells, title=title)


def weighting(results: Results) -> Made:
    """How those who are let through are weighed."""
    its = results.paper["ablation_weighting_domainnet"]
    group = results.of(results.setup.first, "bpg")
    rows: list[list[Cell]] = []
    for key, name in WEIGHTINGS.items():
        way = "soft" if key == "threshold+l1" else key
        gain = gained(group, way, group, "hard", average_accuracy)
        cells = _pair(results, group, way, its[key])
        if key == "mean":
            cells[4] = None  # as in the paper, which has none for it
        rows.append([name, *cells, f"{its[key]['A_T'] - its['hard']['A_T']:+.2f}", gain])
    columns = ["weights", *PAIR, "over hard, paper", "over hard, ours"]
    blocks = [
        compared(results, columns, rows, notes=[POOLED, SAME_WEIGHTS, "Mean has no F_T in the paper."]),
        *sources({"bpg": group}),
    ]
    return ["The same experts of BPG; who speaks and how loud differs."], blocks, []


def parameters(results: Results) -> Made:
    """Capacity from the printed s_t, and what it counts to: no data is needed."""
    known, its = results.paper["separability"]["domainnet"], results.paper["parameter_budget_domainnet"]
    s_0 = results.paper["separability"]["imagenet"]["s"]
    rest = TOKENS * WIDTH + CLASSES * WIDTH + CLASSES
    rows: list[list[Cell]] = []
    adapters = []
    for at, domain in enumerate(DOMAINS["domainnet"]):
        rank = allocate(known["s"][at], lam=s_0 * known["r0"])
        adapters.append(adapter_numbers(rank))
        cells = [rank, its["r"][at], adapters[-1] / 1e6, its["adapter_M"][at]]
        rows.append([domain, f"{known['s'][at]:.3f}", *cells, (adapters[-1] + rest) / 1e6, its["domain_total_M"][at]])
    sums = {"BPG (adaptive, r_0 = 64)": (sum(adapters), its["bpg"])}
    sums |= {f"uniform, r = {r}": (6 * adapter_numbers(r), its[f"uniform_{r}"]) for r in (64, 256)}
    for name, (number, row) in sums.items():
        total = (number + 6 * rest) / 1e6
        rows.append([name, None, None, None, number / 1e6, row["adapter_M"], total, row["total_M"]])
    columns = ["domain", "s_t", "r_t", "r_t paper", "adapters, M", "paper", "in all, M", "paper"]
    notes = [
        "2Ldr + Ld + Lr numbers in the adapters, Md in the prompts, Cd + C in the head; L = 12, d = 768, C = 345, "
        "M = 10.",
        "Two printed sums do not follow from their parts: 29.26 is exactly 29.267, and 8.77 is exactly 8.776.",
    ]
    blocks = [Table(columns, rows, title="From the paper's s_t", notes=notes)]
    for other in ("cddb", "core50"):
        s = results.paper["separability"][other]
        derived: list[list[Cell]] = [
            [domain, f"{s['s'][at]:.3f}", allocate(s["s"][at], lam=s_0 * s["r0"])]
            for at, domain in enumerate(DOMAINS[other])
        ]
        note = ["Derived from the printed s_t; the paper prints r_t for DomainNet alone."]
        blocks.append(Table(["domain", "s_t", "r_t"], derived, title=f"{STREAMS[other]}, r_0 = {s['r0']}", notes=note))
    found = results.survey(results.setup.first.survey(results.setup.scale.seeds[0]))
    if found is not None:
        mine: list[list[Cell]] = [
            [d["name"], None if d["separability"] is None else f"{d['separability']:.3f}", d["rank"], d["parameters"]]
            for d in found["domains"]
        ]
        mine.append(["all", None, None, sum(d["parameters"] for d in found["domains"])])
        blocks.append(Table(["domain", "s_t", "r_t", "numbers"], mine, title=_ours(found)))
    blocks += sources({}, results.named(results.setup.first.survey(results.setup.scale.seeds[0])))
    return ["Capacity and sizes follow from s_t alone."], blocks, []


def adapter_numbers(rank: int) -> int:
    """Of ViT-B/16: 2Ldr + Ld + Lr.

    >>> adapter_numbers(219)
    4048452
    """
    return 2 * DEPTH * WIDTH * rank + DEPTH * WIDTH + DEPTH * rank


def overhead(results: Results) -> Made:
    """How long learning takes, and what BPG adds to it."""
    its = results.paper["training_hours_domainnet"]
    keys = {"uniform_64": "uniform, r = 64", "uniform_256": "uniform, r = 256", "bpg_r0_64": "BPG, adaptive"}
    rows: list[list[Cell]] = []
    for key, name in keys.items():
        hours = [its[key][what] for what in ("training", "separability", "prototypes", "total")]
        rows.append([name, *hours, f"{its[key]['total'] / its['uniform_64']['total']:.3f}"])
    columns = ["model", "training", "separability", "prototypes", "in all", "over r = 64"]
    blocks = [
        Table([*columns[:1], *(f"{c}, h" for c in columns[1:5]), columns[5]], rows, title="The paper's, on a GPU")
    ]
    setup = results.setup
    seed = setup.scale.seeds[0]
    groups = {f"uniform, r = {r}": results.group([uniform(setup.first, r, seed)]) for r in (64, 256)}
    groups["BPG, adaptive"] = results.group([run(setup.first, "bpg", seed)])
    ours: list[list[Cell]] = []
    base: float | None = None
    found = results.survey(setup.first.survey(seed))
    for name, group in groups.items():
        if group is None or found is None:
            continue
        times = [time for time in group.first.times if time["what"] == "learn"]
        clock = "processor_seconds" if group.first.about["machine"]["device"] == "cpu" else "seconds"
        parts = [
            sum(t.get("of_it", {}).get(w, {}).get(clock, 0.0) for t in times) / 60 for w in ("training", "prototypes")
        ]
        parts.insert(1, sum(domain["spent"]["pass"][clock] for domain in found["domains"]) / 60)
        base = base or sum(parts)
        ours.append([name, *parts, sum(parts), f"{sum(parts) / base:.3f}"])
    if ours:
        titles = ["model", "training, min", "one pass, min", "k-means, min", "in all, min", "over the first row"]
        note = [
            "One pass over a new domain gives s_t, the features for k-means and what routing needs; the paper has two. "
            "On a CPU, minutes of its processor. k-means runs at several depths here. The pass is measured on some of "
            "the images, since features of all may come from a cache."
        ]
        blocks.append(Table(titles, ours, title="Ours, learning all domains", notes=note))
    return [], [*blocks, *sources(groups, results.named(setup.first.survey(seed)))], []


def latency(results: Results) -> Made:
    """Time to answer an image: hard selection, the loop over all experts, and the engine."""
    its = results.paper["latency_ms_per_image_domainnet_T6"]
    ratio = its["bpg"] / its["hard"]
    first: list[list[Cell]] = [["hard selection", its["hard"], 1.0], ["BPG, every expert", its["bpg"], ratio]]
    blocks = [Table(["who answers", "ms an image", "over hard"], first, title="The paper's, T = 6, on a GPU")]
    found = results.latency
    if found is not None:
        rows: list[list[Cell]] = [
            [row["name"], row["ms"], row["over_expert"], row["over_hard"]] for row in found["rows"]
        ]
        columns = ["who answers", "ms an image", "over one expert alone", "over hard selection"]
        notes = [found["about"]]
        blocks.append(Table(columns, rows, title="Ours", notes=notes))
        setup = results.setup
        used = results.group([run(setup.first, "bpg", setup.scale.seeds[0])])
        found_at = {"times": "latency.json", **results.named(setup.first.survey(setup.scale.seeds[0]))}
        blocks += sources({"ranks, and experts an image": used}, found_at)
    text = [
        "The paper's 6.45 is a loop over all T experts over one expert without the pass that finds the domain. Hard "
        "selection needs that pass, too: both ratios are given."
    ]
    return text, blocks, [] if found is not None else ["Ours was not measured here."]


TABLES: dict[str, Callable[[Results], Made]] = {
    **{f"separability-{name}": separability(name) for name in STREAMS},
    **{f"main-{name}": main(name) for name in STREAMS},
    "components": components,
    "generality": generality,
    "tuning": tuning,
    "matrices": matrices,
    "weighting": weighting,
    "parameters": parameters,
    "overhead": overhead,
    "latency": latency,
}
