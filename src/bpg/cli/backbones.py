"""What `bpg backbones` says of backbones, known and loaded."""

from __future__ import annotations

from dataclasses import asdict

import torch
from torch import nn

from bpg.backbones.backbone import Backbone
from bpg.backbones.catalogue import Entry, catalogue
from bpg.backbones.clip import TextTower
from bpg.backbones.vit import ViT
from bpg.backbones.weights import on_disk

TABLE = ("name", "parameters", "megabytes", "pixels", "text", "licence", "s_0", "estimator", "on_disk")


def describe_known() -> list[dict[str, object]]:
    """A row for every known backbone."""
    return [_row(entry) for entry in catalogue().values()]


def describe(backbone: Backbone) -> dict[str, object]:
    """What a loaded backbone is."""
    return {
        "name": backbone.name,
        "parameters": _count(backbone),
        "width": backbone.width,
        "feature_width": backbone.feature_width,
        "depth": backbone.depth,
        "text_tower": backbone.text is not None,
        "device": str(backbone.device),
        "sha256": backbone.digest(),
        "preprocessing": asdict(backbone.preprocessing),
        "vit": asdict(backbone.vit.config),
    }


def _row(entry: Entry) -> dict[str, object]:
    with torch.device("meta"):
        towers: list[nn.Module] = [ViT(entry.vit)]
        if entry.text is not None:
            towers.append(TextTower(entry.text))
    parameters = sum(map(_count, towers))
    found = on_disk(entry)
    return {
        "name": entry.name,
        "parameters": parameters,
        "megabytes": round(parameters * 4 / 1e6),
        "pixels": entry.vit.image_size,
        "text": entry.text is not None,
        "licence": entry.licence,
        "s_0": entry.s_0,
        "estimator": entry.s_0_estimator or None,
        "on_disk": found is not None,
        "s_0_source": entry.s_0_source,
        "source": "ships with bpg" if entry.shipped else f"{entry.hub}/{entry.file}",
        "file": str(found) if found else None,
    }


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
