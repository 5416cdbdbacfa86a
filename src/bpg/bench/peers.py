"""What else people would use, on the same work; None where it is not installed or does not know the backbone."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from bpg.backbones.tuning import Linear
from bpg.bench.timing import Work

LORA_MAPS: tuple[Linear, ...] = ("proj", "fc1", "fc2")
LORA_MODULES = r".*(attn\.proj|mlp\.fc1|mlp\.fc2)"  # the same, as timm calls them


def timm_forward(name: str, images: Tensor) -> Work | None:
    """timm's forward pass of the backbone called `name`."""
    model = _timm_model(name, images.device)
    if model is None:
        return None

    @torch.no_grad()
    def forward() -> None:
        model(images)

    return forward


def peft_mixed_batch(name: str, ranks: Sequence[int], images: Tensor, weights: Tensor) -> Work | None:
    """peft's forward pass with one LoRA per image (`adapter_names`), that with the largest weight (B, T)."""
    model, peft = _timm_model(name, images.device), _installed("peft")
    if model is None or peft is None:
        return None
    for place, rank in enumerate(ranks):
        config = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules=LORA_MODULES)
        if place:
            model.add_adapter(str(place), config)
        else:
            model = peft.get_peft_model(model, config, adapter_name="0")
    model.eval()
    names = [str(place) for place in weights.argmax(dim=1).tolist()]

    @torch.no_grad()
    def forward() -> None:
        model(images, adapter_names=names)

    return forward


def nearest_domain(features: Tensor, centres: Sequence[Tensor]) -> Tensor:
    """Which domain (B,) each feature (B, d) is nearest to, one centre after another, as in S-Prompts' code: by L1."""
    found = []
    for own in centres:
        distances = [(features - centre).abs().sum(dim=1) for centre in own]
        found.append(torch.stack(distances).amin(dim=0))
    return torch.stack(found).argmin(dim=0)


def _timm_model(name: str, device: torch.device) -> Any:
    timm = _installed("timm")
    if timm is None or not timm.is_model(name.partition(".")[0]):
        return None
    return timm.create_model(name, pretrained=False, num_classes=0).eval().requires_grad_(False).to(device)


def _installed(name: str) -> Any:
    try:
        return imported(name)
    except ImportError:
        return None


def imported(name: str) -> Any:
    """Import timm, open_clip, transformers, peft or torchvision beside a CPU build of torch.

    Some wheels of torchvision look for two compiled operators that exist beside a CUDA torch alone. Nothing here uses
    them: it is enough that they are declared.
    """
    for operator in ("nms", "qnms"):
        try:
            getattr(torch.ops.torchvision, operator)
        except AttributeError:
            torch.library.define(
                f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(name)
