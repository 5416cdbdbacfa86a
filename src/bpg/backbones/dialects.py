"""The key names of public checkpoints, translated to ours.

A dialect is a table of patterns. A key that no pattern matches is an error, never passed over: an unknown key mostly
means that the checkpoint computes something this ViT does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bpg.errors import WeightsError

State = dict[str, Tensor]
DROP = ""  # a key that is known and not needed: classification heads, buffers


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one code base names its tensors."""

    name: str
    sign: str  # a pattern that some key of this dialect alone matches
    keys: tuple[tuple[str, str], ...]  # (pattern, our name), first match wins
    transposed: tuple[str, ...] = ()  # our names of matrices that this dialect keeps the other way round
    norm_epsilon: float = 1e-5
    has_text: bool = False
    pixels: str = "deit_tiny_patch16_224"  # the known backbone whose pixels are assumed where no config tells

    def translate(self, tensors: Mapping[str, Tensor], *, where: str) -> State:
        """The tensors under our names, float32. Raises WeightsError for a key that this dialect does not have."""
        state: State = {}
        unknown: list[str] = []
        for key, tensor in tensors.items():
            name = self._our_name(key)
            if name is None:
                unknown.append(key)
            elif name in state:
                raise WeightsError(
                    f"{where} holds two tensors for one place",
                    wanted=f"one tensor for {name}",
                    came=f"{key} besides another",
                    remedy="This architecture is not supported; `bpg backbones` lists those that are.",
                )
            elif name != DROP:
                state[name] = _with_axes(name, _float32(tensor, key, where), where)
        if unknown:
            raise WeightsError(
                f"{where} holds tensors that this ViT has no place for",
                wanted=f"a {self.name} checkpoint of a plain ViT with a class token",
                came=f"{len(unknown)} unknown keys, such as {', '.join(sorted(unknown)[:3])}",
                remedy="This architecture is not supported; `bpg backbones` lists those that are.",
            )
        for name in self.transposed:
            if name in state:
                state[name] = state[name].T.contiguous()
        return _fused_qkv(state)

    def _our_name(self, key: str) -> str | None:
        for pattern, name in self.keys:
            match = re.fullmatch(pattern, key)
            if match:
                return match.expand(name)
        return None


_W = r"(weight|bias)"
_N = r"(\d{1,4})"


def _resblocks(theirs: str, ours: str) -> tuple[tuple[str, str], ...]:
    """The layers of OpenAI's and OpenCLIP's transformers, of either tower."""
    return tuple(
        (rf"{theirs}\.{_N}\.{part}", rf"{ours}.blocks.\1.{name}")
        for part, name in (
            (rf"ln_([12])\.{_W}", r"norm\2.\3"),
            (rf"attn\.in_proj_{_W}", r"qkv.\2"),
            (rf"attn\.out_proj\.{_W}", r"proj.\2"),
            (rf"mlp\.c_fc\.{_W}", r"fc1.\2"),
            (rf"mlp\.c_proj\.{_W}", r"fc2.\2"),
        )
    )


def _hf_layers(theirs: str, ours: str) -> tuple[tuple[str, str], ...]:
    """The layers of Hugging Face's CLIP, of either tower."""
    return tuple(
        (rf"{theirs}\.{_N}\.{part}", rf"{ours}.blocks.\1.{name}")
        for part, name in (
            (rf"layer_norm([12])\.{_W}", r"norm\2.\3"),
            (rf"self_attn\.([qkv])_proj\.{_W}", r"\2.\3"),
            (rf"self_attn\.out_proj\.{_W}", r"proj.\2"),
            (rf"mlp\.(fc[12])\.{_W}", r"\2.\3"),
        )
    )


