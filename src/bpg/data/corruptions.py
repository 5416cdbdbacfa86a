"""Domains made from one: the fifteen corruptions of ImageNet-C that C-Prompt and KA-Prompt take as domains.

Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", 2019, arXiv
1903.12261, has the idea and the names. The corruptions are made anew here, from noise alone and at any image size:
their numbers are not ImageNet-C's, and neither are results on them.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from bpg.errors import WrongUse
from bpg.randomness import generator_of

SEVERITIES = range(1, 6)
Change = Callable[[Tensor, float, torch.Generator], Tensor]  # of (3, H, W) from 0 to 1, by a strength from 0 to 1


def corrupted(pixels: Tensor, kind: str, *, severity: int, key: str) -> Tensor:
    """`pixels` (3, H, W) uint8 after a corruption; chance follows from `key` and `kind` alone."""
    if severity not in SEVERITIES:
        raise WrongUse("no such severity", wanted="1 to 5", came=str(severity), remedy="3 is in the middle.")
    changed = CORRUPTIONS[kind](pixels.float() / 255, severity / 5, generator_of(0, kind, severity, key))
    return (changed.clamp(0, 1) * 255).round().to(torch.uint8)


def _noise(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(x.shape, generator=generator)


def _clouds(x: Tensor, generator: torch.Generator, *, coarsest: int = 2, finest: int = 64) -> Tensor:
    """Smooth noise (1, H, W) from 0 to 1: octaves of random values, coarse ones strongest."""
    height, width = x.shape[-2:]
    total = torch.zeros(1, height, width)
    side, weight = coarsest, 1.0
    while side <= min(finest, height, width):
        grid = torch.rand(1, 1, side, side, generator=generator)
        total += weight * F.interpolate(grid, (height, width), mode="bilinear", align_corners=True)[0]
        side, weight = 2 * side, weight * 0.55
    low, high = total.min(), total.max()
    return (total - low) / (high - low).clamp(min=1e-6)


def _filtered(x: Tensor, kernel: Tensor) -> Tensor:
    """Each channel under a kernel of odd sides."""
    down, right = (side // 2 for side in kernel.shape)
    padded = F.pad(x[:, None], [right, right, down, down], mode="replicate")
    return F.conv2d(padded, (kernel / kernel.sum())[None, None])[:, 0]


def _disk(radius: float) -> Tensor:
    reach = math.ceil(radius)
    line = torch.arange(-reach, reach + 1)
    return (radius + 0.5 - (line[:, None].square() + line.square()).sqrt()).clamp(0, 1)


def _radius(x: Tensor, share: float) -> float:
    return max(1.0, share * min(x.shape[-2:]))


def _moved(x: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Each pixel (H, W) taken from elsewhere, by shares of the image's sides."""
    height, width = x.shape[-2:]
    rows, columns = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    grid = torch.stack([columns + 2 * right, rows + 2 * down], dim=-1)
    return F.grid_sample(x[None], grid[None], padding_mode="border", align_corners=True)[0]


def _glass(x: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    reach = 0.005 + 0.02 * strength
    down, right = (reach * torch.randn(x.shape[-2:], generator=generator) for _ in range(2))
    return _filtered(_moved(x, down, right), _disk(_radius(x, 0.004)))


def _motion(x: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    reach = math.ceil(_radius(x, 0.01 + 0.06 * strength))
    angle = math.pi * float(torch.rand((), generator=generator))
    kernel = torch.zeros(2 * reach + 1, 2 * reach + 1)
    for step in torch.linspace(-reach, reach, 4 * reach + 1).tolist():
        kernel[round(reach + step * math.sin(angle)), round(reach + step * math.cos(angle))] = 1
    return _filtered(x, kernel)


def _zoomed(x: Tensor, strength: float, _: torch.Generator) -> Tensor:
    height, width = x.shape[-2:]
    scales = torch.linspace(1, 1.05 + 0.25 * strength, 8).tolist()
    total = torch.zeros_like(x)
    for scale in scales:
        down, right = (torch.linspace(-1, 1, side) * (1 / scale - 1) / 2 for side in (height, width))
        total += _moved(x, down[:, None].expand(height, width), right.expand(height, width))
    return total / len(scales)


def _elastic(x: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    reach = 0.02 + 0.08 * strength
    down, right = (reach * (_clouds(x, generator, coarsest=4, finest=16)[0] - 0.5) for _ in range(2))
    return _moved(x, down, right)


def _jpeg(x: Tensor, strength: float, _: torch.Generator) -> Tensor:
    buffer = io.BytesIO()
    pixels = (x * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "JPEG", quality=round(28 - 22 * strength))
    return torch.from_numpy(np.asarray(Image.open(buffer).convert("RGB")).copy()).permute(2, 0, 1).float() / 255


def _pixelated(x: Tensor, strength: float, _: torch.Generator) -> Tensor:
    height, width = x.shape[-2:]
    sides = [max(2, round(side * (0.55 - 0.4 * strength))) for side in (height, width)]
    return F.interpolate(F.interpolate(x[None], sides, mode="area"), (height, width))[0]


def _spattered(x: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    drops = _clouds(x, generator, coarsest=8)
    mask = ((drops - (0.85 - 0.35 * strength)) * 12).clamp(0, 1)
    mud = torch.tensor([0.35, 0.25, 0.15])[:, None, None]
    return x * (1 - mask) + mud * mask


def _frosted(x: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    needles = (_clouds(x, generator, coarsest=4) - _clouds(x, generator, coarsest=4)).abs()
    ice = (1 - 6 * needles).clamp(0, 1) * _clouds(x, generator)
    pale = torch.tensor([0.85, 0.92, 1.0])[:, None, None]
    return x * (1 - 0.35 * strength) + pale * (0.25 + 0.75 * ice) * (0.25 + 0.6 * strength)


def _snowed(x: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    flakes = (torch.randn(1, *x.shape[-2:], generator=generator) > 2.4 - 0.8 * strength).float()
    falling = _motion(flakes, 0.15, generator) * 3
    grey = x.mean(dim=0, keepdim=True)
    return x * (1 - 0.4 * strength) + 0.4 * strength * (0.5 + 0.5 * grey) + falling


CORRUPTIONS: dict[str, Change] = {
    "defocus_blur": lambda x, strength, _: _filtered(x, _disk(_radius(x, 0.01 + 0.04 * strength))),
    "glass_blur": _glass,
    "motion_blur": _motion,
    "zoom_blur": _zoomed,
    "contrast": lambda x, strength, _: x.mean() + (x - x.mean()) * (0.45 - 0.4 * strength),
    "elastic_transform": _elastic,
    "jpeg_compression": _jpeg,
    "pixelate": _pixelated,
    "spatter": _spattered,
    "speckle_noise": lambda x, strength, g: x + x * _noise(x, g) * (0.1 + 0.5 * strength),
    "gaussian_noise": lambda x, strength, g: x + _noise(x, g) * (0.05 + 0.3 * strength),
    "shot_noise": lambda x, strength, g: x + x.sqrt() * _noise(x, g) * (0.08 + 0.45 * strength),
    "fog": lambda x, strength, g: (x + (0.8 + 1.6 * strength) * _clouds(x, g)) / (1.8 + 1.6 * strength),
    "frost": _frosted,
    "snow": _snowed,
}
