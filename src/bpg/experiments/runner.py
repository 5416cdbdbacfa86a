"""Runs cells, one after another. Killed at any moment, the same call goes on and ends with the same records."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch

import bpg
from bpg.backbones.backbone import Backbone
from bpg.compute import wait_for_devices
from bpg.data.domain import Domain, DomainStream, TestSet
from bpg.errors import ModelError, WrongUse
from bpg.experiments.evaluation import evaluate, ways_of
from bpg.experiments.manifest import Data, identity_of
from bpg.experiments.maps import maps_of
from bpg.experiments.portrait import portrait
from bpg.experiments.records import (
    ABOUT,
    CURVES,
    FORMAT,
    MAPS,
    PARTS,
    PORTRAIT,
    RECORDS,
    TIMES,
    Run,
    append_line,
    lines,
    read_run,
    replace_text,
    write_json,
    write_lines,
)
from bpg.experiments.spec import Cell, Spec
from bpg.methods.base import Isolated, Learner, Routable, prepared
from bpg.methods.parts.identity import SAME, as_json, identity
from bpg.methods.parts.memory import of_memory
from bpg.methods.parts.pool import for_routing
from bpg.progress import Clock, Progress, added
from bpg.ranks import agree, gathered, once, rank_and_ranks
from bpg.store import digest_of, history

TIMED = 256  # images
PASSED = 16  # images that pass through the frozen backbone after each domain
NOTED = 2.0  # seconds between two notes of what learning has cost: what a kill loses of it at most
LEARNING = "learning.json"  # in the scratch folder, those notes
Show = Callable[[Progress], None]
Bar = Callable[[str], AbstractContextManager[Show]]


def run_cell(
    spec: Spec,
    cell: Cell,
    backbone: Backbone,
    data: Data,
    out: Path,
    *,
    bar: Bar,
    after: Callable[[Run], None] | None = None,
    maps: bool = False,
    checkpoint_seconds: float = 10.0,
) -> Run:
    """Learn and test one domain after another, and leave the records in a directory below `out`.

    `after` is told the run as it stands when a domain is learned and tested. With `maps`, what the experts make of
    the test images is drawn, too, but not of a finished run whose model is gone. A domain that `learn_part` has learned
    apart is merged in, to the same bytes.
    """
    options: dict[str, Any] = {"allow_new_classes": True, "checkpoint_seconds": checkpoint_seconds}
    model = cell.build(backbone, **options)
    folder = folder_of(spec, cell, model, data, out)
    run = read_run(folder)
    wanted = not run.finished or (maps and not (folder / MAPS).is_file())
    learned = _learned(folder / "model", run.order) if wanted else 0
    if learned:
        model = type(model).load(folder / "model", backbone=backbone, **options, **cell.answering(type(model)))
    agree("the run so far", f"{folder.name}, {learned} domains learned, {len(run.records)} tested")
    if run.finished:
        if wanted:
            once(lambda: _map(model, learned, data, folder))
        return run
    model.scratch = folder / "scratch"
    if len(run.records) < learned - 1:
        raise ModelError(
            f"{folder} has lost records",
            wanted=f"{learned - 1} or {learned} for a model of {learned} domains",
            came=str(len(run.records)),
            remedy="Remove the folder to run it again: the model of that time is gone.",
        )
    records = list(run.records)[:learned]
    for stage, domain in enumerate(data.stream.domains, start=1):
        with bar(f"{cell.title}: {domain.name}") as show:
            part = folder / PARTS / str(stage)
            apart = (part / "model" / "model.json").is_file()
            if stage > learned:
                if apart:
                    _take_in(model, part, folder)
                else:
                    _learn(model, domain, folder, show)
                model.save(folder / "model", event=f"learned {domain.name}")
            once(partial(_note_learned, domain.name, part if apart else folder, folder))
            if stage > len(records):
                records.append(_test(spec, cell, model, data.stream, stage, folder, show))
                if stage == len(data.stream.domains):  # before the last record, which says that the run is finished
                    once(lambda: _draw(model, data, folder))
                    if maps:
                        once(partial(_map, model, stage, data, folder))
                once(lambda: write_lines(folder / RECORDS, records))
        if after is not None:
            after(read_run(folder))
    once(lambda: _clear(folder))
    return read_run(folder)


def _clear(folder: Path) -> None:
    for left in ("scratch", PARTS):
        shutil.rmtree(folder / left, ignore_errors=True)


def learn_part(
    spec: Spec,
    cell: Cell,
    backbone: Backbone,
    data: Data,
    out: Path,
    *,
    stage: int,
    bar: Bar,
    checkpoint_seconds: float = 10.0,
) -> Path:
    """Learn the domain of one stage by itself, for `run_cell` to merge: experts of isolated methods are independent.

    Several processes can do this at once, each for another stage of the same run.
    """
    model = cell.build(backbone, allow_new_classes=True, checkpoint_seconds=checkpoint_seconds)
    if not isinstance(model, Isolated):
        raise WrongUse(
            f"domains of {cell.method} cannot be learned apart",
            wanted="a method whose domains are isolated",
            came=cell.method,
            remedy="Run the whole stream in one piece.",
        )
    folder = folder_of(spec, cell, model, data, out)
    part = folder / PARTS / str(stage)
    domain = data.stream.domains[stage - 1]
    if read_run(folder).finished or (part / "model" / "model.json").is_file():
        return part
    (part / CURVES).unlink(missing_ok=True)  # of a process that was killed before it had saved
    part.mkdir(parents=True, exist_ok=True)
    model.scratch = part / "scratch"
    with bar(f"{cell.title}: {domain.name}") as show:
        _learn(model, domain, part, show)
    model.save(part / "model", event=f"learned {domain.name}")
    return part


def folder_of(spec: Spec, cell: Cell, model: Learner, data: Data, out: Path) -> Path:
    """The directory of a run, which says what it is of."""
    about = _about(spec, cell, model, data)
    folder = out / spec.name / f"{cell.label}-seed{cell.seed}-{about['digest'][:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    once(lambda: None if (folder / ABOUT).is_file() else write_json(folder / ABOUT, about))
    return folder


def _take_in(model: Learner, part: Path, folder: Path) -> None:
    """Merge the domain that was learned apart in `part`."""
    assert isinstance(model, Isolated)  # or nobody would have learned it apart
    model.merge(type(model).load(part / "model", backbone=model.backbone, allow_new_classes=True))
    for line in lines(part / CURVES):
        append_line(folder / CURVES, line)


def _map(model: Learner, learned: int, data: Data, folder: Path) -> None:
    if learned == len(data.stream.domains):
        replace_text(folder / MAPS, json.dumps(maps_of(model, data.stream.tests, data.root), sort_keys=True) + "\n")
    else:
        warnings.warn(f"{folder} has records and no model: no maps are drawn of it", stacklevel=2)


def _learn(model: Learner, domain: Domain, folder: Path, show: Show) -> None:
    """Learn `domain`, and keep in the scratch folder what it has cost so far, over all the times it was begun."""
    assert model.scratch is not None
    model.scratch.mkdir(parents=True, exist_ok=True)
    file, (rank, ranks) = model.scratch / LEARNING, rank_and_ranks()
    before = _cost_so_far(file, domain.name)
    began, noted = Clock(), time.monotonic()

    def note(spent: Mapping[str, float]) -> None:
        of_it: dict[str, Any] = {**before["of_it"]}
        for activity, own in model.spent_so_far.items():
            of_it[activity] = added(own, of_it.get(activity, {}))
        trained = max(model.trained_numbers, before["trained"])
        line = {"what": "learn", "domain": domain.name, "images": len(domain.train), **added(spent, before)}
        write_json(file, line | {"trained": trained, "of_it": of_it})

    def tell(now: Progress) -> None:
        nonlocal noted
        show(now)
        if rank == 0 and time.monotonic() > noted + NOTED:
            own, noted = began.as_dict(), time.monotonic()
            note(own | {"processor_seconds": ranks * own["processor_seconds"]})  # the others are busy as this one is
        if now.loss is not None and now.activity == "training":
            line = {"domain": domain.name, "step": now.step, "loss": float(f"{now.loss:.5g}")}
            append_line(folder / CURVES, line)

    model.progress, model.trained_numbers, model.spent = tell, 0, {}
    model.learn(domain)
    spent = _over_ranks(began)
    once(lambda: note(spent))


def _cost_so_far(file: Path, domain: str) -> dict[str, Any]:
    """What was noted of learning `domain` before it was interrupted."""
    nothing = {"trained": 0, "of_it": {}}
    found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else nothing
    return found if found.get("domain") == domain else nothing


def _note_learned(domain: str, learned_in: Path, folder: Path) -> None:
    """The one line about a domain whose model is saved, which a kill may have prevented."""
    file = learned_in / "scratch" / LEARNING
    cost = _cost_so_far(file, domain)
    known = any((line["what"], line["domain"]) == ("learn", domain) for line in lines(folder / TIMES))
    if "domain" in cost and not known:
        append_line(folder / TIMES, cost)


def _test(
    spec: Spec, cell: Cell, model: Learner, stream: DomainStream, stage: int, folder: Path, show: Show
) -> dict[str, Any]:
    began = Clock()
    known = {domain.name for domain in stream.domains[:stage]}
    tests = [test for test in stream.tests if spec.unseen or test.domain is None or test.domain in known]
    tallies = evaluate(model, tests, ways=ways_of(model, cell.ways), shared=True, progress=show)
    learned = stream.domains[stage - 1].name
    _note_time(folder, "test", learned, sum(len(test.images) for test in tests), _over_ranks(began))
    once(lambda: time_pass(model.backbone, learned, folder))
    state = model.state()
    tensors = [*state.shared.values(), *(t for kept in state.domains.values() for t in kept.tensors.values())]
    files = [tensor for name, tensor in state.shared.items() if of_memory(name)]
    if stage == len(stream.domains):
        once(lambda: _time_answers(model, tests, folder))
    routing = [tensor for kept in state.domains.values() for name, tensor in kept.tensors.items() if for_routing(name)]
    kept = state.facts.get("memory")
    return {
        "stage": stage,
        "learned": learned,
        "own": next(iter(tallies)),
        "ways": {way: [tally.as_dict() for tally in of_way] for way, of_way in tallies.items()},
        "stored_numbers": sum(tensor.numel() for tensor in tensors) - sum(tensor.numel() for tensor in files),
        "stored_bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        "routing_numbers": sum(tensor.numel() for tensor in routing),
        "routing_bytes": sum(tensor.numel() * tensor.element_size() for tensor in routing),
        "kept_images": len(kept["names"]) if kept else 0,
        "kept_as": kept["keeps"] if kept else None,
        "facts": {name: _brief(kept.facts) for name, kept in state.domains.items()},
    }


@torch.no_grad()
def time_pass(backbone: Backbone, domain: str, folder: Path) -> None:
    """How long images take through the frozen backbone: what costs of runs on several machines are compared by."""
    size = backbone.preprocessing.size
    images = torch.zeros(PASSED, 3, size, size, device=backbone.device)
    wait_for_devices()
    began = Clock()
    backbone(images)  # it answered test images just now: nothing is done for the first time
    wait_for_devices()
    _note_time(folder, "pass", domain, PASSED, began.as_dict())


@torch.no_grad()
def _time_answers(model: Learner, tests: Sequence[TestSet], folder: Path) -> None:
    """How long the finished model takes to answer by its own way, images prepared before."""
    share = max(1, -(-sum(len(test.images) for test in tests) // TIMED))
    batches = []
    for test in tests:
        batches += list(prepared(model.backbone, test.images.subset(range(0, len(test.images), share)), 32))
    if not batches:
        return
    model.forward(batches[0])  # the first call allocates
    wait_for_devices()
    began = Clock()
    for batch in batches:
        model.forward(batch)
    wait_for_devices()
    _note_time(folder, "answer", "", sum(map(len, batches)), began.as_dict())


def _draw(model: Learner, data: Data, folder: Path) -> None:
    drawn = portrait(model, data.stream.tests, data.root)
    if drawn is not None:
        write_json(folder / PORTRAIT, drawn)


def _brief(facts: Any) -> dict[str, Any]:
    return {key: len(value) if key == "classes" else value for key, value in facts.items()}


def _learned(folder: Path, order: list[str]) -> int:
    """How many domains the model in `folder` has learned, from the history entry that made it."""
    if not (folder / "model.json").is_file():
        return 0
    digest = digest_of(folder)
    event = next((str(entry["event"]) for entry in reversed(history(folder)) if entry["model"] == digest), "")
    if event.removeprefix("learned ") not in order:
        raise ModelError(
            f"{folder} was changed by somebody else",
            wanted=f"the model after one of {', '.join(order)}",
            came=event or "a model without a history",
            remedy="Remove the run's folder to run it again.",
        )
    return order.index(event.removeprefix("learned ")) + 1


def _over_ranks(began: Clock) -> dict[str, float]:
    """What has passed by this rank's wall, and what all of them have computed; for all ranks."""
    own = began.as_dict()
    return own | {"processor_seconds": round(sum(gathered(own["processor_seconds"])), 2)}


