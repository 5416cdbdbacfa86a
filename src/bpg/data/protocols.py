"""Pixels and augmentation as published code has them, by name.

A backbone has pixels of its own, those it was trained on, and they are what is used if nothing is said. The published
code bases feed others: to compare with their numbers, name theirs.

s-prompts       (also SOYO, DUCT, ESN) a random crop of 8 to 100 % of the area, mirrored or not; the middle 224 of a
                shorter side of 256; ImageNet's mean and deviation
s-prompts-cddb  besides, brightness times 0.75 to 1.25
ranpac          a random crop of 5 to 100 %; the middle as before, bicubic; values from 0 to 1, ImageNet's for CLIP
lae             a random crop of 8 to 100 %; the middle as before; values from 0 to 1
avalanche       (its CORe50) the whole image, mirrored or not; ImageNet's mean and deviation
ka-prompt       (also C-Prompt) any 224 of a shorter side of 256, mirrored or not; the middle; values from 0 to 1
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from bpg.data.transforms import IMAGENET_MEAN, IMAGENET_STD, Augmentation, Preprocessing

BRIGHTNESS = 63 / 255


@dataclass(frozen=True, slots=True)
class Protocol:
    """What one code base does to images."""

    augmentation: Augmentation
    values: Literal["imagenet", "none"]
    clip_values: Literal["imagenet", "none"] | None = None  # of a CLIP backbone, where they differ
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    crop_fraction: float = 224 / 256  # of the shorter side

    def pixels(self, own: Preprocessing, *, clip: bool) -> Preprocessing:
        """The pixels of a backbone under this protocol; their number stays the backbone's."""
        values = self.clip_values or self.values if clip else self.values
        mean, std = (IMAGENET_MEAN, IMAGENET_STD) if values == "imagenet" else ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
        return replace(
            own, mean=mean, std=std, interpolation=self.interpolation, crop="center", crop_fraction=self.crop_fraction
        )


PROTOCOLS = {
    "s-prompts": Protocol(Augmentation(), "imagenet"),
    "s-prompts-cddb": Protocol(Augmentation(brightness=BRIGHTNESS), "imagenet"),
    "ranpac": Protocol(Augmentation(area=(0.05, 1.0)), "none", "imagenet", "bicubic"),
    "lae": Protocol(Augmentation(), "none"),
    "ka-prompt": Protocol(Augmentation(crop="shifted"), "none"),
    "avalanche": Protocol(Augmentation(crop="shifted"), "imagenet", crop_fraction=1.0),
}
