"""What a run leaves behind, and how it is read back. Tables and figures are functions of this alone.

RUNS/NAME/LABEL-seedN-DIGEST/
  run.json        what ran on what: settings, backbone, data manifest, versions, machine
  records.jsonl   a line for each evaluation: counts by test set, class and likeliest domain; the domains' facts
  curves.jsonl    a line for each training step: domain, step, loss
  times.jsonl     a line for each piece of work: images, seconds by the wall and of the processor, parameters trained;
                  and of passes through the frozen backbone, which tell how fast the machine was
  portrait.json   of a model that routes, when it is finished: some answers, and a map of its domains
  maps.json       where it was asked for: what the frozen backbone and each expert make of the test images
  model/          the model
  scratch/        while it learns: checkpoints, and what the domain has cost so far
  parts/          domains that were learned apart
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bpg.errors import ModelError, WrongUse
from bpg.metrics import Counts

ABOUT, RECORDS, CURVES, TIMES = "run.json", "records.jsonl", "curves.jsonl", "times.jsonl"
PORTRAIT, MAPS, PARTS = "portrait.json", "maps.json", "parts"
FORMAT = 1


WAYS = ("own", "calibrated", "soft", "hard", "oracle")  # the order they are told in


@dataclass(frozen=True)
class Run:
    """One run as its directory tells it."""

    folder: Path
    about: Mapping[str, Any]
    records: tuple[Mapping[str, Any], ...]

    @property
    def label(self) -> str:
        return str(self.about["label"])

    @property
    def seed(self) -> int:
        return int(self.about["seed"])

    @property
    def order(self) -> list[str]:
        """The domains in the order of learning."""
        return [domain["name"] for domain in self.about["data"]["domains"]]

    @property
    def finished(self) -> bool:
        return bool(self.records) and self.records[-1]["stage"] == len(self.order)

    @property
    def ways(self) -> list[str]:
        """The ways it was measured in, the method's own first."""
        return self.ways_of(self.records[-1]) if self.records else []

    @staticmethod
    def ways_of(record: Mapping[str, Any]) -> list[str]:
        """The ways of one record."""
        own, ways = record["own"], record["ways"]
        return [own, *(way for way in WAYS if way in ways and way != own)]

    @property
    def of_domains(self) -> bool:
        """Whether its test sets belong to its domains."""
        return any(domain["test"] for domain in self.about["data"]["domains"])

    @property
    def tests(self) -> list[str]:
        """The test sets that are counted: those of the domains, in their order, or else all."""
        return self.order if self.of_domains else [test["name"] for test in self.about["data"]["tests"]]

    def counts(self, way: str) -> Counts:
        """What metrics are made of: right and total of each of `tests`, after each domain."""
        names = self.tests
        totals = {t["name"]: t["total"] for record in self.records for t in record["ways"][way]}
        rows = []
        for record in self.records:
            right = {test["name"]: test["correct"] for test in record["ways"][way]}
            rows.append(tuple(right.get(name) for name in names))
        return Counts(tuple(rows), tuple(totals.get(name, 0) for name in names), self.of_domains)

    def last(self, way: str) -> list[Mapping[str, Any]]:
        """The tallies after the last domain."""
        return list(self.records[-1]["ways"][way])

    @cached_property
    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """(step, loss) of each domain. Steps that were done twice, before and after an interruption, count once."""
        found: dict[str, dict[int, float]] = {}
        for line in lines(self.folder / CURVES):
            found.setdefault(line["domain"], {})[line["step"]] = line["loss"]
        return {domain: sorted(steps.items()) for domain, steps in found.items()}

    @cached_property
    def portrait(self) -> Mapping[str, Any] | None:
        """Some answers and a map of the domains, where there are any."""
        return read_optional(self.folder / PORTRAIT, _check_portrait)

    @cached_property
    def maps(self) -> Mapping[str, Any] | None:
        """What `bpg.experiments.maps` drew, where it was asked to."""
        return read_optional(self.folder / MAPS, _check_maps)

    @cached_property
    def times(self) -> list[dict[str, Any]]:
        return list(lines(self.folder / TIMES))


def _check_portrait(found: Mapping[str, Any]) -> None:
    """Raise KeyError and its like where something is missing that the report shows."""
    for answer in found["answers"]:
        for key in ("test", "path", "true", "label", "probability"):
            answer[key]
        answer["weights"].items()
    for pairs in (*found["map"]["points"].values(), *found["map"]["prototypes"].values()):
        for x, y in pairs:
            float(x), float(y)


