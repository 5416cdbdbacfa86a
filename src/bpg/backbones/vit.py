"""The one vision transformer, with named sites where an expert may act.

Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, arXiv 2010.11929. The variations that public checkpoints
need are settings: a norm before the first block and quick-GELU (CLIP, Radford et al. 2021, arXiv 2103.00020), layer
scale (DeiT III, Touvron et al. 2022, arXiv 2204.07118), register tokens (Darcet et al. 2024, arXiv 2309.16588).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bpg.backbones.tuning import PLAIN, Linear, Part, Place, Prefix, Tuning, TuningOf
from bpg.config import settings
from bpg.errors import DeviceError, WrongUse

Activation = Literal["gelu", "quick_gelu"]
NOTHING: Mapping[str, Part] = MappingProxyType({})


@settings
class ViTConfig:
    """The shape of a vision transformer; the defaults are ViT-B/16."""

    image_size: PositiveInt = 224  # pixels, both sides
    patch_size: PositiveInt = 16  # pixels, both sides
    width: PositiveInt = 768  # d
    depth: PositiveInt = 12  # L
    heads: PositiveInt = 12
    hidden: PositiveInt = 3072  # of the MLP
    activation: Activation = "gelu"
    norm_epsilon: PositiveFloat = 1e-6
    registers: NonNegativeInt = 0  # tokens beside the class token: registers, DeiT's distillation token
    prefix_positions: bool = True  # whether the class token and the registers have positions too
    patch_bias: bool = True
    pre_norm: bool = False  # a norm before block 0, as in CLIP
    layer_scale: bool = False
    projection: PositiveInt | None = None  # CLIP's width of the space shared with text

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise WrongUse(
                "the heads do not share the width evenly",
                wanted=f"a divisor of {self.width}",
                came=f"{self.heads} heads",
                remedy="Correct `heads`.",
            )
        if self.image_size % self.patch_size:
            raise WrongUse(
                "the patches do not tile the image",
                wanted=f"an image size that {self.patch_size} divides",
                came=f"{self.image_size}",
                remedy=f"Use {max(1, round(self.image_size / self.patch_size)) * self.patch_size}.",
            )

    @property
    def grid(self) -> int:
        """Patches along one side; N = grid^2."""
        return self.image_size // self.patch_size

    @property
    def specials(self) -> int:
        """Tokens before the patches: the class token and the registers."""
        return 1 + self.registers

    @property
    def positions(self) -> int:
        """Tokens that have a position embedding."""
        return self.grid**2 + (self.specials if self.prefix_positions else 0)


class Block(nn.Module):
    """One transformer layer (eq:vit_attn, eq:vit_mlp, eq:vit_layer_adapter); also the layer of CLIP's text tower."""

    def __init__(
        self, width: int, heads: int, hidden: int, *, activation: Activation, epsilon: float, layer_scale: bool = False
    ) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, eps=epsilon)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps=epsilon)
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)
        self.scale1 = nn.Parameter(torch.ones(width)) if layer_scale else None
        self.scale2 = nn.Parameter(torch.ones(width)) if layer_scale else None
        self.activation: Part = quick_gelu if activation == "quick_gelu" else F.gelu

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
        """Tokens (B, n, d) after this block; with `read`, those of them alone, and no work for the others."""
        u = self.norm1(z)
        mixed = self._attention(u, prefix, delta, causal, read)
        if read is not None:
            z, u = z[:, read], u[:, read]
        h = z + _scaled(mixed, self.scale1)
        if "attention" in branch:
            h = h + branch["attention"](u)
        u = self.norm2(h)
        z = h + _scaled(self._mlp(u, delta), self.scale2)
        if "mlp" in branch:  # eq:vit_layer_adapter
            z = z + branch["mlp"](u)
        if "residual" in branch:
            z = z + branch["residual"](h)
        if "block" in branch:
            z = z + branch["block"](z)
        return z

    def _attention(
        self, u: Tensor, prefix: Prefix | None, delta: Mapping[Linear, Part], causal: bool, read: slice | None
    ) -> Tensor:
        if read is None:
            asking = u
            q, k, v = self.qkv(u).chunk(3, dim=-1)
        else:
            asking, width = u[:, read], u.shape[-1]
            q = F.linear(asking, self.qkv.weight[:width], self.qkv.bias[:width])
            k, v = F.linear(u, self.qkv.weight[width:], self.qkv.bias[width:]).chunk(2, dim=-1)
        q, k, v = _changed(q, asking, delta.get("q")), _changed(k, u, delta.get("k")), _changed(v, u, delta.get("v"))
        if prefix is not None:
            keys, values = self._project(prefix, delta)  # in a graph, len would stay what it was; a shape does not
            k = torch.cat([keys.expand(u.shape[0], -1, -1).to(k.dtype), k], dim=1)
            v = torch.cat([values.expand(u.shape[0], -1, -1).to(v.dtype), v], dim=1)
        mixed = F.scaled_dot_product_attention(self._split(q), self._split(k), self._split(v), is_causal=causal)
        mixed = mixed.transpose(1, 2).flatten(2)
        return _changed(self.proj(mixed), mixed, delta.get("proj"))

    def _project(self, prefix: Prefix, delta: Mapping[Linear, Part]) -> tuple[Tensor, Tensor]:
        """The prefix as keys and values: through the K and V maps, and what changes them, unless it is projected."""
        if prefix.projected:
            return prefix.keys, prefix.values
        _, k_weight, v_weight = self.qkv.weight.chunk(3)
        _, k_bias, v_bias = self.qkv.bias.chunk(3)
        prefix = Prefix(prefix.keys.to(k_weight.dtype), prefix.values.to(v_weight.dtype), projected=False)
        keys = _changed(F.linear(prefix.keys, k_weight, k_bias), prefix.keys, delta.get("k"))
        values = _changed(F.linear(prefix.values, v_weight, v_bias), prefix.values, delta.get("v"))
        return keys, values

    def _mlp(self, u: Tensor, delta: Mapping[Linear, Part]) -> Tensor:
        hidden = self.activation(_changed(self.fc1(u), u, delta.get("fc1")))
        return _changed(self.fc2(hidden), hidden, delta.get("fc2"))

    def _split(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (self.heads, -1)).transpose(1, 2)  # (B, heads, n, d / heads)


