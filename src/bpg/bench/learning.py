"""What a training step, its memory, its images and the pass over a new domain cost."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from bpg.backbones.backbone import FINISHED, Backbone, Probe
from bpg.backbones.survey import survey
from bpg.bench.findings import Found, Ratios, Row, Setting, ratios
from bpg.bench.mixtures import CLASSES, OVER, PLAIN, random_backbone
from bpg.bench.timing import Ratio, Work, take_turns
from bpg.data.batches import Batches
from bpg.data.decode import decode
from bpg.data.domain import Domain
from bpg.data.images import ImageSet
from bpg.data.transforms import Augmentation, Preprocessing, resized
from bpg.experts.expert import Expert, ExpertSettings
from bpg.randomness import generator_of
from bpg.routing import stops
from bpg.training import cross_entropy

STEP_LIMITS = {64: 2.2, 256: 2.4}  # r -> at most, over a plain forward; the ideal is 2
KEPT_AT_MOST, DATA_AT_MOST, PILLOW_AT_MOST, SURVEY_AT_MOST = 0.15, 1.10, 0.6, 1 / 0.95
PACS, CAMERA, EMOJI = (227, 227), (640, 480), (72, 72)  # sizes of images, in pixels
BATCH, STEPS = 16, 12  # images a step, steps a measurement
LABELS = ("a", "b", "c", "d")
OVER_PLAIN, OVER_KEPT = OVER[PLAIN], "over all kept"


def training(setting: Setting) -> Found:
    """A step with a frozen backbone over a forward pass of the same images, and what it keeps for the backward pass."""
    backbone = random_backbone(setting.large, setting.device)
    size = backbone.preprocessing.size
    images = torch.randn(8, 3, size, size, generator=generator_of(0)).to(setting.device)
    learners = {rank: _Learner(backbone, rank) for rank in STEP_LIMITS}

    @torch.no_grad()
    def forward() -> None:
        backbone(images)

    works: dict[str, Work] = {PLAIN: forward}
    for rank, learner in learners.items():
        works[f"step, r = {rank}"] = partial(learner.step, images)
    works["step, r = 64, activations recomputed"] = partial(learners[64].step, images, recompute=True)
    wanted = {f"step, r = {rank}": {OVER_PLAIN: most} for rank, most in STEP_LIMITS.items()}
    taken = take_turns(works, setting.times())
    table = ratios(f"{setting.large}, batches of 8", taken, over={PLAIN: OVER_PLAIN}, wanted=wanted)
    kept = learners[64].kept(images, recompute=True) / learners[64].kept(images, recompute=False)
    row = Row("activations, recomputed", {OVER_KEPT: Ratio(kept, kept, kept)}, {OVER_KEPT: KEPT_AT_MOST})
    return Found([table, Ratios("Bytes kept for the backward pass, r = 64", [row])])


class _Learner:
    """An expert in training."""

    def __init__(self, backbone: Backbone, rank: int) -> None:
        classes = [f"class {index:03}" for index in range(CLASSES)]
        self.backbone = backbone
        self.expert = Expert(backbone, classes, rank=rank, settings=ExpertSettings(), generator=generator_of(rank))
        self.optimizer = torch.optim.SGD(self.expert.parameters(), lr=0.01, momentum=0.9)

    def step(self, images: Tensor, labels: Tensor | None = None, *, recompute: bool = False) -> None:
        self.expert.zero_grad()
        self._loss(images, labels, recompute).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def kept(self, images: Tensor, *, recompute: bool) -> int:
        """Bytes that the forward pass leaves behind for the backward pass."""
        with _Alive([images, *self.backbone.state_dict().values(), *self.expert.state_dict().values()]) as alive:
            loss = self._loss(images, None, recompute)
        found: int = alive.bytes
        del loss  # until here everything was held
        return found

    def _loss(self, images: Tensor, labels: Tensor | None, recompute: bool) -> Tensor:
        if labels is None:
            labels = torch.arange(len(images), device=images.device)
        self.backbone.vit.recompute = recompute
        try:
            return cross_entropy(self.expert(images, self.backbone), labels).mean()
        finally:
            self.backbone.vit.recompute = False


class _Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the memory of tensors that were made inside and are still in use, by anybody."""

    def __init__(self, others: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._others = {tensor.untyped_storage().data_ptr() for tensor in others}
        self._seen = WeakIdKeyDictionary()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in self._others:
                self._seen[tensor.untyped_storage()] = None
        return made

    @property
    def bytes(self) -> int:
        return sum(storage.nbytes() for storage in self._seen)


def data(setting: Setting) -> Found:
    """Decoding, a training step fed from files, and the survey of a new domain."""
    small = random_backbone(setting.small, setting.device)
    large, nano = random_backbone(setting.large, setting.device), random_backbone("bpg-vit-nano", setting.device)
    with own_folder() as folder:
        pacs, camera = photographs(folder / "pacs", PACS, 64), photographs(folder / "camera", CAMERA, 32)
        emoji = photographs(folder / "emoji", EMOJI, 64, kind="png")
        tables = [
            Ratios(
                "Decoding and resizing a JPEG to 224 pixels",
                [decoding(images, setting.times()) for images in (pacs, camera)],
            ),
            Ratios(
                "Training steps from the second epoch on, over the same steps on tensors in memory; r = 64",
                [fed(*of, setting.times()) for of in ((small, pacs), (nano, pacs), (nano, emoji))],
            ),
            Ratios(
                "The pass over a new domain, over a bare forward pass over its decoded images",
                [
                    row
                    for backbone, few in ((small, pacs), (large, pacs.subset(range(2 * BATCH))))
                    for row in surveys(backbone, few, setting.times())
                ],
            ),
        ]
    return Found(tables)


def photographs(folder: Path, size: tuple[int, int], count: int, *, kind: str = "jpg") -> ImageSet:
    """Files of blurred noise, which take as many bytes as photographs do."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)
    paths = []
    for index in range(count):
        rough = generator.integers(0, 256, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
        paths.append(folder / f"{index}.{kind}")
        Image.fromarray(rough).resize(size).save(paths[-1], quality=90)
    return ImageSet(tuple(paths), tuple(index % len(LABELS) for index in range(count)), LABELS)


def decoding(pictures: ImageSet, rounds: int) -> Row:
    """Decoding and resizing, over Pillow's."""
    wanted = Preprocessing(crop="squash")
    files = [path.read_bytes() for path in pictures.paths]
    width, height = Image.open(pictures.paths[0]).size

    def pillow() -> None:
        for file in files:
            np.asarray(Image.open(io.BytesIO(file)).convert("RGB").resize((224, 224), Image.Resampling.BICUBIC))

    def ours() -> None:
        for file in files:
            resized(decode(file, where=""), wanted)

    return _row(f"{width} x {height} pixels", ours, pillow, "over Pillow", PILLOW_AT_MOST, rounds)


def fed(backbone: Backbone, pictures: ImageSet, rounds: int) -> Row:
    """Training steps on batches read from files, over the same steps on one in memory."""
    learner = _Learner(backbone, 64)
    batches = Batches(Domain("photographs", pictures), backbone.preprocessing, Augmentation(), 0, BATCH, epochs=10_000)

    def train(source: Iterable[tuple[Tensor, Tensor, int]]) -> None:
        for images, labels, _ in islice(source, STEPS):
            learner.step(images.to(backbone.device), labels.to(backbone.device))

    def from_files() -> None:
        # Opened and closed within the time: a stream left open would read ahead while the other work is timed.
        with closing(batches.stream(batches.steps_an_epoch)) as stream:
            train(stream)

    with closing(batches.stream(0)) as first_epoch:
        *_, batch = islice(first_epoch, batches.steps_an_epoch)
    kind = f"{backbone.name}, {pictures.paths[0].suffix[1:]} of {Image.open(pictures.paths[0]).width} pixels"
    return _row(kind, from_files, lambda: train(repeat(batch)), "over in memory", DATA_AT_MOST, rounds)


def surveys(backbone: Backbone, pictures: ImageSet, rounds: int) -> list[Row]:
    """A survey without a cache, for the finished feature alone and for all that `learn` keeps."""
    pixels = [backbone.prepare(decode(path.read_bytes(), where=str(path))) for path in pictures.paths]
    ready = torch.split(torch.stack(pixels).to(backbone.device), BATCH)
    depths = stops(backbone.depth)

    def bare() -> None:
        for batch in ready:
            backbone.embed(batch)

    def ours(probes: tuple[Probe, ...]) -> Work:
        return partial(survey, backbone, pictures, probes=probes, batch_size=BATCH, cache=None)

    heading = "over bare"
    return [
        _row(backbone.name, ours((FINISHED,)), bare, heading, SURVEY_AT_MOST, rounds),
        _row(f"{backbone.name}, at {len(depths)} depths", ours(depths), bare, heading, SURVEY_AT_MOST, rounds),
    ]


def _row(name: str, work: Work, base: Work, heading: str, most: float, rounds: int) -> Row:
    taken = take_turns({"base": base, "ours": work}, rounds)
    ours = taken["ours"]
    return Row(name, {heading: ours.over(taken["base"])}, {heading: most}, ours.seconds, ours.gigaflops or None, rounds)


@contextmanager
def own_folder() -> Iterator[Path]:
    """A folder of its own, caches included: nothing that is cached already helps."""
    kept = {name: os.environ.get(name) for name in ("BPG_CACHE", "BPG_PIXEL_CACHE")}
    with tempfile.TemporaryDirectory() as name:
        os.environ["BPG_CACHE"] = str(Path(name) / "cache")
        os.environ.pop("BPG_PIXEL_CACHE", None)
        try:
            yield Path(name)
        finally:
            for variable, value in kept.items():
                os.environ.pop(variable, None)
                if value is not None:
                    os.environ[variable] = value