TIMM = Dialect(
    name="timm",
    sign=r"patch_embed\.proj\.weight",
    norm_epsilon=1e-6,
    keys=(
        ("cls_token", "vit.class_token"),
        ("reg_token|dist_token", "vit.register_tokens"),
        ("pos_embed", "vit.position"),
        (rf"patch_embed\.proj\.{_W}", r"vit.patch.\1"),
        (rf"norm_pre\.{_W}", r"vit.pre_norm.\1"),
        (rf"blocks\.{_N}\.norm([12])\.{_W}", r"vit.blocks.\1.norm\2.\3"),
        (rf"blocks\.{_N}\.attn\.(qkv|proj)\.{_W}", r"vit.blocks.\1.\2.\3"),
        (rf"blocks\.{_N}\.mlp\.(fc[12])\.{_W}", r"vit.blocks.\1.\2.\3"),
        (rf"blocks\.{_N}\.ls([12])\.gamma", r"vit.blocks.\1.scale\2"),
        (rf"norm\.{_W}", r"vit.norm.\1"),
        (rf"(head|head_dist|pre_logits\.fc)\.{_W}", DROP),
        ("mask_token", DROP),  # DINOv2 keeps what it was pre-trained with
    ),
)

OPENCLIP = Dialect(
    name="OpenAI or OpenCLIP",
    pixels="ViT-B-16.openai",
    sign=r"visual\.conv1\.weight",
    has_text=True,
    keys=(
        (r"visual\.class_embedding", "vit.class_token"),
        (r"visual\.positional_embedding", "vit.position"),
        (r"visual\.conv1\.weight", "vit.patch.weight"),
        (rf"visual\.ln_pre\.{_W}", r"vit.pre_norm.\1"),
        *_resblocks(r"visual\.transformer\.resblocks", "vit"),
        (rf"visual\.ln_post\.{_W}", r"vit.norm.\1"),
        (r"visual\.proj", "vit.projection"),
        (r"(?:text\.)?token_embedding\.weight", "text.embedding.weight"),
        (r"(?:text\.)?positional_embedding", "text.position"),
        *_resblocks(r"(?:text\.)?transformer\.resblocks", "text"),
        (rf"(?:text\.)?ln_final\.{_W}", r"text.norm.\1"),
        (r"(?:text\.)?text_projection", "text.projection"),
        ("logit_scale", "logit_scale"),
        (r"input_resolution|context_length|vocab_size|(?:text\.)?attn_mask", DROP),
    ),
)

HF_CLIP = Dialect(
    name="Hugging Face CLIP",
    pixels="ViT-B-16.openai",
    sign=r"vision_model\.embeddings\.patch_embedding\.weight",
    has_text=True,
    transposed=("vit.projection", "text.projection"),
    keys=(
        (r"vision_model\.embeddings\.class_embedding", "vit.class_token"),
        (r"vision_model\.embeddings\.position_embedding\.weight", "vit.position"),
        (r"vision_model\.embeddings\.patch_embedding\.weight", "vit.patch.weight"),
        (rf"vision_model\.pre_layrnorm\.{_W}", r"vit.pre_norm.\1"),
        *_hf_layers(r"vision_model\.encoder\.layers", "vit"),
        (rf"vision_model\.post_layernorm\.{_W}", r"vit.norm.\1"),
        (r"visual_projection\.weight", "vit.projection"),
        (r"text_model\.embeddings\.token_embedding\.weight", "text.embedding.weight"),
        (r"text_model\.embeddings\.position_embedding\.weight", "text.position"),
        *_hf_layers(r"text_model\.encoder\.layers", "text"),
        (rf"text_model\.final_layer_norm\.{_W}", r"text.norm.\1"),
        (r"text_projection\.weight", "text.projection"),
        ("logit_scale", "logit_scale"),
        (r".*\.position_ids", DROP),
    ),
)

