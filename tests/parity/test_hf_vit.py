"""Our ViT computes what transformers' does, from the same file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from bpg import load_backbone
from tests.conftest import shaken
from tests.oracles import oracle


@pytest.mark.parametrize("kind", ["ViTModel", "ViTForImageClassification"])
def test_features_equal_transformers_vit(kind: str, tmp_path: Path) -> None:
    transformers = oracle("transformers")
    config = transformers.ViTConfig(
        hidden_size=96, num_hidden_layers=4, num_attention_heads=4, intermediate_size=200, image_size=64, patch_size=16
    )
    theirs = shaken(getattr(transformers, kind)(config)).eval()
    theirs.save_pretrained(tmp_path)
    pixels = {"size": {"height": 64, "width": 64}, "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(pixels))
    ours = load_backbone(tmp_path)
    assert ours.vit.config.norm_epsilon == 1e-12
    assert (ours.preprocessing.crop, ours.preprocessing.interpolation) == ("squash", "bilinear")
    images = torch.randn(3, 3, 64, 64)
    tower = theirs if kind == "ViTModel" else theirs.vit
    with torch.no_grad():
        assert_close(ours(images), tower(images).last_hidden_state[:, 0], rtol=0, atol=1e-5)
