"""Whether a job can be done here: are its data and weights there?"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any

from bpg.backbones.catalogue import find as find_backbone
from bpg.backbones.weights import on_disk
from bpg.errors import BPGError
from bpg.experiments.manifest import find
from bpg.experiments.scale import Job
from bpg.experiments.spec import DataSpec


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


def _weights(source: str) -> str | None:
    return f"the weights of {source} are not here" if _away(source) and _offline() else None


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
