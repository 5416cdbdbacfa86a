"""Encoded images to pixels: RGB, 8 bits a channel, the right way up."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from bpg.errors import ImageError

FORMATS = (
    "JPEG",
    "MPO",
    "PNG",
    "WEBP",
    "BMP",
    "TIFF",
)  # MPO: the JPEG of many cameras, with a second picture behind it
Pixels = NDArray[np.uint8]  # (H, W, 3)
# What has to be done to pixels by the number of their EXIF entry to see them upright.
TURNS: dict[int, Callable[[Pixels], Pixels]] = {
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: pixels[::-1, ::-1].swapaxes(0, 1),
    8: lambda pixels: np.rot90(pixels),
}


def decode(encoded: bytes, *, where: str) -> Tensor:
    """The pixels (3, H, W), uint8, of an encoded image. `where` names it in an error.

    Images are turned as their EXIF entry says; transparent ones are laid on white; 16-bit ones keep their upper byte.
    """
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            if image.format not in FORMATS:  # some others run foreign programs when they are loaded
                raise ValueError(f"a {image.format} file")
            if Image.MAX_IMAGE_PIXELS is not None and image.width * image.height > Image.MAX_IMAGE_PIXELS:
                raise ValueError(f"{image.width} x {image.height} pixels: a decompression bomb")
            pixels = _jpeg(encoded, image)
            if pixels is None:
                pixels = np.asarray(_to_rgb(ImageOps.exif_transpose(image))).copy()
    # Pillow's decoders raise nearly anything on broken input (SyntaxError and struct.error among them)
    except Exception as error:
        raise ImageError(
            f"cannot read the image {where}",
            wanted="a whole JPEG, PNG, WebP, BMP or TIFF file",
            came=f"{len(encoded)} bytes that fail to decode ({_reason(error)})",
            remedy="Replace the file or take it out of the set.",
        ) from error
    return torch.from_numpy(pixels).permute(2, 0, 1)


def _jpeg(encoded: bytes, image: Image.Image) -> Pixels | None:
    """The pixels of a JPEG file that Pillow opened as `image`, at a third of its time; None for what it must do itself.

    Whatever is odd about a file is an error to simplejpeg, so that Pillow has the last word on it.
    """
    if image.format != "JPEG" or image.mode not in ("L", "RGB"):
        return None
    library = _simplejpeg()
    if library is None:
        return None
    try:
        pixels: Pixels = library.decode_jpeg(encoded, "RGB")
    except ValueError:
        return None
    if pixels.shape != (image.height, image.width, 3):
        return None
    turn = TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return pixels if turn is None else np.ascontiguousarray(turn(pixels))


@cache
def _simplejpeg() -> Any | None:
    """The library, if it is here and computes what this Pillow does: builds on other JPEG libraries round otherwise."""
    try:
        import simplejpeg  # type: ignore[import-untyped]
    except ImportError:
        return None
    waves = np.sin(np.arange(3 * 37 * 51).reshape(37, 51, 3) ** 1.5) * 127 + 128
    for progressive in (False, True):
        buffer = io.BytesIO()
        Image.fromarray(waves.astype(np.uint8)).save(buffer, "JPEG", subsampling="4:2:0", progressive=progressive)
        if not np.array_equal(simplejpeg.decode_jpeg(buffer.getvalue(), "RGB"), np.asarray(Image.open(buffer))):
            return None
    return simplejpeg


def _reason(error: Exception) -> str:
    return "unknown format" if isinstance(error, UnidentifiedImageError) else str(error)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ValueError("floating-point pixels, whose white is anybody's guess")
    if image.mode.startswith("I"):  # 16-bit grey: Pillow's own conversion clips at 255 instead of scaling
        grey = np.asarray(image).astype(np.int64)
        deep = image.mode != "I" or int(grey.max()) > 255  # 32-bit files often hold 8-bit values
        return Image.fromarray((grey >> 8 if deep else grey).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")
