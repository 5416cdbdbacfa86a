"""What a frozen backbone is and what an expert may do to it, offline, in a few seconds.

Run it with `make demo`. The ViT is small and has random weights: the numbers show how things hang together, not how
well they work.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from safetensors.torch import save_file

import bpg
from bpg.backbones.backbone import Probe

CLASSES = ("circle", "square", "triangle")


def draw(shape: str, seed: int) -> Image.Image:
    """A shape of random colour, size and place."""
    generator = torch.Generator().manual_seed(seed)
    x, y, size, *colour = torch.randint(0, 40, (6,), generator=generator).tolist()
    box = (x, y, x + 30 + size, y + 30 + size)
    image = Image.new("RGB", (110, 110), "white")
    pen, fill = ImageDraw.Draw(image), tuple(4 * channel + 50 for channel in colour)
    if shape == "circle":
        pen.ellipse(box, fill=fill)
    elif shape == "square":
        pen.rectangle(box, fill=fill)
    else:
        pen.polygon([(box[0], box[3]), (box[2], box[3]), ((box[0] + box[2]) / 2, box[1])], fill=fill)
    return image


def draw_list(folder: Path) -> Path:
    """Sixty pictures and their list, `path label` a line."""
    lines = []
    for index in range(60):
        label = index % len(CLASSES)
        path = folder / CLASSES[label] / f"{index:02}.png"
        path.parent.mkdir(exist_ok=True)
        draw(CLASSES[label], seed=index).save(path)
        lines.append(f"{path.relative_to(folder)} {label}")
    (folder / "pictures.txt").write_text("\n".join(lines))
    return folder / "pictures.txt"


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
    tensors = {name: 0.06 * torch.randn(shape, generator=torch_generator) for name, shape in shapes.items()}
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

        pictures = bpg.read_list(draw_list(folder))
        probes = (Probe(), Probe(2, "moments"))
        found = bpg.survey(backbone, pictures, probes=probes, cache=None)
        print(f"\nOne pass over {len(pictures)} drawn pictures: {found.counts}")
        for probe in probes:
            scatter = found.scatters[probe]
            print(f"  {probe!s:<24} between classes {scatter.between:.4f}   within classes {scatter.within:.4f}")

        images = torch.stack([backbone.prepare(torch.zeros(3, 110, 110, dtype=torch.uint8))])
        adapter = torch.nn.Sequential(
            torch.nn.Linear(backbone.width, 16), torch.nn.ReLU(), torch.nn.Linear(16, backbone.width)
        )
        experts = {
            "nothing set": bpg.Tuning(),
            "10 prompt tokens": bpg.Tuning(tokens=torch.randn(10, backbone.width)),
            "parallel adapters, r = 16": bpg.Tuning(
                branch={block: {"mlp": adapter} for block in range(backbone.depth)}
            ),
        }
        print("\nHow far an expert moves a feature of unit length:")
        plain = backbone.embed(images)
        with torch.no_grad():
            for expert, tuning in experts.items():
                moved = torch.nn.functional.normalize(backbone(images, tuning), dim=-1)
                print(f"  {expert:<26} {(moved - plain).norm():.4f}")
    print("\nNext: `bpg doctor`, `bpg backbones`, and README.md for real weights and your own images.")


if __name__ == "__main__":
    main()
