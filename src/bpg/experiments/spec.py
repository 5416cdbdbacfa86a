"""What is to be run: a TOML file read into a `Spec`, strictly, with every fault told at once."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveInt

from bpg.backbones.faster import ARITHMETICS
from bpg.compute import Precision
from bpg.config import faults, faulty, settings
from bpg.data.folder import TEST_SHARE
from bpg.data.protocols import PROTOCOLS
from bpg.errors import BPGError, WrongUse, unknown_name
from bpg.methods.base import Learner, is_routable, usual_of
from bpg.methods.parts.ways import MIXTURES, OWN, WAY_OPTIONS
from bpg.mixture import FUSIONS, Fusion
from bpg.registry import DATASETS, METHODS, ROUTERS

CONFIGS = Path(str(files("bpg").joinpath("configs")))
FOLDER_NAME = r"^\w[\w .+=()-]*$"  # of an experiment and of a label: they name folders


@settings
class DataSpec:
    """Which images, in which order of domains."""

    root: str | None = None  # a folder in one of the known layouts; from here, or else from $BPG_DATA
    benchmark: str | None = None  # or a known name (`bpg data list`); with a root unless it ships with the package
    # The domains to learn, in this order, or a name that the benchmark has for one; if not given, its own, or by name.
    order: Annotated[tuple[str, ...], Field(min_length=1)] | str | None = None
    protocol: str | None = None  # pixels and augmentation as published code has them (`bpg.data.protocols`)
    per_class: PositiveInt | None = None  # training images a class, at most
    test_per_class: PositiveInt | None = None
    test_share: Annotated[float, Field(gt=0, lt=1)] = TEST_SHARE  # where the data has no split of its own
    strict: bool = False  # an unreadable image stops the run

    def __post_init__(self) -> None:
        if self.root is None and self.benchmark is None:
            raise WrongUse(
                "no data is named",
                wanted="data.root, a folder of images, or data.benchmark, a known name",
                came="neither",
                remedy="`bpg data list` tells the names.",
            )
        if isinstance(self.order, str) and self.benchmark is None:
            raise WrongUse(
                "an order has a name only in a benchmark",
                wanted="the domains in a list",
                came=repr(self.order),
                remedy="Write them out, or name data.benchmark.",
            )
        if self.protocol is not None and self.protocol not in PROTOCOLS:
            raise unknown_name("protocol", self.protocol, PROTOCOLS)


@settings
class BackboneSpec:
    """Which frozen backbone."""

    source: str  # a known name, a file, a folder or a hub repository
    architecture: str | None = None
    image_size: PositiveInt | None = None
    precision: Precision = "float32"
    revision: str | None = None


@settings
class Spec:
    """A stream, methods and seeds."""

    name: Annotated[str, Field(pattern=FOLDER_NAME)]
    data: DataSpec
    backbone: BackboneSpec
    methods: Annotated[
        dict[str, dict[str, Any]], Field(min_length=1)
    ]  # by label; `method` names another than the label
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = (0,)
    unseen: bool = False  # test on domains not yet learned, too


@dataclass(frozen=True, slots=True)
class Cell:
    """One method with one seed: what a run directory holds."""

    label: str
    method: str
    seed: int
    values: Mapping[str, Any]  # settings of the method, but for the seed
    options: Mapping[str, Any]  # of a routable method: how it answers, no part of what it learns
    ways: tuple[Fusion, ...] = ()  # fusions under which a routable method is measured besides the usual ways

    @property
    def title(self) -> str:
        return f"{self.label}, seed {self.seed}"

    def build(self, backbone: Any, **more: Any) -> Learner:
        """The learner, which has learned nothing yet."""
        method = METHODS[self.method]
        made: Learner = method(backbone, seed=self.seed, **self.values, **self.answering(method), **more)
        return made

    def answering(self, method: type[Learner]) -> dict[str, Any]:
        """The options it answers by: experiments compare with what is published, so that the mixture is the paper's
        where a method has no usual way.
        """
        first = {} if usual_of(method) is not None else {"mixture": "paper"}
        return first | dict(self.options) if is_routable(method) else {}


def locate(name: str | Path) -> Path:
    """The settings file or the folder of them at the path `name`, or what ships as, say, emoji or domainnet/bpg.

    A folder without settings is not meant: images may lie in one that is called as their benchmark.
    """
    place, ships = Path(name), CONFIGS / name
    if place.is_file() or any(place.glob("*.toml")):
        return place
    ships = ships if ships.is_dir() else ships.with_name(f"{ships.name}.toml")
    return ships if ships.exists() else place


def read_document(file: str | Path, changes: Sequence[str] = ()) -> dict[str, Any]:
    """What stands in a TOML `file`, or in the one that ships under that name, with `changes` of the form a.b=c."""
    try:
        document = tomllib.loads(locate(file).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        came = getattr(error, "strerror", None) or str(error)
        names = sorted(path.relative_to(CONFIGS).with_suffix("").as_posix() for path in CONFIGS.rglob("*.toml"))
        near = get_close_matches(str(file).removeprefix("configs/").removesuffix(".toml"), names, n=1)
        remedy = f"Check the path; {near[0]} ships with the package." if near else "Check the path."
        wanted = "a TOML file, or the name of one that ships"
        raise WrongUse(f"cannot read {file}", wanted=wanted, came=came, remedy=remedy) from error
    except tomllib.TOMLDecodeError as error:
        raise WrongUse(
            f"{file} is no TOML", wanted="TOML", came=str(error), remedy="Correct the line it names."
        ) from error
    for change in changes:
        apply_change(document, change)
    return document


def read_spec(file: str | Path, changes: Sequence[str] = ()) -> Spec:
    """The spec in a TOML `file`, or in the one that ships under that name, with `changes` on top of it."""
    return spec_of(read_document(file, changes), str(file))


def spec_of(document: dict[str, Any], origin: str) -> Spec:
    """The spec that a document says; `origin` is what it is called where it is wrong."""
    found = faults(Spec, document) + _benchmark_faults(document.get("data")) + _method_faults(document.get("methods"))
    seeds = document.get("seeds")
    if isinstance(seeds, list) and any(seeds.count(seed) > 1 for seed in seeds):
        found.append(f"seeds: {seeds} names one twice")
    if found:
        raise faulty(
            f"{len(found)} wrong setting{'s' if len(found) > 1 else ''} in {origin}",
            found,
            wanted=", ".join(Spec.__dataclass_fields__),
        )
    return Spec(**document)


def cells(spec: Spec) -> list[Cell]:
    """Every method with every seed; all methods of a seed before the next."""
    made = []
    for seed in spec.seeds:
        for label, table in spec.methods.items():
            values = {key: value for key, value in table.items() if key not in (*WAY_OPTIONS, "method", "ways")}
            options = {key: table[key] for key in WAY_OPTIONS if key in table}
            if spec.data.protocol is not None and "augmentation" not in values:
                fields = METHODS[table.get("method", label)].Settings.__dataclass_fields__
                values |= (
                    {"augmentation": asdict(PROTOCOLS[spec.data.protocol].augmentation)}
                    if "augmentation" in fields
                    else {}
                )
            made.append(Cell(label, table.get("method", label), seed, values, options, tuple(table.get("ways", ()))))
    return made


def apply_change(document: dict[str, Any], change: str) -> None:
    """Set what `change`, a.b=c, says; c is TOML, or else a text."""
    path, equals, text = change.partition("=")
    names = [part.strip() for part in path.split(".")]
    if not equals or not all(names):
        raise WrongUse(
            "no setting is given",
            wanted="NAME=VALUE or PART.NAME=VALUE",
            came=repr(change),
            remedy="Write it as in seeds=[0].",
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    for name in names[:-1]:
        inner = document.setdefault(name, {})
        if not isinstance(inner, dict):
            raise WrongUse(
                f"{name} has no settings below it", wanted="a table", came=repr(inner), remedy=f"Set {name} itself."
            )
        document = inner
    document[names[-1]] = value


def data_root(root: str) -> Path:
    """Where `root` lies: as it is, from here, or from $BPG_DATA."""
    path = Path(os.path.expanduser(root))
    places = [path] + ([Path(os.path.expanduser(os.environ["BPG_DATA"])) / path] if os.environ.get("BPG_DATA") else [])
    for place in places:
        if place.exists():
            return place
    raise WrongUse(
        f"there is no data at {root}",
        wanted="a folder of images",
        came=f"nothing at {' or '.join(map(str, places))}",
        remedy="Set data.root to where it lies, or $BPG_DATA to the folder that holds it.",
    )


def _benchmark_faults(data: object) -> list[str]:
    if not isinstance(data, dict) or not isinstance(data.get("benchmark"), str):
        return []
    name = data["benchmark"]
    if name not in DATASETS:
        error = unknown_name("benchmark", name, DATASETS)
        return [f"data.benchmark: {error.problem}. {error.remedy}"]
    return ["data.test_share: a benchmark has its own rule for it"] if "test_share" in data else []


def _method_faults(methods: object) -> list[str]:
    if not isinstance(methods, dict):
        return []
    return [fault for label, table in methods.items() for fault in _faults_of(label, table)]


def _faults_of(label: str, table: object) -> list[str]:
    where = f"methods.{label}"
    if not isinstance(table, dict):
        return []
    if not re.match(FOLDER_NAME, label):
        return [f"{where}: a label names a folder: letters, digits, spaces and .+=()- only"]
    try:
        method = METHODS[str(table.get("method", label))]
    except BPGError as error:
        return [f"{where}: {error.problem}. {error.remedy}"]
    found = []
    values = {key: value for key, value in table.items() if key != "method"}
    if "seed" in values:
        found.append(f"{where}.seed: seeds stand at the top, for all methods")
        del values["seed"]
    if is_routable(method):
        ways = values.pop("ways", [])
        if not isinstance(ways, list) or not set(ways) <= set(FUSIONS):
            found.append(f"{where}.ways: a list of {', '.join(FUSIONS)} is wanted, {ways!r} came")
        for key, names in (
            ("mixture", MIXTURES),
            ("router", ROUTERS),
            ("fusion", FUSIONS),
            ("arithmetic", ARITHMETICS),
        ):
            known = list(names) + ([OWN] if key == "router" and usual_of(method) == OWN else [])
            given = values.pop(key, known[0])
            if given not in known:
                near = get_close_matches(str(given), known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
                found.append(f"{where}.{key}: no {key} is called {given!r}, {hint}")
        for key, least in (("route_depth", 0), ("max_experts", 1)):
            given = values.pop(key, least)
            if not isinstance(given, int) or isinstance(given, bool) or given < least:
                found.append(f"{where}.{key}: a whole number from {least} on is wanted, {given!r} came")
    return found + faults(method.Settings, values, where=where)
