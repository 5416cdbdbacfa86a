"""The paper's tables and figures from the records of runs, each with what the paper prints beside it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bpg.experiments.manifest import data_name
from bpg.experiments.paper import Item, Setup, run
from bpg.experiments.records import ABOUT, Run, read_run
from bpg.experiments.scale import STREAMS, Job, Stream, paper
from bpg.experiments.workshop import read_survey
from bpg.metrics import Counts
from bpg.report.blocks import Block, Cell, Figure, Heat, Page, Section, Table
from bpg.report.contents import Group, spread
from bpg.report.html import html
from bpg.report.latex import document, latex
from bpg.report.markdown import markdown
from bpg.report.plots import draw

DIFFERENCE, ORIGIN = "difference", "Where the numbers come from"
AVERAGE = (
    "A_T is pooled over all test images after the last domain, F_T averages what old domains lost over later steps; "
    "with several seeds, mean ± standard deviation. Numbers of the paper on other data stand beside ours for "
    "orientation: no difference is taken. Differences within our own runs are taken seed by seed."
)
AVERAGES = (
    "average: how A_T is taken, pooled over all test images or as the mean over test sets; not said: unknown of the "
    "paper's number, so that there is no difference to take."
)


@dataclass
class Results:
    """What the jobs of the items have left, and the paper's own numbers."""

    setup: Setup
    folders: Mapping[str, Path]  # by the key of a job that is done
    lacking: Mapping[str, str]  # why one cannot be done here, by its key
    paper: dict[str, Any] = field(default_factory=paper)
    whole: bool = False  # at the paper's own scale: differences to its numbers mean something
    latency: Mapping[str, Any] | None = None  # what `bpg.bench.answering` measured

    def run(self, job: Job) -> Run | None:
        """The finished run of a job."""
        folder = self.folders.get(job.key)
        found = read_run(folder) if folder is not None else None
        return found if found is not None and found.finished else None

    def group(self, jobs: Iterable[Job]) -> Group | None:
        """The finished runs of jobs that differ by their seed."""
        runs = [found for job in jobs if (found := self.run(job)) is not None]
        return Group(runs[0].label, tuple(runs)) if runs else None

    def of(self, stream: Stream, label: str) -> Group | None:
        """The runs of one of a stream's methods, over seeds."""
        known = label.replace("-prompts", "").replace("-lora", "") in stream.labels
        return self.group(run(stream, label, seed) for seed in self.setup.scale.seeds) if known else None

    def survey(self, job: Job) -> Mapping[str, Any] | None:
        """What a survey found."""
        folder = self.folders.get(job.key)
        return read_survey(folder) if folder is not None else None

    def named(self, *surveys: Job) -> dict[str, str]:
        """Where what surveys found is written, by the r_0 they are for."""
        folders = {_rule(job): folder for job in surveys if (folder := self.folders.get(job.key)) is not None}
        return {name: f"{folder.parent.name}/{folder.name}" for name, folder in folders.items()}

    def why(self, stream: Stream, label: str) -> str:
        """Why there are no runs of a method."""
        if label not in stream.labels:
            return "needs CLIP weights, not at this scale" if _on_clip(label) else "not at this scale"
        jobs = [run(stream, label, seed) for seed in self.setup.scale.seeds]
        return next((self.lacking[job.key] for job in jobs if job.key in self.lacking), "not run")

    def apart(self, ours: Sequence[float], printed: float | None) -> Cell:
        """By how much ours differs from the paper's; nothing where the data is other data."""
        if not self.whole or printed is None or not ours or any(value != value for value in ours):
            return None
        return f"{fmean(ours) - printed:+.2f}"


def measured(group: Group | None, way: str, measure: Callable[[Counts], float]) -> list[float]:
    """A measure of each seed; empty where nothing ran, or a run does not have this way."""
    answered = group is not None and all(way in run.records[-1]["ways"] for run in group.runs)
    return group.over_seeds(measure, way) if group is not None and answered else []


def gained(group: Group | None, way: str, base: Group | None, own: str, measure: Callable[[Counts], float]) -> Cell:
    """How much more a measure is for `group` answering in a way than for `base` in its `own`, within a seed."""

    def by_seed(of: Group | None, by: str) -> dict[int, float]:
        found = measured(of, by, measure)
        return dict(zip((run.seed for run in of.runs), found, strict=True)) if of is not None and found else {}

    after, before = by_seed(group, way), by_seed(base, own)
    gains = [gain for seed in after if seed in before and not isnan(gain := after[seed] - before[seed])]
    if not gains:
        return None
    text = f"{round(fmean(gains), 2) + 0.0:+.2f}"  # no minus before a zero
    return text + (f" ± {stdev(gains):.2f}" if len(gains) > 1 else "")


def told(values: Sequence[float]) -> Cell:
    """The mean over seeds with its standard deviation; None where nothing ran or nothing is defined."""
    return spread(values) if values else None


