"""Whether a job can be done here, and whether it looks done already: nothing is loaded to find out."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from bpg.backbones.catalogue import find as find_backbone
from bpg.backbones.weights import on_disk
from bpg.errors import BPGError
from bpg.experiments.cost import sizes_of
from bpg.experiments.manifest import find
from bpg.experiments.records import ABOUT, Run, read_run
from bpg.experiments.scale import Job
from bpg.experiments.spec import BackboneSpec, DataSpec
from bpg.methods.parts.identity import as_json
from bpg.registry import METHODS


def missing(job: Job) -> str | None:
    """What a job lacks, in words; None where it lacks nothing."""
    lacks = (
        _weights(job.document["backbone"]["source"]),
        _data(json.dumps(job.document["data"], sort_keys=True)),
    )
    return " and ".join(filter(None, lacks)) or None


def to_fetch(job: Job) -> str | None:
    """The weights that the hub is asked for when a job begins, in words; None where they are here, or cannot be had."""
    source = job.document["backbone"]["source"]
    return f"the weights of {source} would come from the hub" if _away(source) and not _offline() else None


def looks_done(job: Job, runs: Path) -> bool:
    """Whether a finished run below `runs` has the method, seed and settings of a job, on as many images.

    Whoever did it, and whatever it was written to. That its images and weights are those that are here is seen when
    the job is asked for.
    """
    if job.kind != "run":
        return False
    spec, cell = job.spec()
    own = {
        "label": cell.label,
        "method": cell.method,
        "seed": cell.seed,
        "settings": as_json(METHODS[cell.method].Settings(seed=cell.seed, **cell.values)),
        "options": dict(cell.options),
        "ways": list(cell.ways),
        "unseen": spec.unseen,
        "protocol": spec.data.protocol,
    }
    nothing: dict[str, Any] = {"ways": [], "protocol": None}  # is not written of a run
    for run in _runs(runs / spec.name):
        alike = all((nothing | dict(run.about))[key] == value for key, value in own.items())
        images = [domain["train"]["images"] for domain in run.about["data"]["domains"]]
        if run.finished and alike and images == list(sizes_of(spec).train) and _fits(run, spec.backbone):
            return True
    return False


@cache
def _runs(folder: Path) -> list[Run]:
    found = []
    for about in sorted(folder.glob(f"*/{ABOUT}")):
        with suppress(BPGError):  # a damaged one is nothing that is done
            found.append(read_run(about.parent))
    return found


def _fits(run: Run, asked: BackboneSpec) -> bool:
    ran = run.about["backbone"]
    sized = asked.image_size in (None, ran["preprocessing"]["size"])
    return sized and ran["precision"] == asked.precision and _name(asked.source) in (None, ran["name"])


def _weights(source: str) -> str | None:
    return f"the weights of {source} are not here" if _away(source) and _offline() else None


def _name(source: str) -> str | None:
    try:
        return find_backbone(source).name
    except BPGError:
        return None  # a path


@cache
def _away(source: str) -> bool:
    try:
        return on_disk(find_backbone(source)) is None
    except BPGError:
        return False  # a path, which loading speaks about


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE")


@cache
def _data(document: str) -> str | None:
    values: dict[str, Any] = json.loads(document)
    try:
        find(DataSpec(**values))
    except BPGError as error:
        return f"the data of {values.get('benchmark') or values.get('root')} is not here ({error.problem})"
    return None
