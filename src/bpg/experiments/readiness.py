"""Whether a job can be done here: are its data and weights there?"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any

from bpg.backbones.catalogue import catalogue
from bpg.backbones.weights import on_disk
from bpg.errors import BPGError
from bpg.experiments.manifest import find
from bpg.experiments.scale import Job
from bpg.experiments.spec import DataSpec


def missing(job: Job) -> str | None:
    """What a job lacks, in words; None where it lacks nothing."""
    return _weights(job.document["backbone"]["source"]) or _data(json.dumps(job.document["data"], sort_keys=True))


@cache
def _weights(source: str) -> str | None:
    entry, offline = catalogue().get(source), os.environ.get("HF_HUB_OFFLINE", "0").upper()
    if entry is None or offline not in ("1", "ON", "YES", "TRUE") or on_disk(entry) is not None:
        return None  # a path, which loading speaks about, or what the hub may have
    return f"the weights of {source} are not here"


@cache
def _data(document: str) -> str | None:
    values: dict[str, Any] = json.loads(document)
    try:
        find(DataSpec(**values))
    except BPGError as error:
        return f"the data of {values.get('benchmark') or values.get('root')} is not here ({error.problem})"
    return None
