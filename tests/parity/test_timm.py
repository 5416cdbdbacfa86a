"""Our ViT computes what timm's does, from the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from bpg import load_backbone
from bpg.backbones.catalogue import catalogue
from bpg.backbones.weights import read_tensors
from tests.conftest import shaken
from tests.oracles import oracle

# name, image size of the comparison: DINOv2 at its own 518 pixels would take half a minute
ARCHITECTURES = [
    ("vit_tiny_patch16_224", 224),
    ("vit_small_patch16_224", 224),
    ("vit_base_patch32_224", 224),
    ("deit_tiny_patch16_224", 224),
    ("deit_tiny_distilled_patch16_224", 224),
    ("deit3_small_patch16_224", 224),
    ("vit_small_patch14_dinov2", 112),
    ("vit_small_patch14_reg4_dinov2", 112),
]


def saved(model: Any, folder: Path, config: dict[str, object] | None = None) -> Path:
    """The model as a checkpoint folder of timm's layout."""
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("name", "size"), ARCHITECTURES)
def test_features_equal_timm(name: str, size: int, tmp_path: Path) -> None:
    timm = oracle("timm")
    theirs = shaken(timm.create_model(name, img_size=size)).eval()
    tag = next(entry for entry in catalogue().values() if entry.architecture == name)
    ours = load_backbone(saved(theirs, tmp_path, {"architecture": name}), image_size=size)
    assert ours.vit.config.heads == tag.vit.heads
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        wanted = theirs.forward_features(images)
        assert_close(ours(images), wanted[:, 0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("quick", [False, True])
def test_features_equal_timm_for_a_clip_image_tower(quick: bool, tmp_path: Path) -> None:
    timm = oracle("timm")
    name = f"vit_base_patch32_clip_{'quickgelu_' if quick else ''}224"
    theirs = shaken(timm.create_model(name), scale=0.01).eval()
    with pytest.warns(UserWarning, match="12 of 64 channels"):
        ours = load_backbone(saved(theirs, tmp_path, {"architecture": name}))
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        assert_close(ours(images), theirs.forward_features(images)[:, 0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "size"),
    [("vit_tiny_patch16_224", 160), ("deit3_small_patch16_224", 256), ("deit_tiny_distilled_patch16_224", 128)],
)
def test_positions_are_resized_as_timm_does(name: str, size: int, tmp_path: Path) -> None:
    timm = oracle("timm")
    original = shaken(timm.create_model(name)).eval()
    folder = saved(original, tmp_path, {"architecture": name})
    theirs = timm.create_model(name, img_size=size).eval()
    filtered = timm.models.vision_transformer.checkpoint_filter_fn(dict(original.state_dict()), theirs)
    theirs.load_state_dict(filtered)
    ours = load_backbone(folder, image_size=size)
    assert ours.preprocessing.size == size
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        assert_close(ours(images), theirs.forward_features(images)[:, 0], rtol=0, atol=1e-5)


def test_the_real_deit_tiny_equals_timm(deit_tiny_file: Path) -> None:
    timm = oracle("timm")
    theirs = timm.create_model("deit_tiny_patch16_224").eval()
    theirs.load_state_dict(read_tensors(deit_tiny_file))
    ours = load_backbone(deit_tiny_file)
    images = torch.randn(4, 3, 224, 224)
    with torch.no_grad():
        assert_close(ours(images), theirs.forward_features(images)[:, 0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [name for name, entry in catalogue().items() if entry.hub == f"timm/{name}"])
def test_the_catalogue_agrees_with_timm(name: str) -> None:
    timm = oracle("timm")
    entry, theirs = catalogue()[name], timm.models.get_pretrained_cfg(name)
    assert theirs is not None
    pixels = entry.preprocessing
    assert entry.hub == theirs.hf_hub_id
    assert entry.licence.lower() == theirs.license
    assert (3, pixels.size, pixels.size) == tuple(theirs.input_size)
    assert pixels.mean == pytest.approx(theirs.mean)
    assert pixels.std == pytest.approx(theirs.std)
    assert pixels.interpolation == theirs.interpolation
    assert pixels.crop_fraction == pytest.approx(theirs.crop_pct)
    assert pixels.crop == theirs.crop_mode
    with torch.device("meta"):
        model = timm.create_model(entry.architecture, num_classes=0)
    ours = entry.vit
    assert (ours.width, ours.depth, ours.heads) == (model.embed_dim, len(model.blocks), model.blocks[0].attn.num_heads)
    assert ours.hidden == model.blocks[0].mlp.fc1.out_features
    assert ours.norm_epsilon == model.norm.eps
    assert ours.positions == model.pos_embed.shape[1]
    assert ours.layer_scale == hasattr(model.blocks[0].ls1, "gamma")
    assert ours.specials == model.num_prefix_tokens
