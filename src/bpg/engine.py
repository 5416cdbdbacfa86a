"""Runs chosen experts on chosen images, at the cost of these pairs alone.

The pairs of image and expert stand in one row, those of an expert side by side, and go through the frozen blocks in
chunks, whoever's they are: a matrix product over the tokens of several images costs less than one for each. What an
expert adds acts on its own part of the chunk. Patches are embedded once, for all. A backbone that answers through
graphs has one for each expert: there, every expert has its chunks to itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bpg.backbones.backbone import Backbone
from bpg.backbones.tuning import PLAIN, Part, Prefix, Tuning, TuningOf
from bpg.compute import as_float64, float64_device

CHUNK_BYTES = {"cpu": 16 * 2**20}  # of the widest activation; what is about to be read again should still be near
WIDE_BYTES = 2**30  # elsewhere


class Specialist(Protocol):
    """An expert as the engine sees it: what it does to the frozen backbone, and how it reads the result."""

    def tuning(self) -> Tuning | TuningOf: ...

    def classify(self, features: Tensor, backbone: Backbone) -> Tensor:
        """Logits (B, C_t) of features (B, d), or of tokens (B, n, d) where its tuning reads them."""


@dataclass(frozen=True, slots=True)
class Share:
    """The images of one expert, or some of them."""

    expert: int
    rows: Tensor  # (b,) places in the batch
    tuning: Tuning

    def part(self, begin: int, end: int) -> Share:
        return Share(self.expert, self.rows[begin:end], _of_rows(self.tuning, slice(begin, end)))


def run_experts(
    backbone: Backbone,
    tokens: Tensor,
    weights: Tensor,
    experts: Sequence[Specialist],
    *,
    columns: Sequence[Tensor],
    classes: int,
    query: Tensor | None = None,
) -> Tensor:
    """Logits (B, T, C) of every image by every expert with a weight for it; 0 elsewhere.

    `tokens` (B, n, d) come from `backbone.start`; `query` (B, d) is the plain feature, where it is known already.
    `columns[t]` (C_t,) says where expert t's classes stand among the model's. An expert that nobody needs does not run.
    The logits are where the tokens are, or on the CPU where that device has no float64.
    """
    found = torch.zeros(len(tokens), len(experts), classes, dtype=torch.float64, device=float64_device(tokens.device))
    tunings = {expert: experts[expert].tuning() for expert in (weights > 0).any(dim=0).nonzero()[:, 0].tolist()}
    if query is None and any(tuning is PLAIN or not isinstance(tuning, Tuning) for tuning in tunings.values()):
        query = backbone.finish(tokens)  # once, for all who look at it
    apart = backbone.graphs is not None
    for shares in _chunks(_shares(weights, tunings, query), _chunk_size(backbone, tokens), apart=apart):
        rows = torch.cat([share.rows for share in shares])
        if query is not None and all(share.tuning is PLAIN for share in shares):
            features = query[rows]
        else:
            tuning = packed([(share.tuning, len(share.rows)) for share in shares])
            first = experts[shares[0].expert]
            fixed = tuning is tunings[shares[0].expert]  # not packed, and no prompt of one sample
            owner = first if fixed and isinstance(first, nn.Module) else None
            features = backbone.finish(tokens[rows], tuning, owner=owner)
        for share, own in zip(shares, torch.split(features, [len(share.rows) for share in shares]), strict=True):
            logits = experts[share.expert].classify(own, backbone)
            found[share.rows[:, None], share.expert, columns[share.expert].to(found.device)] = as_float64(logits)
    return found


def run_apart(
    backbone: Backbone,
    images: Tensor,
    weights: Tensor,
    experts: Sequence[Any],
    *,
    columns: Sequence[Tensor],
    classes: int,
) -> Tensor:
    """`run_experts` for experts that look at an image in a way of their own: each is called with its images."""
    found = torch.zeros(len(images), len(experts), classes, dtype=torch.float64, device=float64_device(images.device))
    for expert, own in enumerate(columns):
        rows = (weights[:, expert] > 0).nonzero()[:, 0]
        if len(rows):
            logits = experts[expert](images[rows.to(images.device)], backbone)
            found[rows[:, None], expert, own.to(found.device)] = as_float64(logits)
    return found


def packed(parts: Sequence[tuple[Tuning, int]]) -> Tuning:
    """One tuning for images of several: of each as many images as it says, one after another."""
    if len(parts) == 1:
        return parts[0][0]
    counts = [count for _, count in parts]
    tunings = [tuning for tuning, _ in parts]
    first = tunings[0]
    prefix = {}
    for block, own in first.prefix.items():
        keys = _stacked([tuning.prefix[block].keys for tuning in tunings], counts)
        values = _stacked([tuning.prefix[block].values for tuning in tunings], counts)
        prefix[block] = Prefix(keys, values, projected=own.projected)
    return Tuning(
        tokens=None if first.tokens is None else _stacked([tuning.tokens for tuning in tunings], counts),
        prefix=prefix,
        branch=_beside([tuning.branch for tuning in tunings], counts),
        final=_split([tuning.final for tuning in tunings], counts),
        delta=_beside([tuning.delta for tuning in tunings], counts),
        readout=first.readout,
    )


def _shares(weights: Tensor, tunings: Mapping[int, Tuning | TuningOf], query: Tensor | None) -> Iterator[Share]:
    for expert, tuning in tunings.items():
        rows = (weights[:, expert] > 0).nonzero()[:, 0]
        if not isinstance(tuning, Tuning):
            assert query is not None
            tuning = tuning(query[rows])
        yield Share(expert, rows, tuning)


def _chunks(shares: Iterator[Share], size: int, *, apart: bool) -> Iterator[list[Share]]:
    """Shares that fit into one pass, `size` images at most; those whose tokens stand alike go together.

    With `apart`, no two experts do.
    """
    alike: dict[object, list[Share]] = {}
    for share in shares:
        alike.setdefault(share.expert if apart else _shape(share.tuning), []).append(share)
    for same in alike.values():
        chunk: list[Share] = []
        room = size
        for share in same:
            begin = 0
            while begin < len(share.rows):
                taken = share.part(begin, begin + room)
                chunk.append(taken)
                begin += len(taken.rows)
                room -= len(taken.rows)
                if not room:
                    yield chunk
                    chunk, room = [], size
        if chunk:
            yield chunk


def _chunk_size(backbone: Backbone, tokens: Tensor) -> int:
    widest = tokens.shape[1] * max(backbone.vit.config.hidden, 3 * backbone.width) * tokens.element_size()
    return max(1, CHUNK_BYTES.get(tokens.device.type, WIDE_BYTES) // widest)


def _shape(tuning: Tuning) -> object:
    """What must be the same for two tunings to go through the blocks together."""
    prompts = None if tuning.tokens is None else tuning.tokens.shape[-2]
    prefixes = tuple((block, own.keys.shape[-2], own.projected) for block, own in sorted(tuning.prefix.items()))
    return prompts, prefixes, tuning.readout, tuning is PLAIN


def _of_rows(tuning: Tuning, rows: slice) -> Tuning:
    """What a tuning with one prompt per sample is for some of the samples."""
    per_sample = [own for own in (tuning.tokens, *(each.keys for each in tuning.prefix.values())) if own is not None]
    if all(own.ndim == 2 for own in per_sample):
        return tuning
    tokens = tuning.tokens[rows] if tuning.tokens is not None and tuning.tokens.ndim == 3 else tuning.tokens
    prefix = {
        block: Prefix(own.keys[rows], own.values[rows], projected=own.projected) if own.keys.ndim == 3 else own
        for block, own in tuning.prefix.items()
    }
    return replace(tuning, tokens=tokens, prefix=prefix)


def _stacked(prompts: Sequence[Any], counts: Sequence[int]) -> Tensor:
    """Prompts (M, d) or (b, M, d) as one prompt per sample, (B, M, d)."""
    return torch.cat([prompt.expand(count, -1, -1) for prompt, count in zip(prompts, counts, strict=True)])


def _beside(sites: Sequence[Mapping[int, Mapping[Any, Part]]], counts: Sequence[int]) -> dict[int, dict[Any, Part]]:
    """At each site that anybody uses, what each does there."""
    found: dict[int, dict[Any, Part]] = {}
    for block in sorted({block for site in sites for block in site}):
        own = [site.get(block, {}) for site in sites]
        parts = {name: _split([each.get(name) for each in own], counts) for each in own for name in each}
        found[block] = {name: part for name, part in parts.items() if part is not None}
    return found


def _split(parts: Sequence[Part | None], counts: Sequence[int]) -> Part | None:
    """A part that does to each share of the images what its own part does."""
    if all(part is None for part in parts):
        return None

    def act(u: Tensor) -> Tensor:
        shares = torch.split(u, list(counts))
        done = [None if part is None else part(own) for part, own in zip(parts, shares, strict=True)]
        like = next(each for each in done if each is not None)
        return torch.cat(
            [
                like.new_zeros(len(own), *like.shape[1:]) if each is None else each
                for each, own in zip(done, shares, strict=True)
            ]
        )

    return act
