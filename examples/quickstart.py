"""The main job in small, offline, in half a minute: two domains learned one after the other, each with its own expert.

Run it with `make demo`. The ViT is small and has random weights, the pictures are drawn: the numbers show how things
hang together, not how well they work on photographs.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from safetensors.torch import save_file

import bpg
from bpg.backbones.backbone import Probe

CLASSES = ("sky", "sun", "wall")


def draw(name: str, seed: int, paper: str) -> Image.Image:
    """A sky above, a wall at the side or a sun in the middle, of random colour and size."""
    generator = torch.Generator().manual_seed(seed)
    size, *colour = torch.randint(0, 30, (4,), generator=generator).tolist()
    image = Image.new("RGB", (110, 110), paper)
    pen, fill = ImageDraw.Draw(image), tuple(4 * channel + 70 for channel in colour)
    if name == "sky":
        pen.rectangle((0, 0, 110, 40 + size), fill=fill)
    elif name == "wall":
        pen.rectangle((0, 0, 40 + size, 110), fill=fill)
    else:
        pen.ellipse((30 - size // 2, 30 - size // 2, 80 + size // 2, 80 + size // 2), fill=fill)
    return image


def draw_list(folder: Path, paper: str, first: int) -> Path:
    """Sixty pictures on `paper` and their list, `path label` a line."""
    lines = []
    for index in range(60):
        label = index % len(CLASSES)
        path = folder / paper / CLASSES[label] / f"{first + index:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(CLASSES[label], first + index, paper).save(path)
        lines.append(f"{path.relative_to(folder)} {label}")
    (folder / f"{paper}{first}.txt").write_text("\n".join(lines))
    return folder / f"{paper}{first}.txt"


def small_checkpoint(folder: Path) -> Path:
    """A small ViT with random weights, saved under timm's key names as anybody's checkpoint would be."""
    width, depth, torch_generator = 128, 4, torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, 1 + 64, width),
        "patch_embed.proj.weight": (width, 3, 8, 8),
        "patch_embed.proj.bias": (width,),
        "norm.weight": (width,),
        "norm.bias": (width,),
    }
    for block in range(depth):
        for part, shape in (
            ("norm1", (width,)), ("attn.qkv", (3 * width, width)), ("attn.proj", (width, width)),
            ("norm2", (width,)), ("mlp.fc1", (4 * width, width)), ("mlp.fc2", (width, 4 * width)),
        ):  # fmt: skip
            shapes[f"blocks.{block}.{part}.weight"] = shape
            shapes[f"blocks.{block}.{part}.bias"] = shape[:1]
    tensors = {name: 0.08 * torch.randn(shape, generator=torch_generator) for name, shape in shapes.items()}
    tensors |= {name: tensor + 1 for name, tensor in tensors.items() if re.search(r"norm\d?\.weight", name)}
    save_file(tensors, folder / "model.safetensors")
    pixels = {"input_size": [3, 64, 64], "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "crop_pct": 1.0}
    config = {"architecture": "small_vit", "model_args": {"num_heads": 2}, "pretrained_cfg": pixels}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        backbone = bpg.load_backbone(small_checkpoint(folder))
        size, side = sum(p.numel() for p in backbone.parameters()), backbone.preprocessing.size
        print(f"A frozen ViT: {backbone.depth} blocks, {backbone.width} channels, {size:,} parameters, {side} pixels.")

        pictures = bpg.read_list(draw_list(folder, "white", 0))
        probes = (Probe(), Probe(2, "moments"))
        found = bpg.survey(backbone, pictures, probes=probes, cache=None)
        print(f"\nOne pass over {len(pictures)} drawn pictures: {found.counts}")
        for probe in probes:
            scatter = found.scatters[probe]
            print(f"  {probe!s:<24} between classes {scatter.between:.4f}   within classes {scatter.within:.4f}")

        print(
            "\nAn expert for each domain, one after the other, three classes; what was learned before stays as it is:"
        )
        model = bpg.BPG(
            backbone,
            rank=8,
            optimisation={"epochs": 30, "batch_size": 20, "lr": 0.05},
            augmentation={"area": (0.8, 1.0), "flip": False},
        )
        tests = {paper: bpg.read_list(draw_list(folder, paper, 500)) for paper in ("white", "black")}
        first = ""
        for paper in tests:
            model.learn(bpg.Domain(paper, bpg.read_list(draw_list(folder, paper, 0))))
            accuracy = {name: f"{model.score(tests[name]):.0%}" for name in tests if name in model.domains}
            model.save(folder / "model", event=f"learned {paper}")
            expert = json.loads((folder / "model" / "model.json").read_text())["domains"]["white"]["sha256"]
            first = first or expert
            print(f"  after {paper}: right on {accuracy}; the expert for white is {expert[:12]}")
        model.forget("black")
        model.save(folder / "model", event="forgot black")
        print(f"  black forgotten: {', '.join(model.domains)} left, the expert for white unchanged: {expert == first}")
    print("\nNext: `bpg doctor`, `bpg backbones`, and README.md for real weights and your own images.")


if __name__ == "__main__":
    main()