HF_VIT = Dialect(
    name="Hugging Face ViT",
    pixels="google/vit-base-patch16-224",
    sign=r"(?:vit\.)?embeddings\.patch_embeddings\.projection\.weight",
    norm_epsilon=1e-12,
    keys=(
        (r"(?:vit\.)?embeddings\.cls_token", "vit.class_token"),
        (r"(?:vit\.)?embeddings\.position_embeddings", "vit.position"),
        (rf"(?:vit\.)?embeddings\.patch_embeddings\.projection\.{_W}", r"vit.patch.\1"),
        (rf"(?:vit\.)?encoder\.layer\.{_N}\.layernorm_before\.{_W}", r"vit.blocks.\1.norm1.\2"),
        (rf"(?:vit\.)?encoder\.layer\.{_N}\.layernorm_after\.{_W}", r"vit.blocks.\1.norm2.\2"),
        (rf"(?:vit\.)?encoder\.layer\.{_N}\.attention\.attention\.(q)uery\.{_W}", r"vit.blocks.\1.\2.\3"),
        (rf"(?:vit\.)?encoder\.layer\.{_N}\.attention\.attention\.(k)ey\.{_W}", r"vit.blocks.\1.\2.\3"),
        (rf"(?:vit\.)?encoder\.layer\.{_N}\.attention\.attention\.(v)alue\.{_W}", r"vit.blocks.\1.\2.\3"),
        (rf"(?:vit\.)?encoder\.layer\.{_N}\.attention\.output\.dense\.{_W}", r"vit.blocks.\1.proj.\2"),
        (rf"(?:vit\.)?encoder\.layer\.{_N}\.intermediate\.dense\.{_W}", r"vit.blocks.\1.fc1.\2"),
        (rf"(?:vit\.)?encoder\.layer\.{_N}\.output\.dense\.{_W}", r"vit.blocks.\1.fc2.\2"),
        (rf"(?:vit\.)?layernorm\.{_W}", r"vit.norm.\1"),
        (rf"(?:pooler\.dense|vit\.pooler\.dense|classifier)\.{_W}", DROP),
    ),
)

AXES = (
    (r"logit_scale", 0),
    (r"vit\.class_token", 1),
    (r"vit\.(register_tokens|position)", 2),
    (r"vit\.patch\.weight", 4),
    (r"text\.position|.*\.projection", 2),
    (r".*\.(qkv|q|k|v|proj|fc1|fc2|embedding)\.weight", 2),
    (r".*\.(bias|scale[12])|.*norm\d?\.weight", 1),
)

DIALECTS = (TIMM, OPENCLIP, HF_CLIP, HF_VIT)


def recognise(tensors: Mapping[str, Tensor], *, where: str) -> Dialect:
    """The dialect that a checkpoint's keys are in."""
    for dialect in DIALECTS:
        if any(re.fullmatch(dialect.sign, key) for key in tensors):
            return dialect
    raise WeightsError(
        f"{where} is no checkpoint of a vision transformer",
        wanted="the keys of a timm ViT, an OpenAI, OpenCLIP or Hugging Face CLIP, or a Hugging Face ViT",
        came=f"{len(tensors)} tensors, such as {', '.join(sorted(tensors)[:3]) or 'none'}",
        remedy="Check that this is the right file; a whole training checkpoint must be reduced to the model's tensors.",
    )


def vit_shape(state: State, *, where: str) -> dict[str, Any]:
    """What a ViT's tensors tell of its settings: all but heads, activation and epsilon."""
    patch, position = _needed(state, "vit.patch.weight", where), _needed(state, "vit.position", where)
    width, patch_size = patch.shape[0], patch.shape[-1]
    registers = len(state["vit.register_tokens"]) if "vit.register_tokens" in state else 0
    with_specials = _root(len(position) - 1 - registers)
    grid = with_specials or _root(len(position))
    if "vit.class_token" not in state or not grid:
        raise WeightsError(
            f"{where} is no ViT with a class token on a square grid",
            wanted="a class token and position embeddings of n x n patches",
            came=f"{'a' if 'vit.class_token' in state else 'no'} class token, {len(position)} positions",
            remedy="Use a checkpoint with a class token; mean-pooled ViTs are not supported.",
        )
    return {
        "image_size": grid * patch_size,
        "patch_size": patch_size,
        "width": width,
        "depth": _depth(state, "vit"),
        "hidden": _needed(state, "vit.blocks.0.fc1.weight", where).shape[0],
        "registers": registers,
        "prefix_positions": bool(with_specials),
        "patch_bias": "vit.patch.bias" in state,
        "pre_norm": "vit.pre_norm.weight" in state,
        "layer_scale": "vit.blocks.0.scale1" in state,
        "projection": state["vit.projection"].shape[1] if "vit.projection" in state else None,
    }


