"""Handwritten digits, rotated or with their pixels permuted: twenty domains each, made from MNIST.

LeCun et al., "Gradient-based learning applied to document recognition", 1998. The first domain is MNIST as it is; the
others' angles, from 0 to 180 degrees, and permutations follow from their numbers. Each domain is a zip of PNG files.
"""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from bpg.data.benchmark import Benchmark, Download
from bpg.data.files import read as read_file
from bpg.data.folder import read_split
from bpg.errors import WrongUse
from bpg.randomness import generator_of

DOMAINS = 20
FILES = {"train": "train", "test": "t10k"}
HOST = "https://ossci-datasets.s3.amazonaws.com/mnist"
Pixels = NDArray[np.uint8]


def rotated(pixels: Pixels, domain: int) -> Pixels:
    """A digit (28, 28) turned by the domain's angle."""
    angle = 180 * float(torch.rand((), generator=generator_of(0, "rotated digits", domain))) if domain else 0.0
    turned = Image.fromarray(pixels).rotate(angle, resample=Image.Resampling.BILINEAR) if domain else pixels
    return np.asarray(turned, dtype=np.uint8)


def permuted(pixels: Pixels, domain: int) -> Pixels:
    """A digit (28, 28) with its pixels in the domain's order."""
    if not domain:
        return pixels
    order = torch.randperm(pixels.size, generator=generator_of(0, "permuted digits", domain)).numpy()
    moved: Pixels = pixels.reshape(-1)[order].reshape(pixels.shape)
    return moved


def build(
    root: Path,
    images: Path | None,
    tell: Callable[[int, int], None],
    *,
    kind: str,
    change: Callable[[Pixels, int], Pixels],
) -> None:
    """KIND_00.zip to KIND_19.zip from MNIST's files in `root` or `images`; what is there already stays."""
    source = images or root
    digits = {side: _digits(source, stem) for side, stem in FILES.items()}
    for domain in range(DOMAINS):
        target = root / f"{kind}_{domain:02}.zip"
        if target.is_file():
            continue
        part = target.with_suffix(".tmp")
        with zipfile.ZipFile(part, "w") as archive:
            for side, (pictures, labels) in digits.items():
                for index, (pixels, label) in enumerate(zip(pictures, labels, strict=True)):
                    name = f"{target.stem}/{side}/{label}/{index:05}.png"
                    buffer = io.BytesIO()
                    Image.fromarray(change(pixels, domain)).save(buffer, "PNG")
                    archive.writestr(zipfile.ZipInfo(name), buffer.getvalue())
        part.replace(target)
        tell(domain + 1, DOMAINS)


def _digits(folder: Path, stem: str) -> tuple[Pixels, Pixels]:
    """Pictures (n, 28, 28) and labels (n,) from MNIST's own files."""
    pictures, labels = (_idx(folder, f"{stem}-{what}-ubyte") for what in ("images-idx3", "labels-idx1"))
    if pictures.shape[1:] != (28, 28) or labels.shape != pictures.shape[:1]:
        raise _no_mnist(folder, f"shapes {pictures.shape} and {labels.shape}")
    return pictures, labels


def _idx(folder: Path, name: str) -> Pixels:
    packed, plain = folder / f"{name}.gz", folder / name
    try:
        content = gzip.decompress(read_file(packed)) if packed.is_file() else read_file(plain)
        sides = np.frombuffer(content, dtype=">i4", count=content[3], offset=4).tolist()
        return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * len(sides)).reshape(sides)
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise _no_mnist(folder, f"{name}: {error}") from error


def _no_mnist(folder: Path, came: str) -> WrongUse:
    names = ", ".join(
        f"{stem}-{what}.gz" for stem in FILES.values() for what in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    return WrongUse(
        f"{folder} does not hold MNIST", wanted=names, came=came, remedy="Fetch them, or name their folder."
    )


def _benchmark(kind: str, title: str, change: Callable[[Pixels, int], Pixels]) -> Benchmark:
    order = tuple(f"{kind}_{domain:02}" for domain in range(DOMAINS))
    return Benchmark(
        name=f"{kind}-digits",
        title=title,
        licence="CC-BY-SA-3.0",
        source="made by bpg from MNIST",
        read=partial(read_split, names=order, others=False),
        order=order,
        template='a photo of the number: "{}".',
        downloads=tuple(
            Download(f"{HOST}/{stem}-{what}-ubyte.gz")
            for stem in FILES.values()
            for what in ("images-idx3", "labels-idx1")
        ),
        gigabytes=0.01,
        build=partial(build, kind=kind, change=change),
        published=partial(_published, kind),
    )


def _published(kind: str) -> dict[str, Any]:
    return {
        f"{kind}_{domain:02}/{side}": {"images": images}
        for domain in range(DOMAINS)
        for side, images in (("train", 60_000), ("test", 10_000))
    }


ROTATED = _benchmark("rotated", "handwritten digits, rotated", rotated)
PERMUTED = _benchmark("permuted", "handwritten digits, pixels permuted", permuted)
