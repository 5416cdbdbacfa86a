"""Whether a job can be done here, and whether it looks done already: nothing is loaded to find out."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from bpg.backbones.catalogue import find as find_backbone
from bpg.backbones.weights import on_disk
from bpg.errors import BPGError
from bpg.experiments.cost import order_of, sizes_of
from bpg.experiments.manifest import find
from bpg.experiments.records import ABOUT, Run, read_run
from bpg.experiments.scale import Job
from bpg.experiments.spec import Cell, DataSpec, Spec
from bpg.experiments.workshop import read_survey
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


def result_like(job: Job, runs: Path) -> Path | None:
    """The folder below `runs` with the result of a job by its settings, on as many images, whoever left it there.

    That its images and weights are those that are here is seen when the job is asked for.
    """
    if job.kind == "part":
        return None
    spec, cell = job.spec()
    return _survey_like(spec, cell, runs) if job.kind == "survey" else _run_like(spec, cell, runs)


def _run_like(spec: Spec, cell: Cell, runs: Path) -> Path | None:
    own = {
        "label": cell.label,
        "method": cell.method,
        "seed": cell.seed,
        "settings": as_json(_settings(cell)),
        "options": dict(cell.options),
        "ways": list(cell.ways),
        "unseen": spec.unseen,
        "protocol": spec.data.protocol,
    }
    nothing: dict[str, Any] = {"ways": [], "protocol": None}  # is not written of a run
    for run in _runs(runs / spec.name):
        about = nothing | dict(run.about)
        train = {domain["name"]: domain["train"]["images"] for domain in about["data"]["domains"]}
        tested = sum(test["images"] for test in about["data"]["tests"])
        ran = about["backbone"]
        alike = all(about[key] == value for key, value in own.items())
        sized = spec.backbone.image_size in (None, ran["preprocessing"]["size"])
        fits = sized and ran["precision"] == spec.backbone.precision and _named(ran["name"], spec.backbone.source)
        same = _same_images(train, spec) and sum(sizes_of(spec).test) in (tested, 0)
        if run.finished and alike and fits and same:
            return run.folder
    return None


def _survey_like(spec: Spec, cell: Cell, runs: Path) -> Path | None:
    settings = as_json(_settings(cell))
    for folder in sorted((runs / spec.name).glob("survey-*")):
        found = read_survey(folder)
        if found is None or any(settings[key] != value for key, value in found["rule"].items()):
            continue
        train = {domain["name"]: domain["images"] for domain in found["domains"]}
        same = settings["expert"] == found["expert"] and _same_images(train, spec)
        if same and _named(found["named"]["name"], spec.backbone.source):
            return folder
    return None


def _settings(cell: Cell) -> Any:
    return METHODS[cell.method].Settings(seed=cell.seed, **cell.values)


def _same_images(train: Mapping[str, int], spec: Spec) -> bool:
    """Whether these are the domains of a spec, in its order, with as many training images where that is known."""
    ordered = list(train) == list(order_of(spec.data, list(train)))
    known = sizes_of(spec).train
    return ordered and (not any(known) or tuple(train.values()) == known)


@cache
def _runs(folder: Path) -> list[Run]:
    found = []
    for about in sorted(folder.glob(f"*/{ABOUT}")):
        try:
            found.append(read_run(about.parent))
        except BPGError as error:
            warnings.warn(f"{error}", stacklevel=2)  # nothing that is done
    return found


def _weights(source: str) -> str | None:
    return f"the weights of {source} are not here" if _away(source) and _offline() else None


def _named(name: str, source: str) -> bool:
    """Whether a backbone of that name may come from a source."""
    try:
        return find_backbone(source).name == name
    except BPGError:
        return True  # a path


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
