"""What `bpg data` prints."""

from __future__ import annotations

from pathlib import Path

from bpg.cli.app import Common
from bpg.cli.tables import print_json, print_table
from bpg.data.benchmark import Benchmark, verify
from bpg.progress import counted
from bpg.registry import DATASETS


def print_benchmarks(common: Common) -> None:
    """A row a benchmark."""
    known: list[Benchmark] = [DATASETS[name] for name in DATASETS]
    rows = [
        {
            "name": each.name,
            "domains": len(each.order) + len(each.unseen),
            "images": _published_images(each),
            "what": each.title,
            "licence": each.licence,
            "source": each.source,
        }
        for each in known
    ]
    if common.json:
        print_json(rows)
    else:
        print_table(rows, columns=("name", "domains", "images", "what", "source", "licence"))


def _published_images(benchmark: Benchmark) -> int | None:
    """Those to learn from and those to test on; None where nothing is published."""
    known = [benchmark.expected[name] for name in benchmark.sets if name in benchmark.expected]
    return sum(sum(each["classes"].values()) for each in known) or None


def print_verified(common: Common, name: str, root: Path | None) -> bool:
    """A row a side of a domain, then what is wrong; whether nothing is."""
    benchmark: Benchmark = DATASETS[name]
    found = benchmark.read(root)
    with common.bar(name) as show:
        sides = verify(benchmark, found, counted(show, "verify"))
    rows = [
        {
            "set": side.name,
            "images": side.images,
            "classes": len(side.classes),
            "smallest class": min(side.classes.values(), default=0),
            "sha256": side.sha256 if common.json else side.sha256[:16],
            "as published": not side.wrong if benchmark.expected else None,
        }
        for side in sides
    ]
    wrong = [f"{side.name}: {fault}" for side in sides for fault in side.wrong]
    unreadable = [{"path": str(f.path), "reason": f.reason} for side in sides for f in side.unreadable]
    if common.json:
        print_json({"name": name, "root": str(found.root), "sets": rows, "wrong": wrong, "unreadable": unreadable})
        return not wrong
    print_table(rows, columns=("set", "images", "classes", "smallest class", "sha256", "as published"))
    for image in unreadable:
        print(f"unreadable: {image['path']}: {image['reason']}")
    for fault in wrong:
        print(f"WRONG: {fault}")
    if not wrong:
        verdict = (
            "as published" if benchmark.expected else "all can be read; there are no published counts to compare with"
        )
        print(f"{name}: {sum(side.images for side in sides)} images, {verdict}.")
    return not wrong