class ViT(nn.Module):
    """A vision transformer: images in, the class token's feature out."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = c = config
        self.recompute = False  # in training, compute the blocks' activations again instead of keeping them
        self.patch = nn.Conv2d(3, c.width, c.patch_size, stride=c.patch_size, bias=c.patch_bias)
        self.class_token = nn.Parameter(torch.zeros(c.width))
        self.register_tokens = nn.Parameter(torch.zeros(c.registers, c.width)) if c.registers else None
        self.position = nn.Parameter(torch.zeros(c.positions, c.width))
        self.pre_norm = nn.LayerNorm(c.width, eps=c.norm_epsilon) if c.pre_norm else None
        self.blocks = nn.ModuleList(
            Block(
                c.width,
                c.heads,
                c.hidden,
                activation=c.activation,
                epsilon=c.norm_epsilon,
                layer_scale=c.layer_scale,
            )
            for _ in range(c.depth)
        )
        self.norm = nn.LayerNorm(c.width, eps=c.norm_epsilon)
        self.projection = nn.Parameter(torch.zeros(c.width, c.projection)) if c.projection else None

    def forward(self, images: Tensor, tuning: Tuning | TuningOf = PLAIN, *, query: Tensor | None = None) -> Tensor:
        """Features (B, d) of the class token, or tokens (B, n, d) where `tuning.readout` asks for them.

        A `tuning` that is a function is asked with `query` (B, d): the plain feature unless another is given.
        """
        embedded = self.embed(images)
        if not isinstance(tuning, Tuning):
            if query is None:
                with torch.no_grad():
                    query = self.read(self.encode(embedded)).float()
            tuning = tuning(query)
        if torch.is_grad_enabled():  # a training step may round as its batch does; an answer must not
            return self.finish(embedded, tuning)
        return self.read(self.encode(embedded, tuning), tuning)

    def embed(self, images: Tensor) -> Tensor:
        """Tokens (B, 1 + registers + N, d): class token, registers, patches, with positions. No site acts here."""
        self._check_images(images)
        patches = self.patch(images).flatten(2).transpose(1, 2)  # (B, N, d)
        specials = self.class_token[None]
        if self.register_tokens is not None:
            specials = torch.cat([specials, self.register_tokens])
        specials = specials.expand(len(images), -1, -1).to(patches.dtype)
        if self.config.prefix_positions:
            return torch.cat([specials, patches], dim=1) + self.position
        return torch.cat([specials, patches + self.position], dim=1)

    def encode(self, embedded: Tensor, tuning: Tuning = PLAIN) -> Tensor:
        """Tokens (B, n, d) after the last block, before the last norm; added tokens stand last."""
        return _last(self.layers(embedded, tuning))

    def finish(self, embedded: Tensor, tuning: Tuning = PLAIN) -> Tensor:
        """What `read` makes of `encode`, within rounding; the last block works for the tokens that are read alone."""
        encoded = _last(self.layers(embedded, tuning, sparing=True))
        return self._finished(encoded[:, 0] if tuning.readout == "class" else encoded, tuning)

    def layers(self, embedded: Tensor, tuning: Tuning = PLAIN, *, sparing: bool = False) -> Iterator[Tensor]:
        """Tokens (B, n, d) after block 0, after block 1, and so on: whoever has seen enough stops asking.

        A `sparing` last block gives the tokens alone that are read out.
        """
        tuning.check(embedded, depth=self.config.depth)
        read = self._readout(tuning) if sparing else None
        z = embedded
        if tuning.tokens is not None:  # z^(0) = [class, patches, p_t]
            z = torch.cat([z, tuning.tokens.expand(z.shape[0], -1, -1).to(z.dtype)], dim=1)
        if self.pre_norm is not None:
            z = self.pre_norm(z)
        for index, block in enumerate(self.blocks):
            acts: dict[str, Any] = {
                "prefix": tuning.prefix.get(index),
                "branch": tuning.branch.get(index, NOTHING),
                "delta": tuning.delta.get(index, NOTHING),
            }
            if read is not None and index == self.config.depth - 1:
                acts["read"] = read
            if self.recompute and torch.is_grad_enabled():
                z = checkpoint(block, z, use_reentrant=False, **acts)
            else:
                z = block(z, **acts)
            yield z

    def read(self, encoded: Tensor, tuning: Tuning = PLAIN) -> Tensor:
        """What `tuning.readout` asks of the encoded tokens, after the last norm and CLIP's projection."""
        read = self._readout(tuning)
        if read is not None:
            encoded = encoded[:, read]
        return self._finished(encoded[:, 0] if tuning.readout == "class" else encoded, tuning)

    def _readout(self, tuning: Tuning) -> slice | None:
        added = self.config.specials + self.config.grid**2
        return {"class": slice(0, 1), "tokens": slice(added, None), "all": None}[tuning.readout]

    def _finished(self, encoded: Tensor, tuning: Tuning) -> Tensor:
        feature: Tensor = self.norm(encoded)
        if tuning.final is not None:
            feature = feature + tuning.final(feature)
        return feature if self.projection is None else feature @ self.projection

    def _check_images(self, images: Tensor) -> None:
        side = self.config.image_size
        if images.ndim != 4 or tuple(images.shape[1:]) != (3, side, side):
            raise WrongUse(
                "the images do not fit the backbone",
                wanted=f"a tensor (batch, 3, {side}, {side})",
                came=str(tuple(images.shape)),
                remedy="Prepare them with `backbone.prepare`, or load the backbone with another `image_size`.",
            )
        if images.dtype != self.position.dtype:
            raise WrongUse(
                "the images are of the wrong type",
                wanted=f"{self.position.dtype}, the type of the weights",
                came=str(images.dtype),
                remedy="Prepare them with `backbone.prepare`, or convert them with `.to(dtype)`.",
            )
        if images.device != self.position.device:
            raise DeviceError(
                "images and backbone are on two devices",
                wanted=f"images on {self.position.device}",
                came=f"images on {images.device}",
                remedy="Move one of them with `.to(device)`.",
            )


def quick_gelu(x: Tensor) -> Tensor:
    """OpenAI's cheap GELU, which its CLIP weights were trained with."""
    return x * torch.sigmoid(1.702 * x)


def resize_positions(position: Tensor, *, specials: int, grid: int) -> Tensor:
    """Position embeddings (specials + n^2, d) for a `grid` x `grid` image: the patches' part is interpolated."""
    kept, patches = position[:specials], position[specials:]
    old = int(len(patches) ** 0.5)
    if old == grid:
        return position
    square = patches.float().T.reshape(1, -1, old, old)
    resized = F.interpolate(square, (grid, grid), mode="bicubic", antialias=True)
    return torch.cat([kept, resized[0].flatten(1).T.to(position.dtype)])


def _last(layers: Iterator[Tensor]) -> Tensor:
    """What comes last; nothing before it is held any longer than it must be."""
    for encoded in layers:  # noqa: B007
        pass
    return encoded


def _changed(output: Tensor, given: Tensor, change: Part | None) -> Tensor:
    return output if change is None else output + change(given)


def _scaled(x: Tensor, scale: Tensor | None) -> Tensor:
    return x if scale is None else x * scale
