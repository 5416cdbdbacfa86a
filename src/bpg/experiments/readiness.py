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


@cache
def _weights(source: str) -> str | None:
    offline = os.environ.get("HF_HUB_OFFLINE", "0").upper()
    try:
        entry = find_backbone(source)
    except BPGError:
        return None  # a path, which loading speaks about
    if offline not in ("1", "ON", "YES", "TRUE") or on_disk(entry) is not None:
        return None  # or the hub may have them
    return f"the weights of {source} are not here"


@cache
def _data(document: str) -> str | None:
    values: dict[str, Any] = json.loads(document)
    try:
        find(DataSpec(**values))
    except BPGError as error:
        return f"the data of {values.get('benchmark') or values.get('root')} is not here ({error.problem})"
    return None
