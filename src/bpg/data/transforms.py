"""What happens to an image's pixels before a backbone sees them."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor

from bpg.config import settings
from bpg.errors import WrongUse

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Channels = tuple[Finite, Finite, Finite]
THINNEST = 16  # times as long as wide; what lies further out is far outside any crop


@settings
class Preprocessing:
    """The pixels that a backbone was trained on. It belongs to the backbone and travels with it."""

    size: PositiveInt = 224  # pixels, both sides
    mean: Channels = IMAGENET_MEAN
    std: tuple[Positive, Positive, Positive] = IMAGENET_STD
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    crop: Literal["center", "squash"] = "center"  # cut the middle out, or squeeze the whole image into a square
    crop_fraction: Annotated[float, Field(ge=0.05, le=1)] = 1.0  # the crop's side over the resized image's shorter side


def evaluation(image: Tensor, wanted: Preprocessing) -> Tensor:
    """What the backbone sees of `image` (3, H, W) uint8: resized, cropped, normalised, (3, size, size) float32."""
    _check_pixels(image)
    side = int(wanted.size / wanted.crop_fraction + 1e-6)
    if wanted.crop == "center":
        image = _not_too_thin(image)
    height, width = image.shape[-2:]
    if wanted.crop == "squash":
        resized = (side, side)
    else:
        resized = (side, side * width // height) if height <= width else (side * height // width, side)
    if resized != (height, width):
        # uint8 in, uint8 out: the filter Pillow uses, at twice its speed
        image = F.interpolate(image[None], resized, mode=wanted.interpolation, antialias=True)[0]
    top, left = round((resized[0] - wanted.size) / 2), round((resized[1] - wanted.size) / 2)
    image = image[:, top : top + wanted.size, left : left + wanted.size]
    return (image.float() / 255 - _channels(wanted.mean)) / _channels(wanted.std)


def _check_pixels(image: Tensor) -> None:
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3 or 0 in image.shape:
        raise WrongUse(
            "no pixels of an image",
            wanted="a uint8 tensor (3, H, W), as `decode` gives it",
            came=f"{image.dtype} {tuple(image.shape)}",
            remedy="Give RGB pixels from 0 to 255.",
        )


def _not_too_thin(image: Tensor) -> Tensor:
    """The middle of a very long image: resized whole, a line of pixels would fill the memory."""
    height, width = image.shape[-2:]
    longest = THINNEST * min(height, width)
    top, left = max(0, height - longest) // 2, max(0, width - longest) // 2
    return image[:, top : top + longest, left : left + longest]


def _channels(values: Channels) -> Tensor:
    return torch.tensor(values)[:, None, None]
