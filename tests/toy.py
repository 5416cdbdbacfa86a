"""Small domains that can be learned in a second: a few shapes on backgrounds of different colours."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from bpg.backbones.backbone import Backbone
from bpg.backbones.clip import TextConfig, TextTower
from bpg.backbones.vit import ViT
from bpg.data.domain import Domain, DomainStream, TestSet
from bpg.data.images import ImageSet
from bpg.data.transforms import Preprocessing
from bpg.randomness import seed_of
from tests.conftest import shaken, small_config

CLASSES = ("bar", "box", "cross")
COLOURS = {"blue": (30, 40, 160), "green": (30, 150, 40), "red": (170, 30, 40), "white": (200, 200, 200)}
FAST = {"epochs": 6, "batch_size": 8, "lr": 0.02}
GENTLE = {"area": (0.9, 1.0), "flip": False}


def toy_backbone(**changes: object) -> Backbone:
    """A small ViT with random weights, the same every time."""
    config = small_config(**changes)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    backbone = Backbone(shaken(ViT(config)), Preprocessing(size=config.image_size), name="toy")
    torch.set_rng_state(state)
    return backbone


def toy_clip_backbone() -> Backbone:
    """A small CLIP with random weights, the same every time."""
    config = small_config(pre_norm=True, patch_bias=False, projection=32)
    words = TextConfig(width=32, depth=2, heads=2, hidden=64, projection=32)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    vit, text = shaken(ViT(config)), shaken(TextTower(words), scale=0.2)
    torch.set_rng_state(state)
    pixels = Preprocessing(size=config.image_size)
    return Backbone(vit, pixels, name="toy-clip", text=text, logit_scale=100.0)


def draw(shape: str, colour: tuple[int, int, int], generator: np.random.Generator) -> Image.Image:
    """A large shape in the opposite colour: random features tell it apart."""
    pixels = np.full((36, 36, 3), colour) + generator.normal(0, 12, (36, 36, 3))
    a, b = generator.integers(-2, 3, 2)
    ink = 255 - np.array(colour)
    if shape == "bar":
        pixels[: 18 + a] = ink
    elif shape == "box":
        pixels[:, : 18 + b] = ink
    elif shape == "cross":
        pixels[10 + a : 26 + a, 10 + b : 26 + b] = ink
    else:
        pixels[18 + a :, 18 + b :] = ink
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def toy_images(
    folder: Path, name: str, count: int, *, classes: tuple[str, ...] = CLASSES, part: str = "train"
) -> ImageSet:
    """`count` images of a domain, drawn the same every time."""
    generator = np.random.default_rng(seed_of(name, part))
    paths = []
    for index in range(count):
        path = folder / part / name / f"{index:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(classes[index % len(classes)], COLOURS[name], generator).save(path)
        paths.append(path)
    return ImageSet(tuple(paths), tuple(index % len(classes) for index in range(count)), classes)


def toy_domain(folder: Path, name: str, count: int = 24, *, classes: tuple[str, ...] = CLASSES) -> Domain:
    return Domain(name, toy_images(folder, name, count, classes=classes))


def toy_stream(folder: Path, names: tuple[str, ...] = ("red", "blue", "green"), count: int = 24) -> DomainStream:
    domains = tuple(toy_domain(folder, name, count) for name in names)
    tests = tuple(TestSet(toy_images(folder, name, 12, part="test"), name) for name in names)
    return DomainStream("toy", domains, tests)


def toy_checkpoint(folder: Path) -> Path:
    """A small ViT with random weights on disk, as timm writes one."""
    width, depth, generator = 64, 2, torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, 17, width),
        "patch_embed.proj.weight": (width, 3, 8, 8),
        "patch_embed.proj.bias": (width,),
        "norm.weight": (width,),
        "norm.bias": (width,),
    }
    for block in range(depth):
        for part, shape in (
            ("norm1", (width,)), ("attn.qkv", (3 * width, width)), ("attn.proj", (width, width)),
            ("norm2", (width,)), ("mlp.fc1", (2 * width, width)), ("mlp.fc2", (width, 2 * width)),
        ):  # fmt: skip
            shapes[f"blocks.{block}.{part}.weight"] = shape
            shapes[f"blocks.{block}.{part}.bias"] = shape[:1]
    tensors = {name: 0.08 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    tensors |= {name: tensor + 1 for name, tensor in tensors.items() if "norm" in name and name.endswith("weight")}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    pixels = {"input_size": [3, 32, 32], "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "crop_pct": 1.0}
    config = {"architecture": "toy", "model_args": {"num_heads": 2}, "pretrained_cfg": pixels}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def toy_folder(root: Path, names: tuple[str, ...] = ("red", "blue"), count: int = 10) -> Path:
    """`root/domain/class/*.png`, `count` images a class."""
    for name in names:
        generator = np.random.default_rng(seed_of(name, "folder"))
        for shape in CLASSES:
            (root / name / shape).mkdir(parents=True, exist_ok=True)
            for index in range(count):
                draw(shape, COLOURS[name], generator).save(root / name / shape / f"{index:03}.png")
    return root


def toy_clip(folder: Path) -> Path:
    """A small CLIP with random weights on disk, as open_clip writes one."""
    from tests.parity.test_clip import SMALL, openclip_model, save_model

    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    save_model(openclip_model(quick=True), folder / "open_clip_model.safetensors")
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": SMALL | {"quick_gelu": True}}))
    return folder
