"""What a stored model says of itself, and what must fit when it is taken up again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any

import torch
from torch import nn

from bpg.backbones.backbone import Backbone
from bpg.errors import ModelError, WrongUse
from bpg.store import State

SAME = ("sha256", "preprocessing", "precision")  # what makes a backbone the same; its name does not


def as_json(settings: Any) -> dict[str, Any]:
    """Settings as JSON gives them back: lists in the place of tuples, and without what came `later` and is not used."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            found[field.name] = as_json(value)
        elif "later" in field.metadata and value == field.default:
            del found[field.name]
    return found


def identity(backbone: Backbone, weights: str) -> dict[str, Any]:
    """The backbone, of the digest `weights`, as a model names it."""
    pixels = as_json(backbone.preprocessing)
    return {"name": backbone.name, "sha256": weights, "preprocessing": pixels, "precision": backbone.precision}


def check_backbone(state: State, backbone: Backbone, weights: str) -> None:
    """Raise ModelError unless the model was learned on this backbone, with these pixels."""
    wanted, came = state.backbone, identity(backbone, weights)
    for part in SAME:
        if wanted.get(part) != came[part]:
            raise ModelError(
                "the model was learned on another backbone",
                wanted=f"{wanted['name']} with {part} {wanted.get(part)}",
                came=f"{came['name']} with {came[part]}",
                remedy="Load the backbone that the model names, with its own pixels.",
            )


def check_classes(known: Sequence[str], given: Sequence[str], *, allowed: bool) -> None:
    """Raise WrongUse for classes that a model which knows some does not know, unless they are `allowed`."""
    new = sorted(set(given) - set(known))
    if known and new and not allowed:
        raise WrongUse(
            "there are new classes",
            wanted=f"the {len(known)} classes that the model knows",
            came=f"{', '.join(new[:5])}{' and more' if len(new) > 5 else ''} besides",
            remedy="Check their spelling, or set allow_new_classes.",
        )


def check_once(name: str, learned: Sequence[str]) -> None:
    """Raise WrongUse for a domain that is learned already, where its images would count twice."""
    if name in learned:
        raise WrongUse(
            f"{name} is learned already",
            wanted="a domain whose images do not count yet",
            came=name,
            remedy="Begin a new model to learn it from other images.",
        )


def tensors_digest(module: nn.Module) -> str:
    """The sha256 of a module's tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name}:{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
