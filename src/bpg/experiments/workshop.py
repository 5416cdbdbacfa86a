"""What a process that does jobs keeps at hand, and how it does one: backbone and data are loaded once."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bpg.backbones.backbone import Backbone
from bpg.backbones.survey import survey
from bpg.backbones.weights import load_backbone
from bpg.data.images import ImageSet
from bpg.data.protocols import PROTOCOLS
from bpg.experiments.manifest import Data, find, identity_of, prepare
from bpg.experiments.records import read_optional, write_json
from bpg.experiments.runner import Bar, learn_part, run_cell
from bpg.experiments.scale import Job
from bpg.experiments.spec import Cell, Spec
from bpg.experiments.track import track_run
from bpg.experts.expert import parameter_count
from bpg.methods.bpg import BPG
from bpg.methods.parts.identity import SAME, identity
from bpg.progress import Clock
from bpg.routing import stops

SURVEY = "survey.json"
TIMED = 64  # images
FORMAT = 1  # of a survey


class Workshop:
    """Does jobs one after another, and leaves what comes of them below `runs`."""

    def __init__(
        self,
        runs: Path,
        *,
        device: torch.device,
        bar: Bar,
        track: Path | None = None,
        checkpoint_seconds: float = 10.0,
    ) -> None:
        self.runs, self.device, self.bar, self.track = runs, device, bar, track
        self.checkpoint_seconds = checkpoint_seconds
        self._backbones: dict[str, Backbone] = {}
        self._data: dict[str, Data] = {}

    def do(self, job: Job) -> Path:
        """Do it, or go on with it; the folder that holds the result."""
        spec, cell = job.spec()
        backbone, data = self.backbone(spec), self.data(spec)
        if job.kind == "survey":
            return survey_stream(spec, cell, backbone, data, self.runs, self.bar)
        options: dict[str, Any] = {"bar": self.bar, "checkpoint_seconds": self.checkpoint_seconds}
        if job.kind == "part":
            return learn_part(spec, cell, backbone, data, self.runs, stage=job.stage, **options)
        track = self.track
        after = None if track is None else lambda run: track_run(run, track)
        return run_cell(spec, cell, backbone, data, self.runs, maps=job.maps, after=after, **options).folder

    def backbone(self, spec: Spec) -> Backbone:
        """The backbone that a spec names, with the pixels of its protocol."""
        key = json.dumps([asdict(spec.backbone), spec.data.protocol])
        if key not in self._backbones:
            self._backbones[key] = backbone_of(spec, self.device)
        return self._backbones[key]

    def data(self, spec: Spec) -> Data:
        """The images that a spec names, each checked to be readable."""
        key = json.dumps(asdict(spec.data))
        if key not in self._data:
            with self.bar("images") as show:
                self._data[key] = prepare(spec, find(spec.data), show)
        return self._data[key]


def backbone_of(spec: Spec, device: torch.device) -> Backbone:
    """The backbone that a spec names."""
    b = spec.backbone
    backbone = load_backbone(
        b.source,
        architecture=b.architecture,
        image_size=b.image_size,
        precision=b.precision,
        revision=b.revision,
        device=device,
    )
    if spec.data.protocol is not None:
        backbone.preprocessing = PROTOCOLS[spec.data.protocol].pixels(
            backbone.preprocessing, clip=backbone.text is not None
        )
    return backbone


def survey_stream(spec: Spec, cell: Cell, backbone: Backbone, data: Data, out: Path, bar: Bar) -> Path:
    """How separable each domain of a stream is, and what BPG's rule would give it: nothing is trained."""
    model = cell.build(backbone)
    assert isinstance(model, BPG)  # whose rule is asked for
    s = model.settings
    about = {
        "format": FORMAT,
        "backbone": [identity(backbone, model.weights)[part] for part in SAME],
        "data": identity_of(data),
        "rule": {
            "r0": s.r0,
            "s0": s.s0,
            "lam": s.lam,
            "rank": s.rank,
            "max_rank": s.max_rank,
            "estimator": s.estimator,
        },
        "expert": asdict(s.expert),
    }
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    folder = out / spec.name / f"survey-{digest[:12]}"
    if read_survey(folder) is not None:
        return folder
    domains = []
    for domain in data.stream.domains:
        with bar(f"survey of {domain.name}") as show:
            model.progress = show
            rank, measured = model.capacity(domain, model.survey(domain))
        numbers = parameter_count(backbone, len(domain.classes), rank=rank, settings=s.expert)
        row = {"name": domain.name, "images": len(domain.train), "classes": len(domain.classes)}
        spent = {"pass": pass_time(backbone, domain.train)}
        domains.append({**row, **measured, "rank": rank, "parameters": numbers, "spent": spent})
    folder.mkdir(parents=True, exist_ok=True)
    named = {"name": backbone.name, "width": backbone.width, "depth": backbone.depth}
    write_json(folder / SURVEY, {"domains": domains, "named": named, **about})
    return folder


def pass_time(backbone: Backbone, images: ImageSet) -> dict[str, float]:
    """What one pass over all images takes, from a few of them: features of the whole may come from a cache."""
    some = images.subset(range(min(TIMED, len(images))))
    began = Clock()
    survey(backbone, some, probes=stops(backbone.depth), cache=None)
    return {what: round(spent * len(images) / len(some), 2) for what, spent in began.as_dict().items()}


def read_survey(folder: Path) -> dict[str, Any] | None:
    """What `survey_stream` left in `folder`; None where it did not, or where that is damaged."""
    return read_optional(folder / SURVEY, _check_survey)


def _check_survey(found: Mapping[str, Any]) -> None:
    found["expert"], found["named"]["name"], found["backbone"]
    for setting in ("r0", "s0", "lam", "rank", "max_rank", "estimator"):
        found["rule"][setting]
    for domain in found["domains"]:
        domain["name"], domain["images"] + domain["rank"] + domain["parameters"], domain["spent"]["pass"].items()
        for number in ("between", "within", "separability"):
            math.isnan(domain[number] or 0.0)
