"""What happens to an image's pixels before a backbone sees them."""

from __future__ import annotations

import math
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


@settings
class Augmentation:
    """What a training image goes through besides; by default as in S-Prompts, whose protocol the paper follows.

    A "resized" crop is of random area and shape (S-Prompts, SOYO, DUCT, RanPAC); a "shifted" one is the backbone's own
    size, cut out anywhere of the image as it is resized for evaluation (C-Prompt, KA-Prompt).
    """

    crop: Literal["resized", "shifted"] = "resized"
    area: tuple[float, float] = (0.08, 1.0)  # of a resized crop, as a share of the image's
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # of a resized crop's width to its height
    flip: bool = True
    brightness: Annotated[float, Field(ge=0, le=1)] = 0.0  # times 1 - b to 1 + b; 63 / 255 for CDDB

    def __post_init__(self) -> None:
        (least, most), (thin, wide) = self.area, self.ratio
        if not (0 < least <= most <= 1 and 0 < thin <= wide < math.inf):
            raise WrongUse(
                "no crop is of this kind",
                wanted="areas from above 0 to 1, ratios above 0, the smaller first",
                came=f"area {self.area}, ratio {self.ratio}",
                remedy="Leave them out for the usual crops.",
            )


def training(image: Tensor, wanted: Preprocessing, augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """What training sees of `image` (3, H, W) uint8: a random crop, perhaps mirrored and lit, (3, size, size)."""
    _check_pixels(image)
    if augmentation.crop == "shifted":
        image = _resized(image, wanted)
        down, right = torch.rand(2, generator=generator).tolist()
        top, left = (
            int(share * (side - wanted.size + 1)) for share, side in zip((down, right), image.shape[-2:], strict=True)
        )
        image = image[:, top : top + wanted.size, left : left + wanted.size]
    else:
        top, left, height, width = _random_crop(image.shape[-2], image.shape[-1], augmentation, generator)
        image = image[:, top : top + height, left : left + width]
        if (height, width) != (wanted.size, wanted.size):
            image = F.interpolate(image[None], (wanted.size, wanted.size), mode=wanted.interpolation, antialias=True)[0]
    if augmentation.flip and torch.rand((), generator=generator) < 0.5:
        image = image.flip(-1)
    if augmentation.brightness:
        light = 1 + augmentation.brightness * (2 * torch.rand((), generator=generator) - 1)
        image = (image.float() * light).clamp(0, 255)
    return _normalised(image, wanted)


def evaluation(image: Tensor, wanted: Preprocessing) -> Tensor:
    """What the backbone sees of `image` (3, H, W) uint8: resized, cropped, normalised, (3, size, size) float32."""
    _check_pixels(image)
    image = _resized(image, wanted)
    top, left = (round((side - wanted.size) / 2) for side in image.shape[-2:])
    image = image[:, top : top + wanted.size, left : left + wanted.size]
    return _normalised(image, wanted)


def _resized(image: Tensor, wanted: Preprocessing) -> Tensor:
    """`image` with its shorter side as long as the crop is cut from, or squashed to a square of that side."""
    side = int(wanted.size / wanted.crop_fraction + 1e-6)
    if wanted.crop == "center":
        image = _not_too_thin(image)
    height, width = image.shape[-2:]
    if wanted.crop == "squash":
        resized = (side, side)
    else:
        resized = (side, side * width // height) if height <= width else (side * height // width, side)
    if resized == (height, width):
        return image
    # uint8 in, uint8 out: the filter Pillow uses, at twice its speed
    return F.interpolate(image[None], resized, mode=wanted.interpolation, antialias=True)[0]


def _random_crop(
    height: int, width: int, augmentation: Augmentation, generator: torch.Generator
) -> tuple[int, int, int, int]:
    """Top, left, height and width of a crop of random area and shape; the middle if ten draws do not fit."""
    (least, most), (thin, wide) = augmentation.area, augmentation.ratio
    for _ in range(10):
        share, shape = torch.rand(2, generator=generator).tolist()
        area = height * width * (least + (most - least) * share)
        ratio = math.exp(math.log(thin) + (math.log(wide) - math.log(thin)) * shape)
        h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < h <= height and 0 < w <= width:
            down, right = torch.rand(2, generator=generator).tolist()
            return int(down * (height - h + 1)), int(right * (width - w + 1)), h, w
    w = min(width, round(height * wide))
    h = min(height, round(width / thin))
    return (height - h) // 2, (width - w) // 2, h, w


def _normalised(image: Tensor, wanted: Preprocessing) -> Tensor:
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
