"""Domains made from one: what a camera, a printer or a draughtsman may do to images."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from bpg.data.decode import decode
from bpg.data.images import ImageSet
from bpg.randomness import generator_of

SIDE = 64  # pixels


def _grey(x: Tensor) -> Tensor:
    return x.mean(dim=0, keepdim=True).expand(3, -1, -1)


def _blurred(x: Tensor, kernel: Tensor) -> Tensor:
    side = kernel.shape[0] // 2
    padded = F.pad(x[:, None], [side, side, side, side], mode="reflect")
    return F.conv2d(padded, (kernel / kernel.sum())[None, None])[:, 0]


def _bell(radius: int, sigma: float) -> Tensor:
    line = torch.exp(-(torch.arange(-radius, radius + 1) ** 2) / (2 * sigma**2))
    return line[:, None] * line


def _coarse(x: Tensor, side: int) -> Tensor:
    return F.interpolate(F.interpolate(x[None], (side, side), mode="area"), x.shape[-2:])[0]


# Of an image (3, 64, 64) from 0 to 1, and noise of the same shape and deviation 1.
CHANGES = {
    "as it is": lambda x, _: x,
    "noise": lambda x, noise: x + 0.15 * noise,
    "shot noise": lambda x, noise: x + 0.25 * noise * x.clamp(min=0).sqrt(),
    "salt and pepper": lambda x, noise: torch.where(noise[:1].abs() > 1.6, (noise[:1] > 0).float(), x),
    "blur": lambda x, _: _blurred(x, _bell(4, 2.0)),
    "motion blur": lambda x, _: _blurred(x, torch.eye(11)),
    "mosaic": lambda x, _: _coarse(x, 16),
    "low contrast": lambda x, _: 0.5 + 0.25 * (x - 0.5),
    "bright": lambda x, _: x + 0.35,
    "dark": lambda x, _: x * 0.3,
    "grey": lambda x, _: _grey(x),
    "vivid": lambda x, _: _grey(x) + 2.5 * (x - _grey(x)),
    "negative": lambda x, _: 1 - x,
    "posterised": lambda x, _: (x * 3).round() / 3,
    "solarised": lambda x, _: torch.where(x > 0.5, 1 - x, x),
    "other colours": lambda x, _: x[[1, 2, 0]],
    "edges": lambda x, _: 1 - 6 * (_grey(x) - _blurred(_grey(x), _bell(2, 1.0))).abs(),
    "fog": lambda x, noise: 0.4 * x + 0.6 * (0.75 + 0.1 * _coarse(noise[:1], 8)),
}


def changed(work: Path, kind: str, images: ImageSet, side: str) -> ImageSet:
    """`images` at 64 pixels after a change, as PNG files below `work`, which are made once."""
    paths = []
    for index in range(len(images)):
        origin = images.paths[index]
        file = work / "images" / kind / side / f"{origin.parent.name} {origin.stem}.png"
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = decode(images.encoded(index), where=str(origin))
            small = F.interpolate(pixels[None], (SIDE, SIDE), mode="bicubic", antialias=True)[0].float() / 255
            noise = torch.randn(3, SIDE, SIDE, generator=generator_of(0, kind, origin.parent.name, origin.stem))
            after = (CHANGES[kind](small, noise).clamp(0, 1) * 255).round().to(torch.uint8)
            Image.fromarray(after.permute(1, 2, 0).numpy()).save(file)
        paths.append(file)
    return ImageSet(tuple(paths), images.labels, images.classes)