def text_shape(state: State, *, where: str) -> dict[str, Any]:
    """What a text tower's tensors tell of its settings: all but heads, activation and epsilon."""
    vocabulary, width = _needed(state, "text.embedding.weight", where).shape
    return {
        "width": width,
        "depth": _depth(state, "text"),
        "hidden": _needed(state, "text.blocks.0.fc1.weight", where).shape[0],
        "projection": _needed(state, "text.projection", where).shape[1],
        "vocabulary": vocabulary,
        "context_length": _needed(state, "text.position", where).shape[0],
    }


def check_complete(state: State, expected: Mapping[str, Tensor], *, where: str) -> None:
    """Raise WeightsError unless `state` has exactly the expected names and shapes."""
    missing = sorted(set(expected) - set(state))
    surplus = sorted(set(state) - set(expected))
    if missing or surplus:
        parts = [f"{len(missing)} missing ({', '.join(missing[:3])})"] if missing else []
        parts += [f"{len(surplus)} too many ({', '.join(surplus[:3])})"] if surplus else []
        raise WeightsError(
            f"{where} is not complete",
            wanted=f"{len(expected)} tensors",
            came=" and ".join(parts),
            remedy="Fetch the file anew; `bpg backbones` names the source of each.",
        )
    for name, tensor in expected.items():
        if state[name].shape != tensor.shape:
            raise WeightsError(
                f"a tensor of {where} does not fit",
                wanted=f"{name} of shape {tuple(tensor.shape)}",
                came=str(tuple(state[name].shape)),
                remedy="The file belongs to another architecture: load it under its own name.",
            )


def _needed(state: State, name: str, where: str) -> Tensor:
    if name not in state:
        raise WeightsError(
            f"{where} is not complete",
            wanted=f"the tensor {name}",
            came=f"{len(state)} tensors without it",
            remedy="Fetch the file anew.",
        )
    return state[name]


def _float32(tensor: Tensor, key: str, where: str) -> Tensor:
    as_float = tensor.float()
    if not tensor.is_floating_point() or not bool(torch.isfinite(as_float).all()):
        what = f"{tensor.dtype}" if not tensor.is_floating_point() else "infinite or undefined numbers"
        raise WeightsError(
            f"a tensor of {where} is unusable",
            wanted=f"finite floating-point numbers in {key}",
            came=what,
            remedy="Fetch the file anew, or use one that is not quantised.",
        )
    return as_float


def _fused_qkv(state: State) -> State:
    """Separate q, k, v maps as the one map that our blocks have."""
    for name in [name for name in state if re.search(r"\.q\.(weight|bias)$", name)]:
        stem, kind = name.rsplit(".q.", 1)
        parts = [f"{stem}.{letter}.{kind}" for letter in "qkv"]
        if all(part in state for part in parts):
            state[f"{stem}.qkv.{kind}"] = torch.cat([state.pop(part) for part in parts])
    return state


def _with_axes(name: str, tensor: Tensor, where: str) -> Tensor:
    """The tensor with as many axes as its place has, without the leading ones of size 1 that some code bases keep."""
    axes = next((count for pattern, count in AXES if re.fullmatch(pattern, name)), tensor.ndim)
    spare = tensor.shape[: tensor.ndim - axes] if tensor.ndim > axes else ()
    if tensor.ndim < axes or any(size != 1 for size in spare):
        raise WeightsError(
            f"a tensor of {where} does not fit",
            wanted=f"{name} with {axes} axes",
            came=f"shape {tuple(tensor.shape)}",
            remedy="The file is damaged or belongs to another architecture: fetch it anew.",
        )
    return tensor.reshape(tensor.shape[len(spare) :])


def _depth(state: State, tower: str) -> int:
    blocks = {int(match[1]) for name in state if (match := re.match(rf"{tower}\.blocks\.(\d+)\.", name))}
    return len(blocks)  # a gap shows up as missing and surplus tensors


def _root(number: int) -> int:
    root = int(max(number, 0) ** 0.5 + 0.5)
    return root if root * root == number else 0