def _note_time(folder: Path, what: str, domain: str, images: int, spent: Mapping[str, float]) -> None:
    if rank_and_ranks()[0] == 0:
        append_line(folder / TIMES, {"what": what, "domain": domain, "images": images, **spent})


def _about(spec: Spec, cell: Cell, model: Learner, data: Data) -> dict[str, Any]:
    """All that the result depends on, its digest, and what it ran on."""
    own = {
        "format": FORMAT,
        "method": cell.method,
        "settings": as_json(model.settings),
        "options": dict(cell.options),
        "seed": cell.seed,
        "unseen": spec.unseen,
        "data": data.manifest,
    }
    if data.manifest["protocol"] is not None:
        own |= {"protocol": data.manifest["protocol"]}
    if cell.ways:
        own |= {"ways": list(cell.ways)}
    backbone = identity(model.backbone, model.weights)
    key = own | {
        "data": identity_of(data),
        "backbone": [backbone[part] for part in SAME],
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return own | {
        "label": cell.label,
        "experiment": spec.name,
        "digest": digest,
        "backbone": backbone,
        "promises": {"routable": isinstance(model, Routable), "isolated": isinstance(model, Isolated)},
        "versions": {"bpg": bpg.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "device": str(model.backbone.device),
            "threads": torch.get_num_threads(),
            "ranks": int(os.environ.get("WORLD_SIZE", "1")),
        },
    }
