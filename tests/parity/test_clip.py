"""Our CLIP computes what open_clip's and transformers' do, image tower and text tower, from the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch.testing import assert_close

from bpg import Backbone, load_backbone
from bpg.backbones.catalogue import catalogue
from bpg.backbones.tokenizer import tokenize
from bpg.errors import WeightsError, WrongUse
from tests.conftest import shaken
from tests.oracles import oracle

TEXTS = ["a photo of a dog.", "an aircraft carrier", "", "The Eiffel Tower, drawn in 3 lines"]
SMALL = {
    "embed_dim": 64,
    "vision_cfg": {"image_size": 64, "layers": 3, "width": 128, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 128, "heads": 2, "layers": 2},
}


def save_model(model: Any, file: Path, extra: dict[str, torch.Tensor] | None = None) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous().clone() for name, tensor in model.state_dict().items()} | (extra or {}), file)
    return file


def openclip_model(quick: bool) -> Any:
    open_clip = oracle("open_clip")
    return shaken(open_clip.CLIP(**SMALL, quick_gelu=quick), scale=0.02).eval()


def same_features(ours: Any, image_features: torch.Tensor, text_features: torch.Tensor, images: torch.Tensor) -> None:
    with torch.no_grad():
        assert_close(ours(images), image_features, rtol=0, atol=1e-5)
        assert_close(ours.text(tokenize(TEXTS)), text_features, rtol=0, atol=1e-5)


@pytest.mark.parametrize("quick", [False, True])
def test_features_equal_open_clip(quick: bool, tmp_path: Path) -> None:
    theirs = openclip_model(quick)
    save_model(theirs, tmp_path / "open_clip_model.safetensors")
    config = {"model_cfg": SMALL | {"quick_gelu": quick}, "preprocess_cfg": {"mean": [0.1, 0.2, 0.3], "std": [1, 1, 1]}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    ours = load_backbone(tmp_path)
    assert ours.preprocessing.mean == (0.1, 0.2, 0.3)
    assert ours.logit_scale == pytest.approx(theirs.logit_scale.exp().item())
    images = torch.randn(3, 3, 64, 64)
    with torch.no_grad():
        same_features(ours, theirs.encode_image(images), theirs.encode_text(tokenize(TEXTS)), images)


@pytest.mark.parametrize("name", ["ViT-B-32-quickgelu", "ViT-B-32"])
def test_features_equal_open_clip_at_full_size(name: str, tmp_path: Path) -> None:
    open_clip = oracle("open_clip")
    theirs = shaken(open_clip.create_model(name), scale=0.005).eval()
    architecture = "ViT-B-32.openai" if "quick" in name else "ViT-B-32.laion2b_s34b_b79k"
    ours = load_backbone(save_model(theirs, tmp_path / "clip.safetensors"), architecture=architecture)
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        same_features(ours, theirs.encode_image(images), theirs.encode_text(tokenize(TEXTS)), images)


def test_openai_release_in_half_precision(tmp_path: Path) -> None:
    """OpenAI's own file has fp16 weights and three numbers more, and means quick-GELU without saying so."""
    theirs = openclip_model(quick=True).half().float()
    numbers = {
        "input_resolution": torch.tensor(64),
        "context_length": torch.tensor(77),
        "vocab_size": torch.tensor(49408),
    }
    state = {name: tensor.half() for name, tensor in theirs.state_dict().items()}
    save_file(state | numbers, tmp_path / "ViT-small.safetensors")
    ours = load_backbone(tmp_path / "ViT-small.safetensors")
    assert ours.vit.config.activation == "quick_gelu"
    images = torch.randn(3, 3, 64, 64)
    with torch.no_grad():
        same_features(ours, theirs.encode_image(images), theirs.encode_text(tokenize(TEXTS)), images)


def test_a_clip_without_config_is_refused_for_its_activation(tmp_path: Path) -> None:
    file = save_model(openclip_model(quick=False), tmp_path / "mystery.safetensors")
    with pytest.raises(WeightsError, match="does not tell its activation"):
        load_backbone(file)


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
def test_features_equal_transformers_clip(activation: str, tmp_path: Path) -> None:
    transformers = oracle("transformers")
    tower = {"hidden_act": activation, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 200}
    config = transformers.CLIPConfig(
        vision_config=tower | {"hidden_size": 96, "image_size": 64, "patch_size": 16},
        text_config=tower | {"hidden_size": 72},
        projection_dim=48,
    )
    theirs = shaken(transformers.CLIPModel(config), scale=0.02).eval()
    theirs.save_pretrained(tmp_path)
    pixels = {"size": {"shortest_edge": 64}, "crop_size": {"height": 64, "width": 64}, "do_center_crop": True}
    pixels |= {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.2, 0.2], "resample": 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(pixels))
    ours = load_backbone(tmp_path)
    assert (ours.preprocessing.mean, ours.preprocessing.crop) == ((0.4, 0.5, 0.6), "center")
    images = torch.randn(3, 3, 64, 64)
    with torch.no_grad():
        image_features = theirs.visual_projection(theirs.vision_model(images).pooler_output)
        text_features = theirs.text_projection(theirs.text_model(tokenize(TEXTS)).pooler_output)
        same_features(ours, image_features, text_features, images)


