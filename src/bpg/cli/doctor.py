"""What `bpg doctor` examines: the packages, the machine, the folders, the weights."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

import bpg
from bpg.errors import BPGError

DISTRIBUTION = "bpg-dil"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something amiss. A fatal one keeps bpg from working; the other kind is worth knowing."""

    problem: str
    remedy: str
    fatal: bool = True


@dataclass(slots=True)
class Examination:
    """What was found, by section, and what is wrong."""

    sections: dict[str, dict[str, object]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {**self.sections, "faults": [asdict(fault) for fault in self.faults]}


def examine(*, device: str, threads: int | None) -> Examination:
    """Examine this installation and this machine. A part that fails is itself a finding, and the others go on."""
    found = Examination()
    parts: dict[str, Callable[[], None]] = {
        "the packages": lambda: _examine_packages(found),
        "the machine": lambda: _examine_machine(found, device, threads),
        "the folders": lambda: _examine_folders(found),
        "the weights": lambda: _examine_weights(found),
    }
    for part, look in parts.items():
        try:
            look()
        except Exception as error:  # this is where broken installations show
            missing = f" ({error.name})" if isinstance(error, ImportError) and error.name else ""
            found.faults.append(
                Fault(
                    f"{part} cannot be examined{missing}: {type(error).__name__}: {error}",
                    "Mend what the message names: install the package anew, or correct the folder's permissions.",
                )
            )
    return found


def _examine_packages(found: Examination) -> None:
    rows: dict[str, object] = {"bpg": bpg.__version__, "python": platform.python_version()}
    found.sections["packages"] = rows
    for requirement in map(Requirement, _requirements(found)):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            rows[requirement.name] = installed = version(requirement.name)
        except PackageNotFoundError:
            rows[requirement.name] = None
            problem = f"{requirement.name} is not installed"
        else:
            unusable = _unusable(requirement, installed)
            if unusable is None:
                continue
            problem = unusable
        remedy = f"Install it anew: pip install --force-reinstall '{requirement.name}{requirement.specifier}'."
        found.faults.append(Fault(problem, remedy))


def _requirements(found: Examination) -> list[str]:
    try:
        return requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        found.faults.append(
            Fault("bpg itself is not installed, only found on the path", "Install it: pip install .", fatal=False)
        )
        return []


def _unusable(requirement: Requirement, installed: str) -> str | None:
    """Why an installed package is of no use, or None."""
    if not requirement.specifier.contains(installed, prereleases=True):
        return f"{requirement.name} {installed} is not {requirement.specifier}"
    try:
        import_module({"pillow": "PIL"}.get(requirement.name.lower(), requirement.name.replace("-", "_")))
    except Exception as error:  # a broken build raises nearly anything
        return f"{requirement.name} cannot be imported ({error})"
    return None


def _examine_machine(found: Examination, device: str, threads: int | None) -> None:
    rows: dict[str, object] = {"system": f"{platform.system()} {platform.machine()}"}
    found.sections["machine"] = rows
    import torch

    from bpg.compute import available_cores, choose_device, set_threads

    rows["cores"] = available_cores()
    rows["threads"] = set_threads(threads)
    try:
        rows["device"] = str(choose_device(device))
    except BPGError as error:
        found.faults.append(Fault(f"{error.problem}: wanted {error.wanted}, came {error.came}", error.remedy))
    rows["cuda"] = torch.version.cuda if torch.cuda.is_available() else None
    if torch.version.cuda and not torch.cuda.is_available():
        found.faults.append(
            Fault(
                "this torch is built for CUDA, but no GPU answers",
                "Check the driver with nvidia-smi; without a GPU the CPU build of torch is smaller.",
                fatal=False,
            )
        )
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        rows[f"cuda:{index}"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    if threads is not None and threads > available_cores():
        found.faults.append(
            Fault(
                f"{threads} threads on {available_cores()} cores",
                "Threads beyond the cores make it slower.",
                fatal=False,
            )
        )


def _examine_folders(found: Examination) -> None:
    from huggingface_hub import constants

    from bpg.folders import cache_folder

    hub = Path(constants.HF_HUB_CACHE)
    rows: dict[str, object] = {}
    for name, folder in (("bpg cache ($BPG_CACHE)", cache_folder()), ("hub cache ($HF_HOME)", hub)):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(existing).free / 2**30
        rows[name] = f"{folder} ({free:.0f} GiB free)"
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            found.faults.append(
                Fault(f"{folder} cannot be written", f"Point {name.split('$')[1][:-1]} elsewhere.", fatal=False)
            )
        elif free < 1:
            found.faults.append(
                Fault(f"less than 1 GiB is free at {folder}", "Make room or choose another folder.", fatal=False)
            )
    weights = os.environ.get("BPG_WEIGHTS")
    rows["own weights ($BPG_WEIGHTS)"] = weights
    if weights and not Path(os.path.expanduser(weights)).is_dir():
        found.faults.append(Fault(f"$BPG_WEIGHTS points to {weights}, which is no folder", "Correct it or unset it."))
    found.sections["folders"] = rows


def _examine_weights(found: Examination) -> None:
    from bpg.backbones.catalogue import catalogue
    from bpg.backbones.weights import on_disk

    here = {name: file for name, entry in catalogue().items() if (file := on_disk(entry)) is not None}
    found.sections["weights"] = {name: str(file) for name, file in here.items()}
    if all(catalogue()[name].shipped for name in here):
        remedy = "Load one by name with a network, or put NAME.safetensors into a folder and point $BPG_WEIGHTS to it."
        found.faults.append(Fault("no backbone but what ships with bpg is on this machine", remedy, fatal=False))
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        found.faults.append(
            Fault("the hub is switched off by $HF_HUB_OFFLINE", "Unset it to fetch weights by name.", fatal=False)
        )
