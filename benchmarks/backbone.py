"""What the backbone costs, as ratios to the plain alternative, interleaved in one run; medians with their spread.

Run it with `make bench`. It prints a table, and a JSON document with `--json`.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable

import torch
from tests.oracles import oracle

from bpg.backbones.backbone import Backbone
from bpg.backbones.catalogue import find
from bpg.backbones.tuning import Prefix, Tuning
from bpg.backbones.vit import ViT
from bpg.compute import available_cores

ROUNDS, BATCH = 7, 16


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compare(base: Callable[[], object], others: dict[str, Callable[[], object]]) -> dict[str, dict[str, float]]:
    """Seconds of each over seconds of `base`, measured in turns."""
    for function in (base, *others.values()):
        function()
    ratios: dict[str, list[float]] = {name: [] for name in others}
    for _ in range(ROUNDS):
        reference = seconds(base)
        for name, function in others.items():
            ratios[name].append(seconds(function) / reference)
    return {
        name: {"median": statistics.median(found), "low": min(found), "high": max(found)}
        for name, found in ratios.items()
    }


def measure() -> dict[str, dict[str, dict[str, float]]]:
    entry = find("deit_tiny_patch16_224")
    torch.manual_seed(0)
    backbone = Backbone(ViT(entry.vit), entry.preprocessing, name=entry.name)
    mixed = Backbone(ViT(entry.vit), entry.preprocessing, name=entry.name, precision="bfloat16")
    compiled = Backbone(ViT(entry.vit), entry.preprocessing, name=entry.name)
    compiled.compile_blocks()
    timm = oracle("timm").create_model("deit_tiny_patch16_224", num_classes=0).eval()
    images = torch.randn(BATCH, 3, 224, 224)
    d, blocks = entry.vit.width, range(entry.vit.depth)

    def adapters(rank: int) -> Tuning:
        def adapter() -> torch.nn.Module:
            return torch.nn.Sequential(torch.nn.Linear(d, rank), torch.nn.ReLU(), torch.nn.Linear(rank, d))

        return Tuning(branch={block: {"mlp": adapter()} for block in blocks})

    prefix = Prefix(torch.randn(10, d), torch.randn(10, d), projected=True)
    prefixes = Tuning(prefix=dict.fromkeys(blocks, prefix))
    with torch.no_grad():
        forwards = compare(
            lambda: timm(images),
            {
                "ours, plain": lambda: backbone(images),
                "ours, 10 prompt tokens": lambda: backbone(images, Tuning(tokens=torch.zeros(10, d))),
                "ours, adapters r = 64": lambda: backbone(images, adapters(64)),
                "ours, prefix of 10 in every block": lambda: backbone(images, prefixes),
                "ours, bfloat16": lambda: mixed(images),
                "ours, compiled": lambda: compiled(images),
            },
        )
    return {"forward of DeiT-Tiny, over timm's": forwards}


def main() -> None:
    threads = torch.get_num_threads()
    machine = {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": available_cores(),
        "threads": threads,
        "torch": torch.__version__,
        "rounds": ROUNDS,
    }
    found = measure()
    if "--json" in sys.argv:
        print(json.dumps({"machine": machine, "ratios": found}, indent=2))
        return
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    for title, rows in found.items():
        print(f"\n{title}")
        for name, ratio in rows.items():
            print(f"  {name:<36} {ratio['median']:.2f}  ({ratio['low']:.2f} to {ratio['high']:.2f})")


if __name__ == "__main__":
    main()