def test_class_features_are_open_clips_for_the_same_texts(tmp_path: Path) -> None:
    theirs = openclip_model(quick=True)
    save_model(theirs, tmp_path / "open_clip_model.safetensors")
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": SMALL | {"quick_gelu": True}}))
    ours = load_backbone(tmp_path)
    ids = oracle("open_clip").get_tokenizer("ViT-B-32")(["a photo of a alarm clock.", "a photo of a dog."])
    with torch.no_grad():
        wanted = F.normalize(theirs.encode_text(ids), dim=-1)
        assert_close(ours.class_features(["alarm_clock", "dog"]), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("tower", "setting"),
    [
        ("vision_cfg", {"pool_type": "avg"}),
        ("vision_cfg", {"norm_kwargs": {"eps": 1e-3}}),
        ("text_cfg", {"pool_type": "last"}),
        ("text_cfg", {"no_causal_mask": True}),
    ],
)
def test_an_open_clip_that_computes_something_else_is_refused(
    tower: str, setting: dict[str, object], tmp_path: Path
) -> None:
    save_model(openclip_model(quick=True), tmp_path / "open_clip_model.safetensors")
    config = {"model_cfg": SMALL | {tower: {**SMALL[tower], **setting}}}  # type: ignore[dict-item]
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match=f"does not have: {next(iter(setting))}"):
        load_backbone(tmp_path)


@pytest.mark.parametrize("form", ["vision_config", "vision_config_dict"])
def test_each_tower_of_a_hugging_face_clip_has_its_own_settings(form: str, tmp_path: Path) -> None:
    transformers = oracle("transformers")
    tower = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "hidden_size": 64}
    vision = tower | {"image_size": 32, "patch_size": 16, "hidden_act": "gelu", "layer_norm_eps": 1e-4}
    config = transformers.CLIPConfig(vision_config=vision, text_config=tower | {"hidden_act": "quick_gelu"})
    theirs = shaken(transformers.CLIPModel(config), scale=0.02).eval()
    theirs.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    if form == "vision_config_dict":  # as the oldest files have it
        written |= {"vision_config_dict": written["vision_config"], "vision_config": None}
        (tmp_path / "config.json").write_text(json.dumps(written))
    with pytest.warns(UserWarning, match="pixels"):
        ours = load_backbone(tmp_path)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        image_features = theirs.visual_projection(theirs.vision_model(images).pooler_output)
        text_features = theirs.text_projection(theirs.text_model(tokenize(TEXTS)).pooler_output)
        same_features(ours, image_features, text_features, images)


@pytest.fixture
def small_clip(tmp_path: Path) -> Backbone:
    save_model(openclip_model(quick=True), tmp_path / "open_clip_model.safetensors")
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": SMALL | {"quick_gelu": True}}))
    return load_backbone(tmp_path)


def test_context_tokens_that_spell_the_template_change_nothing(small_clip: Backbone) -> None:
    assert small_clip.text is not None
    words = small_clip.text.embedding(tokenize(["a photo of a"])[0, 1:5])
    names = ["alarm clock", "dog"]
    wanted = small_clip.class_features(names)
    assert_close(small_clip.class_features(names, context=words), wanted, rtol=0, atol=1e-6)
    one_each = torch.stack([words, torch.randn_like(words)])
    found = small_clip.class_features(names, context=one_each)
    assert_close(found[0], wanted[0], rtol=0, atol=1e-6)
    assert (found[1] - wanted[1]).abs().max() > 1e-3


def test_context_tokens_that_do_not_fit_are_refused(small_clip: Backbone) -> None:
    with pytest.raises(WrongUse, match=r"\(length, 128\) or \(1, length, 128\), came \(4, 64\)"):
        small_clip.class_features(["dog"], context=torch.zeros(4, 64))
    with pytest.raises(WrongUse, match="77 tokens at most, came 83"):
        small_clip.class_features(["dog"], context=torch.zeros(79, 128))


def test_text_features_are_of_unit_length_in_mixed_precision_too(small_clip: Backbone) -> None:
    small_clip.precision = "bfloat16"
    assert_close(small_clip.class_features(["cat", "dog"]).norm(dim=1), torch.ones(2))


def test_pixels_that_nobody_tells_are_clips_and_said_aloud(tmp_path: Path) -> None:
    transformers = oracle("transformers")
    tower = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "hidden_size": 64}
    vision = tower | {"image_size": 32, "patch_size": 16}
    transformers.CLIPModel(transformers.CLIPConfig(vision_config=vision, text_config=tower)).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="does not tell its pixels: taking mean \\(0.48145466"):
        backbone = load_backbone(tmp_path)
    assert (backbone.preprocessing.size, backbone.preprocessing.crop) == (32, "center")


def test_the_catalogue_agrees_with_open_clip() -> None:
    open_clip = oracle("open_clip")
    names = [entry for entry in catalogue().values() if entry.text is not None and "/" not in entry.name]
    assert len(names) >= 5
    for entry in names:
        model, tag = entry.name.split(".")
        source, shape = open_clip.get_pretrained_cfg(model, tag), open_clip.get_model_config(model)
        assert entry.hub == source["hf_hub"].strip("/")
        assert entry.preprocessing.mean == pytest.approx(source["mean"])
        assert entry.preprocessing.std == pytest.approx(source["std"])
        assert (entry.vit.activation == "quick_gelu") == source.get("quick_gelu", False)
        vision, text = shape["vision_cfg"], shape["text_cfg"]
        assert (entry.vit.width, entry.vit.depth) == (vision["width"], vision["layers"])
        assert (entry.vit.patch_size, entry.vit.image_size) == (vision["patch_size"], vision["image_size"])
        assert entry.vit.projection == shape["embed_dim"]
        assert entry.text is not None
        assert (entry.text.width, entry.text.heads, entry.text.depth) == (text["width"], text["heads"], text["layers"])
