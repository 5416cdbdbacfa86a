"""Timing that a noisy machine cannot fool much: works in turns, ratios within a round, medians and their spread."""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import bpg
from bpg.compute import available_cores, wait_for_devices

Work = Callable[[], object]
Size = Sequence[int]


@dataclass(frozen=True, slots=True)
class Ratio:
    """Seconds over seconds of something else, of several rounds."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Taken:
    """What a work took."""

    rounds: tuple[float, ...]  # seconds of each
    gigaflops: float  # operations of one call, in units of 10^9

    @property
    def seconds(self) -> float:
        return statistics.median(self.rounds)

    def over(self, other: Taken) -> Ratio:
        """This over `other`, round by round: a slow moment slows both."""
        ratios = [mine / its for mine, its in zip(self.rounds, other.rounds, strict=True)]
        return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def take_turns(works: Mapping[str, Work], rounds: int) -> dict[str, Taken]:
    """Every work in every round, after a call that does not count but for its operations."""
    counted = {name: _gigaflops(work) for name, work in works.items()}
    rounds_of: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            rounds_of[name].append(seconds(work))
    return {name: Taken(tuple(own), counted[name]) for name, own in rounds_of.items()}


def seconds(work: Work) -> float:
    """How long one call takes, with all that it left to a GPU."""
    wait_for_devices()
    began = time.perf_counter()
    work()
    wait_for_devices()
    return time.perf_counter() - began


def best_product(device: torch.device, *, side: int = 2048, rounds: int = 7) -> float:
    """GFLOP/s of the best of a few large matrix products in float32: what the machine can do at most."""
    a, b = torch.randn(side, side, device=device), torch.randn(side, side, device=device)
    a @ b
    return 2 * side**3 / min(seconds(lambda: a @ b) for _ in range(rounds)) / 1e9


def machine(device: torch.device) -> dict[str, Any]:
    """What is measured on."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "cores": available_cores(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "bpg": bpg.__version__,
    }


def _gigaflops(work: Work) -> float:
    with FlopCounterMode(display=False, custom_mapping=UNCOUNTED) as counter:
        work()
    return float(counter.get_total_flops()) / 1e9


def _attention_flops(q: Size, k: Size, v: Size, *_: Any, **__: Any) -> int:
    return 2 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


def _linear_flops(x: Size, *_: Any, out_shape: Size, **__: Any) -> int:
    return 2 * math.prod(x) * out_shape[-1]


# What runs on CPUs alone and torch does not count.
UNCOUNTED = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    torch.ops.quantized.linear_dynamic: _linear_flops,
}


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    except OSError:
        return platform.processor() or "unknown"
