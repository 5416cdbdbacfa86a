"""Batches are the same bytes whatever the cache holds, on any rank and from any step on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bpg.data.batches import Batches
from bpg.data.domain import Domain
from bpg.data.images import ImageSet
from bpg.data.transforms import Augmentation, Preprocessing

SHAPES = ((32, 32), (40, 61), (3, 90), (90, 3), (1, 1), (57, 33), (64, 64), (32, 50))
KINDS: dict[str, tuple[Preprocessing, Augmentation]] = {
    "resized": (Preprocessing(size=32), Augmentation()),
    "lit": (Preprocessing(size=32, interpolation="bilinear"), Augmentation(brightness=63 / 255, flip=False)),
    "shifted": (Preprocessing(size=32, crop_fraction=0.875), Augmentation(crop="shifted", brightness=0.5)),
    "squashed": (Preprocessing(size=24, crop="squash", crop_fraction=0.5), Augmentation(crop="shifted")),
}
# Of all steps, on one rank and on three, and from the fifth step on: what the first release gave, image by image.
DIGESTS = {
    "resized": "7f071303e60633cf0b29110449c7d67321bea349c0468aeb1a1f29a4bff12f74",
    "lit": "a55224918554c8728b602ff0175b1f5e1ad2da884ce9a444613464f86fb72553",
    "shifted": "272a00b3d41c1aa50e7fcdea12865899d67ee97a1db13f279e61df82d2a562b3",
    "squashed": "c63f50284c6f73b7358e720dd5992d4452aac6fc0b7d3a06be6afdaa2ea26ae4",
}


def photos(folder: Path, count: int = 23) -> Domain:
    """Noise of many shapes, in files whose bytes no library's version decides."""
    generator = np.random.default_rng(7)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for index in range(count):
        pixels = generator.integers(0, 256, (*SHAPES[index % len(SHAPES)], 3), dtype=np.uint8)
        paths.append(folder / f"{index:02}.bmp")
        Image.fromarray(pixels).save(paths[-1])
    return Domain("noise", ImageSet(tuple(paths), tuple(index % 3 for index in range(count)), ("a", "b", "c")))


def batches_of(domain: Domain, kind: str = "resized", *, epochs: int = 3) -> Batches:
    return Batches(domain, *KINDS[kind], seed=5, batch_size=6, epochs=epochs)


def digest_of(batches: Batches) -> str:
    found = hashlib.sha256()
    for first, rank, ranks in ((0, 0, 1), (0, 0, 3), (0, 1, 3), (0, 2, 3), (5, 0, 1), (5, 1, 3)):
        for images, labels, size in batches.stream(first, rank=rank, ranks=ranks):
            assert images.is_contiguous()
            assert images.dtype == torch.float32
            for part in (images.numpy(), labels.numpy(), np.array([size, *images.shape])):
                found.update(part.tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_the_bytes_they_always_were(kind: str, tmp_path: Path) -> None:
    assert digest_of(batches_of(photos(tmp_path), kind)) == DIGESTS[kind]
