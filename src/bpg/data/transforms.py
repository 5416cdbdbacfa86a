"""What happens to an image's pixels before a backbone sees them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
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


@dataclass(frozen=True, slots=True)
class View:
    """What chance shows of one image."""

    box: tuple[int, int, int, int]  # top, left, height and width of the crop
    mirrored: bool
    light: float  # times the pixels


def training(image: Tensor, wanted: Preprocessing, augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """What training sees of `image` (3, H, W) uint8: a random crop, perhaps mirrored and lit, (3, size, size)."""
    out = torch.empty(1, 3, wanted.size, wanted.size)
    training_batch([image], wanted, augmentation, [generator], out=out)
    return out[0]


def training_batch(
    images: Sequence[Tensor],
    wanted: Preprocessing,
    augmentation: Augmentation,
    generators: Sequence[torch.Generator],
    *,
    out: Tensor,
) -> None:
    """`training` of each of `images` with its generator, into `out` (B, 3, size, size) float32.

    An image's crop has a shape of its own and is resized by itself; all that follows is done for the batch. It is done
    by numpy, on the thread it is called from: many threads prepare images, and torch would start a team in each.
    """
    crops = np.empty(out.shape, dtype=np.uint8)
    light = np.ones((len(images), 1, 1, 1), dtype=np.float32)
    for place, (image, generator) in enumerate(zip(images, generators, strict=True)):
        _check_pixels(image)
        view = _draw(image, wanted, augmentation, generator)
        crop = _crop(image, view.box, wanted, augmentation).numpy()
        crops[place] = crop[..., ::-1] if view.mirrored else crop
        light[place] = view.light
    if augmentation.brightness:
        lit = np.multiply(crops, light, dtype=np.float32).clip(0, 255)
        _normalise(lit, wanted, out=out)
    else:
        _normalise(crops, wanted, out=out)


def evaluation(image: Tensor, wanted: Preprocessing) -> Tensor:
    """What the backbone sees of `image` (3, H, W) uint8: resized, cropped, normalised, (3, size, size) float32."""
    _check_pixels(image)
    image = resized(image, wanted)
    top, left = (round((side - wanted.size) / 2) for side in image.shape[-2:])
    image = image[:, top : top + wanted.size, left : left + wanted.size]
    out = torch.empty(image.shape)
    _normalise(image.numpy(), wanted, out=out)
    return out


def _draw(image: Tensor, wanted: Preprocessing, augmentation: Augmentation, generator: torch.Generator) -> View:
    height, width = image.shape[-2:]
    if augmentation.crop == "shifted":
        sides = _resized_sides(height, width, wanted)
        down, right = torch.rand(2, generator=generator).tolist()
        top, left = (int(share * (side - wanted.size + 1)) for share, side in zip((down, right), sides, strict=True))
        box = (top, left, wanted.size, wanted.size)
    else:
        box = _random_crop(height, width, augmentation, generator)
    mirrored = augmentation.flip and float(torch.rand((), generator=generator)) < 0.5
    light = 1.0
    if augmentation.brightness:
        light = float(1 + augmentation.brightness * (2 * torch.rand((), generator=generator) - 1))
    return View(box, mirrored, light)


def _crop(image: Tensor, box: tuple[int, int, int, int], wanted: Preprocessing, augmentation: Augmentation) -> Tensor:
    """The part of `image` in `box`, (3, size, size) uint8."""
    if augmentation.crop == "shifted":
        image = resized(image, wanted)
    top, left, height, width = box
    image = image[:, top : top + height, left : left + width]
    if (height, width) == (wanted.size, wanted.size):
        return image
    # laid out as `decode` lays pixels out, and without gaps, a crop is resized in half the time
    image = torch.from_numpy(np.ascontiguousarray(image.permute(1, 2, 0).numpy())).permute(2, 0, 1)
    return F.interpolate(image[None], (wanted.size, wanted.size), mode=wanted.interpolation, antialias=True)[0]


def resized(image: Tensor, wanted: Preprocessing) -> Tensor:
    """`image` with its shorter side as long as the crop is cut from, or squashed to a square of that side."""
    if wanted.crop == "center":
        image = _not_too_thin(image)
    sides = _resized_sides(image.shape[-2], image.shape[-1], wanted)
    if sides == image.shape[-2:]:
        return image
    # uint8 in, uint8 out: the filter Pillow uses, at twice its speed
    return F.interpolate(image[None], sides, mode=wanted.interpolation, antialias=True)[0]


def _resized_sides(height: int, width: int, wanted: Preprocessing) -> tuple[int, int]:
    """Height and width of an image of `height` and `width` when it is resized."""
    side = int(wanted.size / wanted.crop_fraction + 1e-6)
    if wanted.crop == "squash":
        return side, side
    longest = THINNEST * min(height, width)
    height, width = min(height, longest), min(width, longest)
    return (side, side * width // height) if height <= width else (side * height // width, side)


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
    w = min(width, max(1, round(height * wide)))
    h = min(height, max(1, round(width / thin)))
    return (height - h) // 2, (width - w) // 2, h, w


def _normalise(pixels: NDArray[Any], wanted: Preprocessing, *, out: Tensor) -> None:
    """Pixels (..., 3, H, W) from 0 to 255 as the backbone takes them."""
    values: NDArray[np.float32] = out.numpy()
    np.divide(pixels, 255, out=values, dtype=np.float32)
    values -= _channels(wanted.mean)
    values /= _channels(wanted.std)


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


def _channels(values: Channels) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)[:, None, None]
