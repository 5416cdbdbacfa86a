"""Copies of a backbone that answer nearly the same in less time: 8-bit weights or a graph on a CPU, half on a GPU.

Weights of 8 bits are rounded once, channel by channel. What goes into a linear map is rounded image by image: no answer
depends on who else is in the batch. Norms, attention, and all that an expert adds stay in float32, and so does what
the last block does for the tokens that are read. Half precision is torch's autocast to float16, experts included.

A graph is the same arithmetic without Python between one operation and the next: a few percent at most, with single
images of small backbones. Its constants are the backbone's own tensors: no weight is in memory twice.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from bpg.backbones.backbone import Backbone
from bpg.backbones.tuning import Linear, Part, Place, Prefix
from bpg.backbones.vit import NOTHING, Block
from bpg.errors import DeviceError

Arithmetic = Literal["exact", "8-bit", "half", "graph"]
ARITHMETICS: tuple[str, ...] = get_args(Arithmetic)
LEVELS = 127  # either way
CLASS = slice(0, 1)  # the class token, where it is read alone


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
        found = x.new_empty(*x.shape[:-1], len(self.weight))
        for place, image in enumerate(x):
            # The inputs have 7 bits: products of 8 overflow on processors without instructions for them.
            found[place] = torch.ops.quantized.linear_dynamic(image, self._packed, True)
        return found


class GraphBlock(nn.Module):
    """A block in two frozen graphs, before and behind the place of its MLP's branch; any batch, any number of tokens.

    Where anything acts on the block but such a branch, the block itself answers.
    """

    def __init__(self, block: Block) -> None:
        super().__init__()
        for name, part in block.named_children():  # under the names that the backbone's digest knows
            self.add_module(name, part)
        for name, scale in block.named_parameters(recurse=False):
            self.register_parameter(name, scale)
        self._exact = block.forward  # not the block: its tensors would stand here twice
        z = torch.zeros(2, 3, block.qkv.in_features)  # of any values, and any numbers of images and tokens
        inputs = {"attend": (z,), "attend_class": (z,), "feed": (z, z)}
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # torch plans another way for these functions
            traced = torch.jit.trace_module(_Halves(block).eval(), inputs, check_trace=False)  # type: ignore[no-untyped-call]
            self._graphs = torch.jit.freeze(traced, preserved_attrs=list(inputs))

    def forward(
        self,
        z: Tensor,  # (B, n, d)
        *,
        prefix: Prefix | None = None,
        branch: Mapping[Place, Part] = NOTHING,  # type: ignore[assignment]
        delta: Mapping[Linear, Part] = NOTHING,  # type: ignore[assignment]
        causal: bool = False,
        read: slice | None = None,
    ) -> Tensor:
        """What the block makes of z (B, n, d), within rounding."""
        if prefix is not None or branch.keys() - {"mlp"} or delta or causal or read not in (None, CLASS):
            return self._exact(z, prefix=prefix, branch=branch, delta=delta, causal=causal, read=read)
        h, u = self._graphs.attend(z) if read is None else self._graphs.attend_class(z)
        z = self._graphs.feed(h, u)
        return z + branch["mlp"](u) if "mlp" in branch else z


class _Halves(nn.Module):
    """The halves of a block, each a function of tensors alone."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block

    def attend(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return self.block.attend(z)

    def attend_class(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return self.block.attend(z, read=CLASS)

    def feed(self, h: Tensor, u: Tensor) -> Tensor:
        return self.block.feed(h, u)


def faster(backbone: Backbone, arithmetic: Arithmetic) -> Backbone:
    """`backbone`, or a copy of it that computes in another way. Both share the exact weights."""
    check_arithmetic(backbone, arithmetic)
    if arithmetic == "exact":
        return backbone
    shared = {id(parameter): parameter for parameter in backbone.parameters()}
    copy = deepcopy(backbone, shared)
    copy.compiled = False  # compiled calls are not copied
    if arithmetic == "half":
        copy.precision = "float16"
        return copy
    if arithmetic == "graph":
        copy.vit.blocks = nn.ModuleList(GraphBlock(cast(Block, block)) for block in copy.vit.blocks)
        return copy
    copy.precision = "float32"  # what is not rounded to 8 bits is not rounded at all
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
