"""What an expert may do to the frozen ViT, site by site. No method needs a ViT of its own.

| site | what acts there |
|---|---|
| `tokens` | tokens added once, before block 0; they carry no position |
| `prefix[l]` | keys and values put before block l's own, in token space or already projected |
| `branch[l]` at `attention`, `mlp` | a part beside it, fed the same normalised tokens |
| `branch[l]` at `residual` | a part beside the MLP, fed the residual stream before the norm |
| `branch[l]` at `block` | a part behind the block |
| `final` | a part behind the last norm |
| `delta[l]` at `q`, `k`, `v`, `proj`, `fc1`, `fc2` | a change of that linear map |
| `readout` | which tokens are read: the class token, the added tokens, or all |

Where prompts are chosen by looking at the image, a tuning has one prompt per sample; a function of the frozen query
that returns such a tuning may take its place. With nothing set, the forward is the plain ViT, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from torch import Tensor

from bpg.errors import DeviceError, TuningError

Place = Literal["attention", "mlp", "residual", "block"]
Linear = Literal["q", "k", "v", "proj", "fc1", "fc2"]
Readout = Literal["class", "tokens", "all"]
Part = Callable[[Tensor], Tensor]  # (..., d_in) -> (..., d_out), each token by itself: an adapter, a LoRA pair


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """Keys and values put before a block's own, each (P, d), or (B, P, d) with one prefix per sample.

    In token space (`projected=False`) they stand where the normalised tokens stand and pass the block's K and V maps;
    projected ones are keys and values already, the heads side by side.
    """

    keys: Tensor
    values: Tensor
    projected: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tuning:
    """What acts at each site of a ViT. Blocks are counted from 0; what is not named stays plain."""

    tokens: Tensor | None = None  # (M, d), or (B, M, d) with one prompt per sample
    prefix: Mapping[int, Prefix] = field(default_factory=dict)
    branch: Mapping[int, Mapping[Place, Part]] = field(default_factory=dict)
    final: Part | None = None
    delta: Mapping[int, Mapping[Linear, Part]] = field(default_factory=dict)
    readout: Readout = "class"

    def check(self, embedded: Tensor, *, depth: int) -> None:
        """Raise TuningError unless this fits a ViT of `depth` blocks that is given `embedded` (B, n, d)."""
        for site, blocks in (("prefix", self.prefix), ("branch", self.branch), ("delta", self.delta)):
            for block in blocks:
                _check_name(f"{site}[{block}]", block, tuple(range(depth)))
        for site, blocks, known in (("branch", self.branch, Place), ("delta", self.delta, Linear)):
            for block, parts in blocks.items():
                for name, part in parts.items():
                    _check_name(f"{site}[{block}]", name, get_args(known))
                    _check_kind(
                        f"{site}[{block}][{name}]", part, callable(part), "a module or a function of the tokens"
                    )
        _check_kind("final", self.final, self.final is None or callable(self.final), "a module or a function, or None")
        _check_name("readout", self.readout, get_args(Readout))
        _check_kind("tokens", self.tokens, self.tokens is None or isinstance(self.tokens, Tensor), "a tensor or None")
        if self.tokens is not None:
            _check_tensor("tokens", self.tokens, embedded)
        elif self.readout == "tokens":
            raise TuningError(
                "there are no added tokens to read", wanted="tokens to read", came="none", remedy="Set `tokens`."
            )
        for block, prefix in self.prefix.items():
            _check_kind(f"prefix[{block}]", prefix, isinstance(prefix, Prefix), "a Prefix")
            _check_tensor(f"prefix[{block}].keys", prefix.keys, embedded)
            _check_tensor(f"prefix[{block}].values", prefix.values, embedded)
            if prefix.keys.shape != prefix.values.shape:
                raise TuningError(
                    f"prefix[{block}] has unequal parts",
                    wanted=f"values of the keys' shape {tuple(prefix.keys.shape)}",
                    came=str(tuple(prefix.values.shape)),
                    remedy="Each key needs its value.",
                )


PLAIN = Tuning()
TuningOf = Callable[[Tensor], Tuning]  # frozen query (B, d) -> a tuning with one prompt per sample


def _check_name(site: str, name: int | str, known: tuple[int | str, ...]) -> None:
    if name not in known:
        listed = f"0 to {known[-1]}" if known and known[0] == 0 else ", ".join(map(str, known))
        raise TuningError(
            f"the ViT has no site {site}", wanted=listed, came=repr(name), remedy="Name a site that this ViT has."
        )


def _check_kind(site: str, value: object, fits: bool, wanted: str) -> None:
    if not fits:
        raise TuningError(
            f"{site} is of the wrong kind",
            wanted=wanted,
            came=type(value).__name__,
            remedy="A function of the frozen query stands in the place of the whole tuning, not at a site.",
        )


def _check_tensor(site: str, tensor: Tensor, embedded: Tensor) -> None:
    batch, _, width = embedded.shape
    fits = tensor.ndim in (2, 3) and tensor.shape[-1] == width and (tensor.ndim == 2 or tensor.shape[0] == batch)
    if not fits:
        raise TuningError(
            f"{site} does not fit",
            wanted=f"shape (length, {width}) or ({batch}, length, {width})",
            came=str(tuple(tensor.shape)),
            remedy="The last side is the backbone's width; a first side of three is the batch.",
        )
    if tensor.device != embedded.device:
        raise DeviceError(
            f"{site} and the images are on two devices",
            wanted=f"{site} on {embedded.device}",
            came=str(tensor.device),
            remedy="Move it with `.to(device)`.",
        )
