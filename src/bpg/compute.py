"""The machine a run uses: device, threads, precision, seed. Nothing here acts on import."""

from __future__ import annotations

import os
from typing import Literal, get_args

import torch
from torch import Tensor

from bpg.errors import DeviceError, WrongUse

Precision = Literal["float32", "bfloat16", "float16"]
MOST_THREADS = 512
PRECISIONS: tuple[str, ...] = get_args(Precision)
WITHOUT_FLOAT64 = ("mps",)  # kinds of device


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


def float64_device(device: torch.device) -> torch.device:
    """Where what is on `device` can be computed with in float64: there, or on the CPU.

    >>> float64_device(torch.device("mps"))
    device(type='cpu')
    """
    return torch.device("cpu") if device.type in WITHOUT_FLOAT64 else device


def as_float64(tensor: Tensor) -> Tensor:
    """`tensor` in float64, moved first where its device has none."""
    return tensor.to(float64_device(tensor.device)).double()


def wait_for_devices() -> None:
    """Return when everything that was left to a GPU is done: before that, a clock tells nothing."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()


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
