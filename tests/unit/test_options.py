"""Mixed precision and torch.compile change the speed, within tolerance the result, and nothing by default."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from bpg import Backbone, Tuning
from bpg.backbones.vit import ViT
from bpg.data.transforms import Preprocessing
from bpg.errors import WrongUse
from tests.conftest import shaken, small_config


def backbone(precision: str = "float32") -> Backbone:
    torch.manual_seed(0)
    return Backbone(shaken(ViT(small_config())), Preprocessing(size=32), name="small", precision=precision)  # type: ignore[arg-type]


def test_mixed_precision_is_near_and_gives_float32(images: torch.Tensor) -> None:
    exact, mixed = backbone(), backbone("bfloat16")
    assert mixed(images).dtype == torch.float32
    assert not torch.equal(mixed(images), exact(images))
    assert_close(mixed.embed(images), exact.embed(images), rtol=0, atol=2e-2)
    prompt = nn.Parameter(torch.randn(4, 64))
    mixed(images, Tuning(tokens=prompt)).sum().backward()
    assert prompt.grad is not None
    assert prompt.grad.dtype == torch.float32


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(WrongUse, match="float32, bfloat16, float16, came 'int8'"):
        backbone("int8")


@pytest.mark.slow
def test_compiled_blocks_are_near(images: torch.Tensor) -> None:
    exact, compiled = backbone(), backbone()
    compiled.compile_blocks()
    assert compiled.digest() == exact.digest()
    assert_close(compiled(images), exact(images), rtol=1e-4, atol=1e-4)
    prompt = torch.randn(4, 64)
    assert_close(compiled(images, Tuning(tokens=prompt)), exact(images, Tuning(tokens=prompt)), rtol=1e-4, atol=1e-4)
