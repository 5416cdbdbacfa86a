"""What the backbone is worth: frozen linear probes on CIFAR-10 and emoji, and how separable their classes are.

    python -m pretrain.figures WORK

Writes WORK/figures.json. CIFAR-10's test images are looked at here and nowhere else.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bpg.backbones.backbone import Backbone
from bpg.backbones.survey import ScatterSum
from bpg.backbones.weights import load_backbone
from bpg.data.benchmarks.emoji import EMOJI
from bpg.data.decode import decode
from bpg.data.images import ImageSet
from bpg.separability import separability
from pretrain.images import PIXELS, cifar
from pretrain.train import FILE, Student

DECAYS = (1e-4, 1e-3, 1e-2)  # of the probe; the best on a fifth of the training images is taken


def embedded(backbone: Backbone, images: Iterable[Tensor]) -> Tensor:
    """Unit-length features (n, d) of pixels (3, H, W)."""
    parts = [backbone.embed(torch.stack([backbone.prepare(image) for image in some])) for some in _some(images, 100)]
    return torch.cat(parts)


def probe(train: Tensor, labels: Tensor, test: Tensor, truth: Tensor) -> float:
    """Percent of `test` that a linear classifier on frozen features gets right."""
    mean, std = train.mean(dim=0), train.std(dim=0) + 1e-6
    train, test = (train - mean) / std, (test - mean) / std
    held = torch.arange(len(train)) % 5 == 0
    scores = [_right(_fitted(train[~held], labels[~held], decay), train[held], labels[held]) for decay in DECAYS]
    best = DECAYS[scores.index(max(scores))]
    return _right(_fitted(train, labels, best), test, truth)


def s_of(features: Tensor, labels: Tensor) -> dict[str, float]:
    """Separability by both estimators."""
    sums = ScatterSum(int(labels.max()) + 1)
    sums.add(features.double(), labels)
    return {
        "plain": separability(sums.scatter(), estimator="plain"),
        "corrected": separability(sums.scatter(), estimator="corrected"),
    }


def measure(backbone: Backbone, work: Path) -> dict[str, Any]:
    """All figures of one backbone."""
    raw, known = cifar(work, "train")
    train, labels = embedded(backbone, torch.from_numpy(raw)), torch.from_numpy(known)
    raw, known = cifar(work, "test")
    test = embedded(backbone, torch.from_numpy(raw))
    found: dict[str, Any] = {"cifar10": probe(train, labels, test, torch.from_numpy(known)), "emoji": {}, "s_t": {}}
    found["s_0"] = s_of(train, labels)
    for name, sides in EMOJI.find(None).domains.items():
        assert sides.train is not None
        assert sides.test is not None
        learned, held = (embedded(backbone, pixels(side)) for side in (sides.train, sides.test))
        classes, truth = (torch.tensor(side.labels) for side in (sides.train, sides.test))
        found["emoji"][name] = probe(learned, classes, held, truth)
        found["s_t"][name] = s_of(learned, classes)
    found["emoji_mean"] = sum(found["emoji"].values()) / len(found["emoji"])
    return found


def _fitted(features: Tensor, labels: Tensor, decay: float) -> nn.Linear:
    """Logistic regression: the loss is convex, so that where one starts does not matter."""
    head = nn.Linear(features.shape[1], int(labels.max()) + 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(head(features), labels) + decay * head.weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return head


@torch.no_grad()
def _right(head: nn.Linear, features: Tensor, truth: Tensor) -> float:
    return 100 * float((head(features).argmax(dim=1) == truth).double().mean())


def pixels(images: ImageSet) -> Iterable[Tensor]:
    return (decode(images.encoded(index), where=str(images.paths[index])) for index in range(len(images)))


def _some(images: Iterable[Tensor], count: int) -> Iterable[list[Tensor]]:
    rest = iter(images)
    return iter(lambda: list(islice(rest, count)), [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    work = parser.parse_args().work
    found = {
        "trained": measure(load_backbone(work / FILE, architecture="bpg-vit-nano"), work),
        "untrained": measure(Backbone(Student().vit, PIXELS, name="untrained"), work),
    }
    (work / "figures.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
