"""What reading images costs, as ratios to the plain alternative, interleaved in one run; medians with their spread.

Run it with `make bench`. Decoding is compared with Pillow's; a training step from the second epoch on with the same
step on tensors that are in memory; a survey with the bare forward over decoded images. It works in a folder of its own.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.backbone import compare
from bpg.backbones.backbone import FINISHED, Backbone, Probe
from bpg.backbones.catalogue import find
from bpg.backbones.survey import survey
from bpg.backbones.vit import ViT
from bpg.data.batches import Batches
from bpg.data.decode import decode
from bpg.data.domain import Domain
from bpg.data.images import ImageSet
from bpg.data.transforms import Augmentation, Preprocessing, _resized
from bpg.experts.expert import Expert, ExpertSettings
from bpg.randomness import generator_of
from bpg.training import cross_entropy

PACS, CAMERA, EMOJI = (227, 227), (640, 480), (72, 72)  # sizes of images, in pixels
BATCH, STEPS = 16, 4  # images a step, steps a measurement
CLASSES = ("a", "b", "c", "d")


def photographs(folder: Path, size: tuple[int, int], count: int, *, kind: str = "jpg") -> ImageSet:
    """Files of blurred noise, which take as many bytes as photographs do."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)
    paths = []
    for index in range(count):
        rough = generator.integers(0, 256, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
        paths.append(folder / f"{index}.{kind}")
        Image.fromarray(rough).resize(size).save(paths[-1], quality=90)
    return ImageSet(tuple(paths), tuple(index % len(CLASSES) for index in range(count)), CLASSES)


def random_backbone(name: str) -> Backbone:
    entry = find(name)
    torch.manual_seed(0)
    return Backbone(ViT(entry.vit), entry.preprocessing, name=entry.name)


def decoding(pictures: ImageSet) -> dict[str, dict[str, float]]:
    """Seconds of decoding and resizing to 224 pixels, over Pillow's."""
    wanted = Preprocessing(crop="squash")
    files = [path.read_bytes() for path in pictures.paths]
    width, height = Image.open(pictures.paths[0]).size

    def pillow() -> None:
        for file in files:
            np.asarray(Image.open(io.BytesIO(file)).convert("RGB").resize((224, 224), Image.Resampling.BICUBIC))

    def ours() -> None:
        for file in files:
            _resized(decode(file, where=""), wanted)

    return compare(pillow, {f"JPEG of {width} x {height} pixels": ours})


def steps(backbone: Backbone, pictures: ImageSet) -> dict[str, dict[str, float]]:
    """Seconds of training steps from the second epoch on, over the same steps on a batch in memory."""
    domain = Domain("photographs", pictures)
    expert = Expert(backbone, CLASSES, rank=64, settings=ExpertSettings(), generator=generator_of(0))
    optimizer = torch.optim.SGD(expert.parameters(), lr=0.01, momentum=0.9)
    batches = Batches(domain, backbone.preprocessing, Augmentation(), 0, BATCH, epochs=10_000)

    def step(images: Tensor, labels: Tensor) -> None:
        expert.zero_grad()
        cross_entropy(expert(images, backbone), labels).mean().backward()
        optimizer.step()

    def train(source: Iterator[tuple[Tensor, Tensor, int]]) -> None:
        for _ in range(STEPS):
            images, labels, _ = next(source)
            step(images, labels)

    with closing(batches.stream(0)) as stream:
        for _ in range(batches.steps_an_epoch):
            batch = next(stream)
        title = f"{backbone.name}, {pictures.paths[0].suffix[1:]} of {Image.open(pictures.paths[0]).width} pixels"
        return compare(lambda: train(iter([batch] * STEPS)), {title: lambda: train(stream)})


def surveys(backbone: Backbone, pictures: ImageSet) -> dict[str, dict[str, float]]:
    """Seconds of a survey without a cache, over a bare forward pass over the decoded images."""
    pixels = [backbone.prepare(decode(path.read_bytes(), where=str(path))) for path in pictures.paths]
    ready = torch.stack(pixels).split(BATCH)
    depths = (FINISHED, Probe(5, "moments"), Probe(8))
    return compare(
        lambda: [backbone.embed(batch) for batch in ready],
        {
            backbone.name: lambda: survey(backbone, pictures, batch_size=BATCH, cache=None),
            f"{backbone.name}, at three depths": lambda: survey(
                backbone, pictures, probes=depths, batch_size=BATCH, cache=None
            ),
        },
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["BPG_CACHE"] = str(folder / "cache")
        os.environ.pop("BPG_PIXEL_CACHE", None)
        pacs, camera = photographs(folder / "pacs", PACS, 64), photographs(folder / "camera", CAMERA, 32)
        emoji = photographs(folder / "emoji", EMOJI, 64, kind="png")
        tiny, nano = random_backbone("deit_tiny_patch16_224"), random_backbone("bpg-vit-nano")
        base = random_backbone("vit_base_patch16_224.augreg_in21k_ft_in1k")
        print("decoding and resizing, over Pillow's")
        show(decoding(pacs) | decoding(camera))
        print("training step with r = 64 from the second epoch on, over the same step on tensors in memory")
        show(steps(tiny, pacs) | steps(nano, pacs) | steps(nano, emoji))
        print("survey, over the bare forward")
        show(surveys(tiny, pacs) | surveys(base, pacs.subset(range(2 * BATCH))))


def show(found: dict[str, dict[str, float]]) -> None:
    for name, ratio in found.items():
        print(f"  {name:<60} {ratio['median']:.2f}  ({ratio['low']:.2f} to {ratio['high']:.2f})")


if __name__ == "__main__":
    main()
