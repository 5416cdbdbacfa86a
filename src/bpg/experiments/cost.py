"""What a grid would take, before anything runs: passes through the backbone, counted job by job.

Unit of work is one plain forward pass of an image. What a method needs of them is stated below; how long one takes is
measured on this machine, and follows for a GPU from its data sheet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bpg.backbones.backbone import Backbone
from bpg.backbones.vit import ViTConfig
from bpg.data.benchmark import Benchmark
from bpg.errors import BPGError
from bpg.experiments.manifest import find
from bpg.experiments.scale import Job
from bpg.experiments.spec import DataSpec, Spec
from bpg.registry import DATASETS, METHODS
from bpg.training import Optimisation


@dataclass(frozen=True)
class Passes:
    """Forward passes that a method needs for an image; a backward pass through a frozen backbone is one, one that
    trains it two.
    """

    train: float = 3.0  # of a training image, each epoch
    once: float = 0.0  # of a training image, besides
    test: float = 1.0  # of a test image


WHOLE = Passes()
COST = {
    "bpg": Passes(2.3, 1.0, 0.0),  # who speaks is counted by domains
    "finetune": WHOLE,
    "joint": WHOLE,  # on all images so far
    "linear_probe": Passes(0.0, 1.0, 1.0),
    "sequential_probe": Passes(0.0, 1.0, 1.0),
    "ncm": Passes(0.0, 1.0, 1.0),
    "ewc": Passes(3.0, 3.0, 1.0),
    "lwf": Passes(4.0, 0.0, 1.0),
    "er": Passes(6.0),
    "derpp": Passes(9.0),
    "icarl": Passes(4.0, 2.0),
    "lucir": Passes(4.0, 2.0),
    "bic": Passes(4.0, 2.0),
    "gdumb": Passes(3.0, 1.0),
    "s_iprompts": Passes(2.1, 1.0, 0.0),
    "s_liprompts": Passes(2.3, 1.0, 0.0),
    "pina": Passes(2.3, 1.0, 0.0),
    "soyo": Passes(2.3, 1.0, 0.0),
    "l2p": Passes(3.2, 0.0, 2.0),
    "dualprompt": Passes(3.2, 1.0, 0.0),
    "coda_prompt": Passes(3.2, 0.0, 2.0),
    "c_prompt": Passes(3.3, 1.0, 0.0),
    "ka_prompt": Passes(5.6, 2.0, 0.0),  # a second pass aligns the prompts
    "ranpac": Passes(1.0, 1.0, 1.0),  # trained on the first domain alone
}
SPEAKING = 0.6  # experts that run for a test image, of all domains learned, under the usual ways together


@dataclass(frozen=True)
class GPU:
    """A graphics card by its data sheet: float32 outside of tensor cores, as torch computes unless it is told."""

    name: str
    teraflops: float  # at the most, float32
    gigabytes: float  # of memory


UTILISATION = 0.35  # of a data sheet's operations, assumed
GPUS = (
    GPU("RTX 4090", 82.6, 24),
    GPU("RTX 3090", 35.6, 24),
    GPU("L40S", 91.6, 48),
    GPU("A100 80 GB", 19.5, 80),
    GPU("H100 SXM", 66.9, 80),
)


@dataclass(frozen=True)
class Sizes:
    """How many images a stream has."""

    train: tuple[int, ...]  # of each domain, in the order of learning
    test: tuple[int, ...]  # of each test set of a domain, in the same order; or of one that belongs to none


def passes_of(job: Job, sizes: Sizes) -> float:
    """Forward passes of a whole job."""
    _, cell = job.spec()
    if job.kind == "survey":
        return float(sum(sizes.train))
    cost = COST.get(cell.method, WHOLE)
    settings = METHODS[cell.method].Settings(**cell.values)
    o: Optimisation | None = getattr(settings, "optimisation", None)
    epochs = o.epochs if o is not None else 0
    total = 0.0
    for stage, images in enumerate(sizes.train, start=1):
        seen = sum(sizes.train[:stage]) if cell.method == "joint" else images
        if cell.method == "gdumb":
            seen = min(settings.memory.images, sum(sizes.train[:stage]))
        if cell.method == "ranpac" and (stage > 1 or not settings.rank):
            seen = 0
        total += seen * epochs * cost.train + images * cost.once
        tested = sum(sizes.test[:stage]) if len(sizes.test) == len(sizes.train) else sum(sizes.test)
        asked = cost.test or 1 + stage * (1.0 if cell.ways else SPEAKING)
        total += tested * asked
    return total


def sizes_of(spec: Spec) -> Sizes:
    """The images of a stream: of the data that is there, or as it is published."""
    return _sizes(repr(spec.data), spec.data)


_KNOWN: dict[str, Sizes] = {}


def _sizes(key: str, data: DataSpec) -> Sizes:
    if key not in _KNOWN:
        try:
            found = find(data)
            sides = found.domains
            order = order_of(data, list(sides))
            train = tuple(_cut(sides[name].train, data.per_class) for name in order)
            unseen = DATASETS[data.benchmark].unseen if data.benchmark is not None else ()
            tests = [_cut(sides[name].test, data.test_per_class) for name in unseen or order]
            _KNOWN[key] = Sizes(train, (sum(tests),) if unseen else tuple(tests))
        except BPGError:
            _KNOWN[key] = published_sizes(data)
    return _KNOWN[key]


def published_sizes(data: DataSpec) -> Sizes:
    """As the benchmark is published that the data names, or its folder is called after; none where it is unknown."""
    name = data.benchmark or Path(data.root or "").name
    if name not in DATASETS:
        return Sizes((), ())
    benchmark: Benchmark = DATASETS[name]
    order = order_of(replace(data, benchmark=name), [])
    train = tuple(_published(benchmark, domain, "train", data.per_class) for domain in order)
    tests = [_published(benchmark, domain, "test", data.test_per_class) for domain in benchmark.unseen or order]
    return Sizes(train, (sum(tests),) if benchmark.unseen else tuple(tests))


def _published(benchmark: Benchmark, domain: str, side: str, per_class: int | None) -> int:
    found = benchmark.expected.get(f"{domain}/{side}", {})
    images = int(found.get("images", 0))
    classes = found.get("classes") or benchmark.expected.get(domain, {}).get("classes") or {}
    return images if per_class is None or not classes else min(images, per_class * len(classes))


def order_of(data: DataSpec, names: Sequence[str]) -> Sequence[str]:
    """The order in which domains are learned; `names` are those of a folder, which has none of its own."""
    if isinstance(data.order, tuple):
        return data.order
    if data.benchmark is None:
        return sorted(names)
    benchmark: Benchmark = DATASETS[data.benchmark]
    return benchmark.orders.get(data.order or "", benchmark.order)


def _cut(images: Any, per_class: int | None) -> int:
    if images is None:
        return 0
    if per_class is None:
        return len(images)
    return sum(min(count, per_class) for count in images.counts().values())


@cache
def forward_operations(config: ViTConfig) -> float:
    """Floating-point operations of a plain forward of one image: a multiplication and an addition are two.

    >>> round(forward_operations(ViTConfig()) / 1e9, 1)  # ViT-B/16 at 224 pixels
    35.1
    """
    n = (config.image_size // config.patch_size) ** 2 + 1
    d = config.width
    block = 4 * n * d * d + 2 * n * d * config.hidden + 2 * n * n * d
    patches = (n - 1) * d * 3 * config.patch_size**2
    return 2.0 * (config.depth * block + patches)


def kept_bytes(module: Any, backbone: Backbone) -> int:
    """Bytes that autograd keeps of one image until the backward pass of an expert: measured, not guessed."""
    size = backbone.preprocessing.size
    own = {p.untyped_storage().data_ptr() for p in [*module.parameters(), *backbone.parameters()]}
    seen: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    images = torch.zeros(1, 3, size, size, device=backbone.device)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        held = module(images, backbone)  # until it is let go, no storage is used twice
    del held
    return sum(seen.values())
