"""Copies of a backbone that answer nearly the same in less time: 8-bit weights or a graph on a CPU, half on a GPU.

Weights of 8 bits are rounded once, channel by channel. What goes into a linear map is rounded image by image: no answer
depends on who else is in the batch. Norms, attention, and all that an expert adds stay in float32, and so does what
the last block does for the tokens that are read. Half precision is torch's autocast to float16, experts included.

A graph is the exact arithmetic in float32 without Python between one operation and the next, for single images: one
graph of the pass that routes, one of each expert's. See `bpg.backbones.graph`.
"""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from bpg.backbones.backbone import Backbone
from bpg.backbones.graph import Graphs
from bpg.errors import DeviceError

Arithmetic = Literal["exact", "8-bit", "half", "graph"]
ARITHMETICS: tuple[str, ...] = get_args(Arithmetic)
LEVELS = 127  # either way


class EightBitLinear(nn.Module):
    """A linear map with rounded weights; the exact ones stay within reach for whoever needs a part of them."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        weight = linear.weight.detach().float()
        scales = (weight.abs().amax(dim=1).double() / LEVELS).clamp(min=1e-12)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch plans another home for these functions
            middles = torch.zeros(len(scales), dtype=torch.long)
            rounded = torch.quantize_per_channel(weight, scales, middles, 0, torch.qint8)
        self._packed = torch.ops.quantized.linear_prepack(rounded, linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, n, d) to (B, n, d_out), an image at a time."""
        # The inputs have 7 bits: products of 8 overflow on processors without instructions for them.
        found: list[Tensor] = [torch.ops.quantized.linear_dynamic(image, self._packed, True) for image in x]
        if len(found) == 1:
            return found[0][None]  # no copy
        return torch.stack(found) if found else x.new_empty(*x.shape[:-1], len(self.weight))


def faster(backbone: Backbone, arithmetic: Arithmetic) -> Backbone:
    """`backbone`, or a copy of it that computes in another way. Both share the exact weights."""
    check_arithmetic(backbone, arithmetic)
    if arithmetic == "exact":
        return backbone
    shared = {id(parameter): parameter for parameter in backbone.parameters()}
    copy = deepcopy(backbone, shared)
    copy.compiled = False  # compiled calls are not copied
    copy.graphs = Graphs() if arithmetic == "graph" else None
    if arithmetic == "half":
        copy.precision = "float16"
        return copy
    copy.precision = "float32"  # what is not rounded to 8 bits is not rounded at all
    if arithmetic == "graph":
        return copy
    for block in copy.vit.blocks:
        for name in ("qkv", "proj", "fc1", "fc2"):
            setattr(block, name, EightBitLinear(getattr(block, name)))
    return copy


def check_arithmetic(backbone: Backbone, arithmetic: Arithmetic) -> None:
    """Raise DeviceError for an arithmetic that the backbone's device does not have."""
    place = {"exact": backbone.device.type, "8-bit": "cpu", "half": "cuda", "graph": "cpu"}[arithmetic]
    if backbone.device.type != place:
        raise DeviceError(
            f"{arithmetic} arithmetic is for another kind of device",
            wanted=f"a backbone on {place}",
            came=str(backbone.device),
            remedy="8-bit and graph are for CPUs, half for GPUs; leave it out for exact answers.",
        )
