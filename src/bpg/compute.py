"""The machine a run uses: device, threads, precision, seed. Nothing here acts on import."""

from __future__ import annotations

import os
from typing import Literal, get_args

import torch

from bpg.errors import DeviceError, WrongUse

Precision = Literal["float32", "bfloat16", "float16"]
MOST_THREADS = 512
PRECISIONS: tuple[str, ...] = get_args(Precision)


def choose_device(name: str = "auto") -> torch.device:
    """The device called `name`. `auto` is the first GPU there is, or the CPU.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device(
            "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        )
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(
            f"{name!r} is no device",
            wanted="auto, cpu, cuda, cuda:N or mps",
            came=repr(name),
            remedy="Use --device auto.",
        ) from None
    found = {
        "cpu": 1,
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
    }
    if (device.index or 0) >= found.get(device.type, 0):
        have = [f"{kind} x {count}" for kind, count in found.items() if count and kind != "cpu"]
        raise DeviceError(
            f"there is no device {name}",
            wanted=f"a {device.type} device that this torch ({torch.__version__}) can use",
            came=", ".join(have) if have else "a CPU only",
            remedy="Use --device auto, or install a torch build for this device.",
        )
    return device


def set_threads(count: int | None) -> int:
    """Use `count` CPU threads, and say how many that is. When None, as many as $OMP_NUM_THREADS, or as cores."""
    if count is not None and not 1 <= count <= MOST_THREADS:
        raise WrongUse(
            "no such number of threads",
            wanted=f"1 to {MOST_THREADS}",
            came=str(count),
            remedy="Leave --threads out to use every core.",
        )
    if count is None and os.environ.get("OMP_NUM_THREADS", "").isdecimal():
        count = min(int(os.environ["OMP_NUM_THREADS"]), MOST_THREADS)
    torch.set_num_threads(count or available_cores())
    return torch.get_num_threads()


def available_cores() -> int:
    """The cores that this process may run on, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
