"""What isolation allows on stored models: to take a domain out, and to join two. No backbone is needed for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bpg.errors import ModelError, unknown_name
from bpg.methods.parts.identity import SAME, check_classes
from bpg.store import Learned, State


def classes_of(state: State) -> list[str]:
    """The union of the domains' classes, sorted."""
    return sorted({name for learned in state.domains.values() for name in learned.facts["classes"]})


def without(state: State, name: str) -> State:
    """The model that never learned the domain `name`."""
    if name not in state.domains:
        raise unknown_name("domain", name, state.domains)
    return replace(state, domains={known: kept for known, kept in state.domains.items() if known != name})


def joined(one: State, other: State, *, allow_new_classes: bool = False) -> State:
    """The model that learned the domains of both, which must have the same method, settings and backbone."""
    for part in ("method", "backbone", "settings"):
        ours, its = getattr(one, part), getattr(other, part)
        if part == "backbone":
            ours, its = ({key: side.get(key) for key in SAME} for side in (ours, its))
        if ours != its:
            raise ModelError(
                f"models of different {part} cannot be merged",
                wanted="the same in both",
                came=_differences(ours, its),
                remedy="Learn the domain anew in one of them.",
            )
    check_classes(classes_of(one), classes_of(other), allowed=allow_new_classes)
    for name in sorted(set(one.domains) & set(other.domains)):
        if not _equal(one.domains[name], other.domains[name]):
            raise ModelError(
                f"both models have a domain {name}, and they differ",
                wanted="the same expert under one name",
                came="two different ones",
                remedy="Forget one of them first.",
            )
    return replace(one, domains={**one.domains, **other.domains})


def _differences(ours: Any, its: Any) -> str:
    if not isinstance(ours, Mapping) or not isinstance(its, Mapping):
        return f"{ours} and {its}"
    return "; ".join(f"{key}: {ours.get(key)} and {its.get(key)}" for key in ours if ours.get(key) != its.get(key))


def _equal(one: Learned, other: Learned) -> bool:
    def same(ours: Tensor, its: Tensor) -> bool:
        return torch.equal(ours.cpu(), its.cpu())

    return (
        dict(one.facts) == dict(other.facts)
        and one.tensors.keys() == other.tensors.keys()
        and all(same(one.tensors[name], other.tensors[name]) for name in one.tensors)
    )
