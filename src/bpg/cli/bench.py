"""What `bpg bench` does and prints."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from bpg.backbones.catalogue import find
from bpg.bench.findings import Found, Setting
from bpg.bench.suite import check_out, check_parts, keep, run_part, table
from bpg.cli.app import Common
from bpg.cli.images import check_place
from bpg.cli.tables import print_json, print_table


def run_bench(common: Common, parts: list[str], out: Path | None, rounds: int | None, backbone: str | None) -> None:
    """Measure `parts` one after another, and print each as it ends."""
    chosen = check_parts(parts)
    if out is not None:
        check_place(out, "figures")
        check_out(out)
    setting = Setting(common.use_machine(), rounds)
    if backbone is not None:
        setting = replace(setting, large=find(backbone).name, small=find(backbone).name)
    every = {}
    for name in chosen:
        common.say(f"{name} ...")
        found = every[name] = run_part(name, setting)
        if out is not None:
            page = keep(found, name, out)
        if not common.json:
            _show(found)
    if common.json:
        print_json({name: asdict(found) for name, found in every.items()})
    elif out is not None:
        print(page)


def _show(found: Found) -> None:
    for ratios in found.tables:
        block = table(ratios, found.machine)
        print(block.title)
        columns = [f"{heading}{' ' * place}" for place, heading in enumerate(block.columns)]  # headings may be the same
        print_table([dict(zip(columns, row, strict=True)) for row in block.rows], columns=columns)
    for curves in found.figures:
        print(f"{curves.title} ({curves.what})")
        rows = [
            {curves.over: f"{x:g}"} | {name: f"{line[place][1]:.3g}" for name, line in curves.lines.items()}
            for place, (x, _) in enumerate(next(iter(curves.lines.values())))
        ]
        print_table(rows, columns=list(rows[0]))
    for note in found.notes:
        print(note)
