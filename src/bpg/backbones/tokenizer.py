"""CLIP's byte-pair tokenizer: a text becomes the ids of the longest known pieces of its bytes.

Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units", 2016, arXiv 1508.07909, on bytes, with
the vocabulary of Radford et al. 2021 (clip_merges.LICENSE). Ids 0 to 255 are bytes, 256 to 511 bytes that end a
word, each merge makes the next id, and the last two open and close a text. Unlike open_clip, which runs ftfy first, it
does not repair mojibake or replace ligatures, full-width forms and curly quotes.
"""

from __future__ import annotations

import gzip
import html
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

CONTEXT_LENGTH = 77
START, END = 49406, 49407
_CONTRACTIONS = ("'re", "'ve", "'ll", "'s", "'t", "'m", "'d")

# The vocabulary counts the printable bytes first, then the rest.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTE_IDS = {byte: i for i, byte in enumerate([*_PRINTABLE, *(b for b in range(256) if b not in set(_PRINTABLE))])}


def tokenize(texts: Sequence[str], *, context_length: int = CONTEXT_LENGTH) -> Tensor:
    """Token ids (len(texts), context_length), padded with 0; a text that is too long is cut, its end mark kept.

    >>> tokenize(["a photo of a dog."])[0, :8].tolist()
    [49406, 320, 1125, 539, 320, 1929, 269, 49407]
    """
    ids = torch.zeros(len(texts), context_length, dtype=torch.long)
    for row, text in zip(ids, texts, strict=True):
        pieces = [START, *encode(text)[: context_length - 2], END]
        row[: len(pieces)] = torch.tensor(pieces)
    return ids


def encode(text: str) -> list[int]:
    """The ids of `text` without its opening and closing mark."""
    composed = unicodedata.normalize("NFC", html.unescape(html.unescape(text)))
    cleaned = " ".join(composed.split()).lower()
    return [piece for word in _words(cleaned) for piece in _merge(word)]


def _words(text: str) -> list[str]:
    """Contractions, runs of letters, single digits, runs of anything else; white space only parts them."""
    words: list[str] = []
    start = 0
    while start < len(text):
        contraction = next((c for c in _CONTRACTIONS if text.startswith(c, start)), None)
        kind = _kind(text[start])
        end = start + (len(contraction) if contraction else 1)
        if not contraction and kind in ("letter", "other"):
            while end < len(text) and _kind(text[end]) == kind:
                end += 1
        if kind != "space":
            words.append(text[start:end])
        start = end
    return words


def _kind(character: str) -> str:
    category = unicodedata.category(character)
    if category[0] == "L":
        return "letter"
    if category[0] == "N":
        return "number"
    return "space" if character.isspace() else "other"


@lru_cache(maxsize=100_000)
def _merge(word: str) -> tuple[int, ...]:
    ids = [_BYTE_IDS[byte] for byte in word.encode()]
    ids[-1] += 256
    merges = _merges()
    while len(ids) > 1:
        made = min(merges.get(pair, START) for pair in pairwise(ids))  # the earliest merge has the lowest id
        if made == START:
            break
        merged: list[int] = []
        for piece in ids:
            if merged and merges.get((merged[-1], piece)) == made:
                merged[-1] = made
            else:
                merged.append(piece)
        ids = merged
    return tuple(ids)


@lru_cache(maxsize=1)
def _merges() -> dict[tuple[int, int], int]:
    packed = gzip.decompress(files("bpg.backbones").joinpath("clip_merges.u16.gz").read_bytes())
    pairs = np.frombuffer(packed, dtype="<u2").reshape(-1, 2).tolist()
    return {(left, right): made for made, (left, right) in enumerate(pairs, start=512)}
