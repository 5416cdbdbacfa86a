"""Prepared pixels are what torchvision's transforms on Pillow images give, within a level of 256.

Both round between the two passes of the filter, not always the same way: one pixel in ten thousand may differ by two.
"""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from bpg.data.decode import decode
from bpg.data.transforms import Preprocessing, evaluation
from tests.oracles import oracle


def picture(width: int, height: int) -> Image.Image:
    """A smooth picture with some noise."""
    generator = np.random.default_rng(width * height)
    y, x = np.mgrid[0:height, 0:width]
    smooth = np.stack([np.sin(x / 17) + np.cos(y / 11), np.sin((x + y) / 23), np.cos(x / 7) * np.sin(y / 29)], axis=-1)
    return Image.fromarray((127 + 50 * smooth + generator.normal(0, 8, smooth.shape)).clip(0, 255).astype(np.uint8))


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("size", [(227, 227), (640, 427), (300, 801), (64, 48), (224, 224), (250, 249)])
@pytest.mark.parametrize(
    "wanted",
    [
        Preprocessing(size=224, crop_fraction=0.9),
        Preprocessing(size=224, interpolation="bilinear", crop="squash"),
        Preprocessing(size=96, interpolation="bilinear"),
    ],
    ids=["center", "squash", "small"],
)
def test_evaluation_equals_torchvision(size: tuple[int, int], wanted: Preprocessing) -> None:
    oracle("torchvision")
    transforms = oracle("torchvision.transforms.v2")
    functional = oracle("torchvision.transforms.v2.functional")
    mode = getattr(transforms.InterpolationMode, wanted.interpolation.upper())
    image = picture(*size)
    side = int(wanted.size / wanted.crop_fraction)
    resized = functional.resize(image, [side, side] if wanted.crop == "squash" else [side], interpolation=mode)
    theirs = functional.pil_to_tensor(functional.center_crop(resized, [wanted.size, wanted.size]))
    theirs = functional.normalize(theirs.float() / 255, list(wanted.mean), list(wanted.std))
    ours = evaluation(decode(png(image), where="test"), wanted)
    assert ours.shape == (3, wanted.size, wanted.size)
    levels = (ours - theirs).abs() * 255 * torch.tensor(wanted.std)[:, None, None]
    assert levels.max() <= 2.001
    assert (levels > 1.001).float().mean() < 1e-4
    assert levels.mean() < 0.3