def printed(value: Any) -> Cell:
    """A number of the paper, with its standard deviation where it has one."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return f"{value['mean']:.2f} ± {value['std']:.2f}" if "std" in value else f"{value['mean']:.2f}"
    return f"{value:.2f}"


def mean_of(value: Any) -> float | None:
    """The mean of such a number."""
    if value is None:
        return None
    return float(value["mean"]) if isinstance(value, Mapping) else float(value)


def compared(results: Results, columns: Sequence[str], rows: Sequence[Sequence[Cell]], **more: Any) -> Table:
    """A table of paper, ours and their difference; without the difference where the data is other data."""
    keep = [at for at, name in enumerate(columns) if results.whole or name != DIFFERENCE]
    return Table([columns[at] for at in keep], [[row[at] for at in keep] for row in rows], **more)


def sources(groups: Mapping[str, Group | None], others: Mapping[str, str] | None = None) -> list[Table]:
    """Which runs the rows of a table come from, and which surveys and files."""
    rows: list[list[Cell]] = [
        [name, ", ".join(f"{r.folder.parent.name}/{r.folder.name}" for r in group.runs)]
        for name, group in groups.items()
        if group is not None
    ]
    rows += [[name, place] for name, place in (others or {}).items()]
    return [Table(["row", "runs"], rows, title=ORIGIN)] if rows else []


def _rule(survey: Job) -> str:
    r0 = survey.document["methods"]["bpg"].get("r0")
    return f"survey, r_0 = {r0}" if r0 is not None else "survey"


def _on_clip(label: str) -> bool:
    return label.endswith("-clip") or label == "s_liprompts"


def protocols(results: Results) -> list[Table]:
    """What stands for each of the paper's benchmarks, as the runs say it themselves."""
    names: dict[str, list[str]] = {}
    for name, stream in results.setup.streams.items():
        names.setdefault(stream.document("bpg")["name"], []).append(STREAMS[name])
    counts: Counter[tuple[Cell, ...]] = Counter()
    for folder in results.folders.values():
        if not (folder / ABOUT).is_file():
            continue  # a survey
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        data = about["data"]
        what = (
            " and ".join(names.get(about["experiment"], [])),
            data_name(data),
            " → ".join(domain["name"] for domain in data["domains"]),
            sum(domain["train"]["images"] for domain in data["domains"]),
            sum(test["images"] for test in data["tests"]),
            about["backbone"]["name"],
            data.get("protocol") or "the backbone's own",
        )
        counts[what] += 1
    columns = ["stands for", "data", "order", "training images", "test images", "backbone", "pixels", "runs"]
    rows: list[list[Cell]] = [[*what, runs] for what, runs in sorted(counts.items(), key=str)]
    return [Table(columns, rows, title="Protocol", folded=False)] if rows else []


def reproduction(items: Sequence[Item], results: Results) -> dict[str, Section]:
    """A section for each item."""
    from bpg.report.paper_figures import FIGURES
    from bpg.report.paper_tables import TABLES

    makers = TABLES | FIGURES
    found = {}
    for item in items:
        text, made, warnings = makers[item.name](results)
        blocks = [replace(b, folded=b.title == ORIGIN) if isinstance(b, Table) else b for b in made]
        stands = _stands(item, results)
        found[item.name] = Section(
            item.title, [f"The paper's {item.kind} {item.label}. {stands}", *text], blocks, warnings
        )
    return found


def _stands(item: Item, results: Results) -> str:
    names = [item.stream] if item.stream else ["domainnet", *(n for n in STREAMS if n in results.setup.streams)]
    notes = dict.fromkeys(s.note for n in names if n and (s := results.setup.streams.get(n)) is not None and s.note)
    missing = [STREAMS[name] for name in names if name and name not in results.setup.streams]
    lacks = f"Nothing stands in for {', '.join(missing)} at this scale." if missing else ""
    return " ".join(part for part in (f"Here {'; '.join(notes)}." if notes else "", lacks) if part)


def write_reproduction(items: Sequence[Item], scale: str, results: Results, out: Path) -> list[Path]:
    """Write every item as Markdown, LaTeX and figures, and all on one HTML page; the files a reader starts from."""
    sections = reproduction(items, results)
    head = Section("What this is", [results.setup.scale.note, AVERAGE], protocols(results))
    page = Page(f"bpg: the paper at the scale {Path(scale).stem}", [head, *sections.values()])
    tables, figures = out / "tables", out / "figures"
    for folder in (tables, figures):
        folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, str] = {}
    everything = [latex(table, caption=f"{results.setup.scale.note} {AVERAGE}") for table in protocols(results)]
    for name, section in sections.items():
        fragments = [
            _as_comment(block) for block in section.blocks if isinstance(block, Table) and block.title == ORIGIN
        ]
        for number, block in enumerate(section.blocks, start=1):
            if isinstance(block, Figure):
                stem = name if sum(isinstance(b, Figure) for b in section.blocks) == 1 else f"{name}-{number}"
                draw(block, figures, stem)
                drawn[block.title] = f"figures/{stem}.png"
            elif isinstance(block, Table | Heat) and block.title != ORIGIN:
                caption = f"{section.title}: {block.title}" if block.title else section.title
                fragments.append(latex(block, caption=caption, label=f"tab:{name}-{number}"))
        if fragments:
            everything += fragments
            (tables / f"{name}.tex").write_text("\n".join(fragments), encoding="utf-8")
    (out / "tables.tex").write_text(document(*everything), encoding="utf-8")
    files = [out / "report.md", out / "report.html"]
    for file, text in zip(files, (markdown(page, drawn), html(page)), strict=True):
        file.write_text(text, encoding="utf-8", errors="backslashreplace")
    return files


def _as_comment(block: Table) -> str:
    return "".join(f"% {row}: {runs}\n" for row, runs in block.rows)


Made = tuple[Sequence[str], Sequence[Block], Sequence[str]]  # text, blocks, warnings of a section
