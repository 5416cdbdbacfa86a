"""Batches are the same bytes whatever the cache holds, on any rank and from any step on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from bpg.data.batches import Batches
from bpg.data.domain import Domain
from bpg.data.images import ImageSet
from bpg.data.transforms import Augmentation, Preprocessing, _random_crop, training_batch

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


def plainly(image: torch.Tensor, wanted: Preprocessing, augmentation: Augmentation, seed: int) -> torch.Tensor:
    """A resized crop, one image and one step at a time, in torch."""
    generator = torch.Generator().manual_seed(seed)
    top, left, height, width = _random_crop(image.shape[1], image.shape[2], augmentation, generator)
    image = image[:, top : top + height, left : left + width]
    image = F.interpolate(image[None], (wanted.size, wanted.size), mode=wanted.interpolation, antialias=True)[0]
    if augmentation.flip and torch.rand((), generator=generator) < 0.5:
        image = image.flip(-1)
    if augmentation.brightness:
        light = 1 + augmentation.brightness * (2 * torch.rand((), generator=generator) - 1)
        image = (image.float() * light).clamp(0, 255)
    return (image.float() / 255 - torch.tensor(wanted.mean)[:, None, None]) / torch.tensor(wanted.std)[:, None, None]


@pytest.mark.parametrize("augmentation", [Augmentation(), Augmentation(brightness=0.4), Augmentation(flip=False)])
@pytest.mark.parametrize("size", [32, 224])
def test_a_batch_is_its_images_bit_for_bit(size: int, augmentation: Augmentation) -> None:
    generator = torch.Generator().manual_seed(size)
    shapes = [(227, 227), (40, 300), (300, 40), (224, 224), (1, 1), (97, 255)]
    images = [torch.randint(0, 256, (*shape, 3), generator=generator, dtype=torch.uint8) for shape in shapes]
    images = [image.permute(2, 0, 1) for image in images]
    images[2] = images[2].contiguous()  # laid out otherwise
    wanted = Preprocessing(size=size)
    found = torch.empty(len(images), 3, size, size)
    generators = [torch.Generator().manual_seed(seed) for seed in range(len(images))]
    training_batch(images, wanted, augmentation, generators, out=found)
    assert torch.equal(
        found, torch.stack([plainly(image, wanted, augmentation, seed) for seed, image in enumerate(images)])
    )
