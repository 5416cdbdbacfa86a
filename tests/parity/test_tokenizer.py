"""Our tokenizer gives open_clip's ids."""

from __future__ import annotations

import gzip
from importlib.resources import files

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bpg.backbones.tokenizer import tokenize
from tests.oracles import oracle

ODD = [
    "", " ", "don't", "we'll've", "--'s", "3D-model №5 ½ ²", "naïve café", "日本語 テスト", "emoji 😀 here",
    "a_b", "R&amp;B",
    "tab\tand\nnewline", "ALL CAPS", "x" * 400, "word " * 100, "İstanbul Ölçü", "'S 'T", "....!!!", "\u00a0nbsp",
]  # fmt: skip


def theirs(texts: list[str]) -> torch.Tensor:
    return oracle("open_clip.tokenizer").SimpleTokenizer()(texts)


def test_ids_of_domainnet_class_names_equal_open_clips(domainnet_names: list[str]) -> None:
    assert len(domainnet_names) == 345
    for template in ("{}", "a photo of a {}.", "{}."):
        texts = [template.format(name.replace("_", " ")) for name in domainnet_names]
        assert torch.equal(tokenize(texts), theirs(texts))
    assert torch.equal(tokenize(domainnet_names), theirs(domainnet_names))


def test_ids_of_odd_texts_equal_open_clips() -> None:
    assert torch.equal(tokenize(ODD), theirs(ODD))


@settings(deadline=None, max_examples=60)
@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=60))
def test_ids_of_any_plain_text_equal_open_clips(text: str) -> None:
    plain = text.replace("<", "").replace("&", "")  # their special marks and entities aside
    assert torch.equal(tokenize([plain]), theirs([plain]))


def test_the_shipped_merges_are_openais() -> None:
    module = oracle("open_clip.tokenizer")
    tokenizer = module.SimpleTokenizer()
    wanted = [[tokenizer.encoder[left], tokenizer.encoder[right]] for left, right in tokenizer.bpe_ranks]
    packed = gzip.decompress(files("bpg.backbones").joinpath("clip_merges.u16.gz").read_bytes())
    assert np.frombuffer(packed, dtype="<u2").reshape(-1, 2).tolist() == wanted
