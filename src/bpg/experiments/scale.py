"""The scales at which the paper is reproduced: the same code from a laptop to a cluster, with other settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from bpg.config import parse, settings
from bpg.errors import WrongUse, unknown_name
from bpg.experiments.spec import Cell, Spec, cells, locate, read_document, spec_of

SCALES = ("paper", "small", "demo")
STREAMS = {"domainnet": "DomainNet", "cddb": "CDDB", "core50": "CORe50"}
FUSIONS = ("mean", "max", "threshold+mean", "threshold+l2")  # that BPG is measured under besides its own


@settings
class StreamSettings:
    """What stands for one of the paper's benchmarks."""

    config: str  # a settings file with all methods, or a folder with a file for each; a path, or a name that ships
    changes: tuple[str, ...] = ()  # of the form a.b=c
    note: str = ""  # what stands in for what, where it is not the benchmark itself


@settings
class Scale:
    """Which data and settings, how many seeds, which hidden dimensions."""

    note: str
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]
    ranks: tuple[PositiveInt, ...]  # uniform r of the figure over r
    drawn: tuple[PositiveInt, ...]  # uniform r whose features are drawn
    r0s: tuple[PositiveInt, ...]  # adaptive r_0 of the figures
    streams: dict[Literal["domainnet", "cddb", "core50"], StreamSettings]

    def __post_init__(self) -> None:
        if "domainnet" not in self.streams:
            raise WrongUse(
                "nothing stands for DomainNet",
                wanted="a table streams.domainnet, which most of the paper's analysis is on",
                came=", ".join(self.streams) or "no stream",
                remedy="Say what stands for it.",
            )
        if len(set(self.seeds)) < len(self.seeds):
            raise WrongUse(
                "a seed stands twice",
                wanted="seeds that differ: a spread over the same run would be none",
                came=", ".join(map(str, self.seeds)),
                remedy="Leave the repeated ones out.",
            )


@dataclass(frozen=True, eq=False)
class Job:
    """One run of the grid, or one survey: all that a process anywhere needs to know to do it."""

    kind: Literal["run", "survey", "part"]
    document: Mapping[str, Any]  # a spec of one method and one seed
    maps: bool = False  # of a run: draw what the experts make of the test images
    stage: int = 0  # of a part: which domain it learns

    @property
    def key(self) -> str:
        """Its name among files: the same for the same job, whoever asks."""
        text = json.dumps([self.kind, self.document, self.stage], sort_keys=True)
        return f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @property
    def label(self) -> str:
        return str(next(iter(self.document["methods"])))

    @property
    def seed(self) -> int:
        return int(self.document["seeds"][0])

    @property
    def title(self) -> str:
        what = {"survey": "survey for ", "part": f"domain {self.stage} of "}.get(self.kind, "")
        return f"{self.document['name']}: {what}{self.label}, seed {self.seed}"

    def spec(self) -> tuple[Spec, Cell]:
        """What `run_cell` takes."""
        spec = spec_of(deepcopy(dict(self.document)), self.title)
        (cell,) = cells(spec)
        return spec, cell

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "document": dict(self.document), "maps": self.maps, "stage": self.stage}


class Stream:
    """The methods that stand ready for one of the paper's benchmarks."""

    def __init__(self, name: str, given: StreamSettings) -> None:
        self.name, self.note = name, given.note
        place = locate(given.config)
        sources = sorted(place.glob("*.toml")) if place.is_dir() else [place]
        documents = [read_document(source, given.changes) for source in sources]
        self._documents = {
            label: document | {"methods": {label: table}}
            for document in documents
            for label, table in document["methods"].items()
        }
        for label in ("bpg", "bpg-clip"):
            if label in self._documents:
                self._documents[label]["methods"][label] |= {"ways": list(FUSIONS)}

    @property
    def labels(self) -> list[str]:
        """The methods, BPG first."""
        return sorted(self._documents, key=lambda label: (label != "bpg", label))

    def document(self, label: str) -> dict[str, Any]:
        """The settings of a method."""
        if label not in self._documents:
            raise unknown_name("method of this stream", label, self._documents)
        return deepcopy(self._documents[label])

    def run(self, label: str, seed: int, *, like: str = "", maps: bool = False, **changes: Any) -> Job:
        """A run of `label`: one of the methods, or one `like` it with `changes` of its settings."""
        return Job("run", self._changed(label, seed, like, changes), maps)

    def survey(self, seed: int, *, like: str = "bpg", **changes: Any) -> Job:
        """How separable each domain is, and which r_t follows."""
        document = self._changed("bpg", seed, like, changes)
        document["methods"]["bpg"].pop("ways", None)  # nothing is answered: one survey, one key
        return Job("survey", document)

    def _changed(self, label: str, seed: int, like: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        document = self.document(like or label)
        ((first, table),) = document["methods"].items()
        if changes:
            table.pop("ways", None)  # they are BPG's own ablation
        for name, value in changes.items():
            table[name] = table.get(name, {}) | value if isinstance(value, dict) else value
        if label != first:
            table.setdefault("method", first)
        return document | {"methods": {label: table}, "seeds": [seed]}


def read_scale(name: str) -> Scale:
    """The scale called `name`, or the one of a TOML file."""
    own = name.endswith(".toml")
    if not own and name not in SCALES:
        raise unknown_name("scale", name, SCALES)
    file = Path(name) if own else Path(str(files("bpg").joinpath("experiments", "scales", f"{name}.toml")))
    return parse(Scale, read_document(file), where=f"scale {name}")


def streams_of(scale: Scale) -> dict[str, Stream]:
    """What stands for each of the paper's benchmarks at this scale."""
    return {name: Stream(name, scale.streams[name]) for name in STREAMS if name in scale.streams}


def paper() -> dict[str, Any]:
    """The numbers that the paper prints."""
    found: dict[str, Any] = json.loads(Path(str(files("bpg").joinpath("experiments", "paper.json"))).read_text("utf-8"))
    return found
