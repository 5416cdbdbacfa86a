"""Encoded images to pixels: RGB, 8 bits a channel, the right way up."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
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
            rgb = _to_rgb(ImageOps.exif_transpose(image))
    # Pillow's decoders raise nearly anything on broken input (SyntaxError and struct.error among them)
    except Exception as error:
        raise ImageError(
            f"cannot read the image {where}",
            wanted="a whole JPEG, PNG, WebP, BMP or TIFF file",
            came=f"{len(encoded)} bytes that fail to decode ({_reason(error)})",
            remedy="Replace the file or take it out of the set.",
        ) from error
    pixels = torch.from_numpy(np.asarray(rgb).copy())  # (H, W, 3)
    return pixels.permute(2, 0, 1)


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
