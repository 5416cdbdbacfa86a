"""The parts of the benchmark, and docs/performance.md, which is written from what they found.

Each part is a measurement of a few minutes that is kept as it ends: a run that is stopped loses the part it was at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from bpg.bench import growth, learning, mixtures, reading
from bpg.bench.findings import Found, Ratios, Row, Setting
from bpg.bench.timing import Ratio, best_product, machine
from bpg.errors import WrongUse
from bpg.experiments.records import replace_text
from bpg.report.blocks import Block, Cell, Page, Section, Table
from bpg.report.figure import figure
from bpg.report.markdown import markdown

PARTS: dict[str, Callable[[Setting], Found]] = {
    "engine": mixtures.engine,
    "domains": mixtures.domains,
    "batches": mixtures.batches,
    "choices": mixtures.choices,
    "training": learning.training,
    "data": learning.data,
    "files": reading.files,
    "growth-domains": growth.domains,
    "growth-batches": growth.batch_sizes,
    "growth-ranks": growth.ranks,
    "growth-images": growth.domain_sizes,
}
TITLES = {
    "engine": "The mixture beside what people would use instead",
    "domains": "Many domains",
    "batches": "Single images and large batches",
    "choices": "Faster than exact",
    "training": "Training",
    "data": "Images",
    "files": "Files",
    "growth-domains": "Growth with domains",
    "growth-batches": "Growth with the batch",
    "growth-ranks": "Growth with the rank",
    "growth-images": "Growth with the images of a domain",
}
TEXTS = {
    "engine": (
        "Patches are embedded once; only pairs of image and expert with a weight are run, packed together; the last "
        "block works for the tokens that are read alone. Both the mixture and the loop include the routing pass."
    ),
    "choices": (
        "Ways to answer that trade some of the exact answer for speed. What they cost in answers depends on the model: "
        "bpg evaluate --profile measures it, docs/mixture.md has it for PACS."
    ),
    "training": "With a frozen backbone the ideal is 2: a forward, and a backward without gradients of weights.",
    "data": (
        "JPEG files of noise with the size of photographs. From the second epoch on, training reads decoded images "
        "from a memory-mapped cache. The survey reads, decodes, and embeds each image once."
    ),
    "files": "What bpg data verify and the beginning of bpg run do with files that were not read before.",
    "growth-images": "What learn works out from features that are there, on the CPU; one run each.",
}
INTRODUCTION = (
    "Written by bpg bench. All figures are ratios to a work measured in the same run, in turns with it: the median of "
    "the rounds, then the least and the greatest. GFLOP are the operations of one call as torch counts them, matrix "
    "products and attention; of best is their rate over that of the best large matrix product in the same run. "
    "Weights are random: they are as slow as trained ones, and who speaks on an image is given."
)


def check_parts(names: list[str]) -> list[str]:
    """The parts called `names`, all of them if there are none; WrongUse for one that does not exist."""
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise WrongUse(
            "no such part of the benchmark",
            wanted=", ".join(PARTS),
            came=", ".join(unknown),
            remedy="Name some of them, or none for all.",
        )
    return [name for name in PARTS if name in names] if names else list(PARTS)


def run_part(name: str, setting: Setting) -> Found:
    """Measure the part called `name`."""
    before = best_product(setting.device)
    found = PARTS[name](setting)
    best = max(before, best_product(setting.device))  # a slow moment must not make the others look good
    return replace(found, machine=machine(setting.device) | {"best_gigaflops_per_second": best})


def check_out(out: Path) -> None:
    """Make the folder, and read what is there: what is in the way is told before anything is measured."""
    folder = out / "performance"
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / ".try", "")
    (folder / ".try").unlink()
    dict(_kept(folder))


def keep(found: Found, name: str, out: Path) -> Path:
    """Write what the part called `name` found, and the page of all parts that are there. Returns the page's file."""
    folder = out / "performance"
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / f"{name}.json", json.dumps(rounded(asdict(found)), indent=1) + "\n")
    parts = dict(_kept(folder))
    drawn = {}
    for part in parts.values():
        for curves in part.figures:
            file = folder / f"{_slug(curves.title)}.svg"
            replace_text(file, figure(curves))
            drawn[curves.title] = f"performance/{file.name}"
    page = out / "performance.md"
    replace_text(page, markdown(contents(parts), drawn))
    return page


def contents(parts: Mapping[str, Found]) -> Page:
    """The page of these parts."""
    sections = [Section("How to read it", [INTRODUCTION], [_machines(parts)])]
    for name, found in parts.items():
        blocks: list[Block] = [*(table(ratios, found.machine) for ratios in found.tables), *found.figures]
        text = [TEXTS[name]] if name in TEXTS else []
        sections.append(Section(TITLES[name], [*text, *found.notes], blocks))
    return Page("Performance", sections)


def table(ratios: Ratios, machine: Mapping[str, Any]) -> Table:
    """As it is printed: for each baseline the ratio and what was wanted, then milliseconds, operations and rate."""
    columns = ["", *(heading for base in ratios.baselines for heading in (base, "wanted")), "ms", "GFLOP", "of best"]
    rows: list[list[Cell]] = []
    for row in ratios.rows:
        cells: list[Cell] = [row.name]
        for base in ratios.baselines:
            wanted = row.wanted.get(base)
            cells += [shown(row.over.get(base)), "" if wanted is None else f"at most {wanted:.3g}"]
        cells += [_figure(row.seconds and 1e3 * row.seconds), _figure(row.gigaflops), of_best(row, machine)]
        rows.append(cells)
    return Table(columns, rows, ratios.title)


def shown(ratio: Ratio | None) -> str:
    """2.14 (2.05 to 2.31)."""
    if ratio is None:
        return ""
    spread = f" ({ratio.low:.2f} to {ratio.high:.2f})" if ratio.low < ratio.high else ""
    return f"{ratio.median:.2f}{spread}"


def of_best(row: Row, machine: Mapping[str, Any]) -> str:
    """The rate of operations over the machine's best."""
    if not row.gigaflops or not row.seconds:
        return ""
    return f"{row.gigaflops / row.seconds / machine['best_gigaflops_per_second']:.0%}"


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _machines(parts: Mapping[str, Found]) -> Table:
    """What was measured where; parts on the same machine share a row."""
    seen: dict[str, list[str]] = {}
    described: dict[str, dict[str, Any]] = {}
    for name, found in parts.items():
        of = {key: value for key, value in found.machine.items() if key != "best_gigaflops_per_second"}
        key = json.dumps(of, sort_keys=True)
        seen.setdefault(key, []).append(f"{name} ({found.machine['best_gigaflops_per_second']:.0f})")
        described[key] = of
    rows: list[list[Cell]] = [
        [", ".join(f"{key} {value}" for key, value in described[key].items()), ", ".join(names)]
        for key, names in seen.items()
    ]
    return Table(["machine", "parts (best product, GFLOP/s)"], rows)


def _kept(folder: Path) -> Iterator[tuple[str, Found]]:
    for name in PARTS:
        file = folder / f"{name}.json"
        if file.is_file():
            try:
                yield name, TypeAdapter(Found).validate_json(file.read_bytes())
            except ValidationError:
                raise WrongUse(
                    "a part of the benchmark cannot be read",
                    wanted="what `bpg bench` wrote",
                    came=str(file),
                    remedy=f"Delete it, and measure again: bpg bench {name}.",
                ) from None


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.partition(":")[0].lower()).strip("-")


def rounded(value: Any) -> Any:
    """`value`, with four digits of every number in it."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
