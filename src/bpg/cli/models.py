"""What `bpg inspect`, `forget`, `merge` and `methods` do. None of them needs a backbone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bpg.cli.app import Common
from bpg.cli.images import check_place
from bpg.cli.tables import print_json, print_pairs, print_table
from bpg.config import flat
from bpg.errors import WrongUse
from bpg.folders import cache_folder
from bpg.methods.base import Isolated, Learner, is_routable
from bpg.methods.pages import page
from bpg.methods.parts.heads import OF
from bpg.methods.parts.states import classes_of, joined, without
from bpg.registry import METHODS
from bpg.store import State, digest_of, history, load_state, save_state


def inspect_model(common: Common, folder: Path) -> None:
    """What is in a model; its backbone is not needed."""
    state = load_state(folder)
    domains = [
        {
            "domain": name,
            "separability": learned.facts.get("separability"),
            "rank": learned.facts.get("rank"),
            "parameters": learned.facts.get("parameters"),
            "megabytes": _megabytes(learned.tensors.values()),
            "classes": len(learned.facts["classes"]),
            "images": learned.facts.get("images"),
        }
        for name, learned in sorted(state.domains.items())
    ]
    centres = {
        name: learned.tensors["prototypes"]
        for name, learned in sorted(state.domains.items())
        if "prototypes" in learned.tensors
    }
    apart = _distances_between(centres)
    every = [*state.shared.values(), *(t for learned in state.domains.values() for t in learned.tensors.values())]
    document: dict[str, Any] = {
        "model": str(folder),
        "digest": digest_of(folder),
        "method": state.method,
        "backbone": dict(state.backbone),
        "settings": dict(state.settings),
        "domains": domains,
        "megabytes": _megabytes(every),
        "classes": _classes(state),
        "kept_images": _kept(state),
        "distances": apart,
        "history": history(folder),
    }
    if common.json:
        print_json(document)
        return
    about: dict[str, Any] = {key: document[key] for key in ("digest", "method", "megabytes")}
    classes = document["classes"]
    shown = f"{len(classes)}: {', '.join(classes[:10])}{' and more' if len(classes) > 10 else ''}"
    print_pairs(str(folder), about | {"backbone": state.backbone["name"], "classes": shown})
    if document["kept_images"]:
        _tell_kept(document["kept_images"])
    if domains:
        columns = ("domain", "separability", "rank", "parameters", "megabytes", "classes", "images")
        print("\ndomains")
        print_table(domains, columns=columns)
    if len(centres) > 1:
        print("\ndistances between domains: the nearest prototypes of each pair; features have length 1")
        print_table([{"domain": one, **row} for one, row in apart.items()], columns=["domain", *apart])
    print("\nhistory")
    print_table(document["history"], columns=("at", "event", "model"))


def _kept(state: State) -> dict[str, Any] | None:
    """The images that a model keeps of its domains, or refers to; None where it keeps none."""
    memory = state.facts.get("memory")
    if not memory or not memory["names"]:
        return None
    files = state.shared["memory/files"]
    return {
        "images": len(memory["names"]),
        "megabytes": files.numel() / 1e6,
        "stored": memory["keeps"],
        "domains": dict(sorted(Counter(memory["domains"]).items())),
    }


def _tell_kept(kept: Mapping[str, Any]) -> None:
    of = ", ".join(f"{count} of {name}" for name, count in kept["domains"].items())
    if kept["stored"] == "images":
        print(f"\nThis model stores images: {kept['images']}, {kept['megabytes']:.2f} MB ({of}).")
        print("Whoever has it has them: think of that before you pass it on.")
    else:
        print(f"\nThis model refers to {kept['images']} image files ({of}); to go on learning, it needs them.")


def forget_domain(common: Common, folder: Path, name: str, *, purge_cache: bool) -> None:
    """Make the model in `folder` the one that never learned `name`."""
    before = digest_of(folder)
    state = _isolated(folder)
    after = without(state, name)
    digest = save_state(after, folder, event=f"forgot {name}", expects=before)
    removed = sum(_purge(cache_folder() / kind) for kind in ("features", "pixels", "checked")) if purge_cache else 0
    _print_domains(common, folder, digest, after, {"purged_bytes": removed} if purge_cache else {})


def merge_models(common: Common, folder: Path, others: Sequence[Path], *, allow_new_classes: bool) -> None:
    """Give the model in `folder`, or a new one, the domains of `others`."""
    check_place(folder, "a model")
    exists = (folder / "model.json").exists()
    before = digest_of(folder) if exists else None
    states = [_isolated(place) for place in ([folder] if exists else []) + list(others)]
    result = states[0]
    for other in states[1:]:
        result = joined(result, other, allow_new_classes=allow_new_classes)
    event = f"merged with {', '.join(place.name for place in others)}"
    digest = save_state(result, folder, event=event, expects=before)
    _print_domains(common, folder, digest, result, {})


def describe_methods(common: Common, name: str | None) -> None:
    """The methods there are, or the settings of one."""
    if name is not None:
        told = page(name)
        if common.json:
            settings = flat(METHODS[name].Settings())
            print_json({"method": name, "idea": told.idea, "about": told.parts, "settings": settings})
            return
        print(f"{name}: {told.summary}\n\n{told.idea}\n")
        for part, text in told.parts.items():
            print(f"{part}: {text}")
        print()
        rows = [{"setting": each.name, "default": each.default, "what": each.what} for each in told.settings]
        print_table(rows, columns=("setting", "default", "what"))
        return
    methods = [
        {
            "method": each,
            "routable": is_routable(METHODS[each]),
            "isolated": issubclass(METHODS[each], Isolated),
            "what": _first_sentence(METHODS[each]),
        }
        for each in METHODS
    ]
    if common.json:
        print_json(methods)
    else:
        print_table(methods, columns=("method", "routable", "isolated", "what"))


def _isolated(folder: Path) -> State:
    state = load_state(folder)
    if not issubclass(METHODS[state.method], Isolated):
        raise WrongUse(
            f"a model of {state.method} cannot be taken apart",
            wanted="a method that keeps its domains apart: "
            + ", ".join(name for name in METHODS if issubclass(METHODS[name], Isolated)),
            came=f"{state.method}, whose domains share their parameters",
            remedy="Learn anew without the domain.",
        )
    return state


def _print_domains(common: Common, folder: Path, digest: str, state: State, more: Mapping[str, Any]) -> None:
    found = {"model": str(folder), "digest": digest, "domains": sorted(state.domains), **more}
    if common.json:
        print_json(found)
    else:
        print_pairs(str(folder), {**found, "domains": ", ".join(sorted(state.domains)) or "none"})


def _purge(folder: Path) -> int:
    """Remove the files below a cache folder; how many bytes that were."""
    removed = 0
    for file in folder.rglob("*") if folder.is_dir() else ():
        if file.is_file():
            removed += file.stat().st_size
            file.unlink()
    return removed


def _classes(state: State) -> list[str]:
    return classes_of(state) or sorted({row.partition(OF)[0] for row in state.facts.get("classes", [])})


def _megabytes(tensors: Iterable[torch.Tensor]) -> float:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) / 1e6


def _distances_between(centres: Mapping[str, torch.Tensor]) -> dict[str, dict[str, float]]:
    """Between each pair of domains, the smallest distance of a prototype of one from one of the other."""
    names = list(centres)
    return {
        one: {other: 0.0 if one == other else float(torch.cdist(centres[one], centres[other]).min()) for other in names}
        for one in names
    }


def _first_sentence(method: type[Learner]) -> str:
    return (method.__doc__ or "").strip().split("\n")[0]
