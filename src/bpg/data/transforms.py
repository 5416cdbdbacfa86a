"""What happens to an image's pixels before a backbone sees them."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor

from bpg.config import settings

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Channels = tuple[float, float, float]


@settings
class Preprocessing:
    """The pixels that a backbone was trained on. It belongs to the backbone and travels with it."""

    size: PositiveInt = 224  # pixels, both sides
    mean: Channels = IMAGENET_MEAN
    std: Channels = IMAGENET_STD
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    crop: Literal["center", "squash"] = "center"  # cut the middle out, or squeeze the whole image into a square
    crop_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0  # the crop's side over the resized image's shorter side


def evaluation(image: Tensor, wanted: Preprocessing) -> Tensor:
    """What the backbone sees of `image` (3, H, W) uint8: resized, cropped, normalised, (3, size, size) float32."""
    side = int(wanted.size / wanted.crop_fraction)
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


def _channels(values: Channels) -> Tensor:
    return torch.tensor(values)[:, None, None]