def _check_maps(found: Mapping[str, Any]) -> None:
    for test in found["tests"].values():
        for points in (test["frozen"], test.get("expert", test["frozen"])):
            for (x, y), label in zip(points, test["labels"], strict=True):
                test["classes"][label], float(x), float(y)
    for answer in found["border"]:
        answer["test"], answer["path"], answer["true"]
        for way in ("hard", "soft"):
            answer[way]["label"], answer[way]["weights"].items()


def read_optional(file: Path, check: Callable[[Mapping[str, Any]], object]) -> dict[str, Any] | None:
    """What stands in a file that may be missing; one that cannot be read, or fails the check, is told and left out."""
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        check(found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        warnings.warn(f"{file} is left out: {type(error).__name__}: {error}", stacklevel=2)
        return None
    return found


def read_run(folder: Path) -> Run:
    """The run in `folder`."""
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if about["format"] != FORMAT:
            raise ValueError(f"format {about['format']}, where {FORMAT} is known")
        run = Run(folder, about, tuple(lines(folder / RECORDS)))
        stages = [record["stage"] for record in run.records]
        if stages != list(range(1, len(stages) + 1)) or len(stages) > len(run.order):
            raise ValueError(f"records of the stages {stages} of {len(run.order)}")
        known = [run.label, run.seed, about["method"], about["digest"], about["backbone"]["name"]]
        if not all(isinstance(value, str | int) for value in known):
            raise ValueError(f"{known} for label, seed, method, digest and backbone")
        for record in run.records:
            run.ways_of(record)
            for tallies in record["ways"].values():
                for tally in tallies:
                    tally["name"], tally["domain"], tally["correct"] + tally["total"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{folder} is no run that can be read",
            wanted=f"{ABOUT} and {RECORDS} as `bpg run` writes them",
            came=f"{type(error).__name__}: {error}",
            remedy="Remove the folder and run it again.",
        ) from error
    return run


def read_runs(folders: Iterable[str | Path]) -> list[Run]:
    """Every run at or below `folders`, by label and seed; a copy of one counts once, a damaged one is told."""
    places = {file.parent.resolve() for folder in folders for file in Path(folder).rglob(ABOUT)}
    found: dict[tuple[str, str], Run] = {}
    for place in sorted(places):
        try:
            run = read_run(place)
        except ModelError as error:
            warnings.warn(f"{error}", stacklevel=2)
            continue
        key = (run.label, str(run.about["digest"]))
        if key not in found or len(run.records) > len(found[key].records):
            found[key] = run
    runs = list(found.values())
    if not runs:
        raise WrongUse(
            "there are no runs",
            wanted="a folder that `bpg run` wrote to",
            came=f"no {ABOUT} below {', '.join(map(str, folders))}",
            remedy="Check the path, or run something first.",
        )
    return sorted(runs, key=lambda run: (run.label, run.seed, run.folder))


def write_json(file: Path, value: Any) -> None:
    """`value` in the place of the file, in one step."""
    replace_text(file, json.dumps(value, indent=1, sort_keys=True) + "\n")


def write_lines(file: Path, values: Iterable[Any]) -> None:
    """A line a value, in the place of the file, in one step."""
    replace_text(file, "".join(json.dumps(value, sort_keys=True) + "\n" for value in values))


def append_line(file: Path, value: Any) -> None:
    """A line more, which a kill leaves whole or cut: a cut last line is not read."""
    with file.open("ab", buffering=0) as out:
        out.write(json.dumps(value, sort_keys=True).encode() + b"\n")


def replace_text(file: Path, text: str) -> None:
    """`text` in the place of the file, in one step."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    except OSError as error:
        error.filename = error.filename or str(file)  # a full disk names none
        raise
    finally:
        part.unlink(missing_ok=True)


def lines(file: Path) -> Iterable[dict[str, Any]]:
    """What stands in a file of lines, but for what a kill has cut."""
    if not file.is_file():
        return
    for line in file.read_bytes().split(b"\n"):
        try:
            value = json.loads(line)
        except ValueError:  # cut by a kill, alone or with the next line behind it
            continue
        if isinstance(value, dict):
            yield value
