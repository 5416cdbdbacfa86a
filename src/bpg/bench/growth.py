"""How cost grows: with domains, with the batch, with the rank, with the images of a domain."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from bpg.backbones.survey import ScatterSum
from bpg.bench import peers
from bpg.bench.findings import Found, Setting
from bpg.bench.mixtures import CLASSES, PLAIN, WIDTH, Mixture, random_backbone, ranks_for
from bpg.bench.timing import Work, seconds, take_turns
from bpg.prototypes import located
from bpg.randomness import generator_of
from bpg.report.blocks import Curves
from bpg.separability import separability

DOMAINS = BATCHES = (1, 2, 4, 8, 16, 32, 64)
RANKS = (4, 16, 64, 256, 1024)
IMAGES = (1_000, 3_000, 10_000, 30_000, 100_000)
MIXTURE, LOOP = "the mixture, 2 experts per image", "the paper's loop"
ONE_PRODUCT, ONE_BY_ONE = "one product for all prototypes", "a loop over centres"


def domains(setting: Setting) -> Found:
    """Over T: the mixture beside the loop, and the routing alone."""
    backbone = random_backbone(setting.small, setting.device)
    every = Mixture.make(backbone, ranks_for(backbone, max(DOMAINS)))
    images = every.images(8)
    features = backbone.embed(images)
    works: dict[str, Work] = {PLAIN: partial(every.plain, images, batch=8)}
    for count in DOMAINS:
        model = every.first(count)
        weights = model.weights(8, 2)
        works |= {
            f"{MIXTURE} {count}": partial(model.soft, images, weights, batch=8),
            f"{LOOP} {count}": partial(model.loop, images, batch=8),
            f"{ONE_PRODUCT} {count}": partial(model.places.distances, features),
            f"{ONE_BY_ONE} {count}": partial(peers.nearest_domain, features, model.rounded_centres),
        }
    taken = take_turns(works, setting.times(3))
    cost = {
        name: [(float(count), taken[f"{name} {count}"].over(taken[PLAIN]).median) for count in DOMAINS]
        for name in (MIXTURE, LOOP)
    }
    routing = {
        name: [(float(count), 1e3 * taken[f"{name} {count}"].seconds) for count in DOMAINS]
        for name in (ONE_PRODUCT, ONE_BY_ONE)
    }
    at = f"{setting.small}, batches of 8"
    return Found(
        figures=[
            Curves(f"Cost over the number of domains: {at}", cost, "plain forwards", "domains", log="xy"),
            Curves(f"Routing alone over the number of domains: {at}", routing, "milliseconds", "domains", log="xy"),
        ]
    )


def batch_sizes(setting: Setting) -> Found:
    """Over the batch: milliseconds an image."""
    backbone = random_backbone(setting.small, setting.device)
    model = Mixture.make(backbone, ranks_for(backbone))
    every = model.images(max(BATCHES))
    works: dict[str, Work] = {}
    for batch in BATCHES:
        images, weights = every[:batch], model.weights(batch, 2)
        works |= {
            f"{PLAIN} {batch}": partial(model.plain, images, batch=batch),
            f"{MIXTURE} {batch}": partial(model.soft, images, weights, batch=batch),
            f"{LOOP} {batch}": partial(model.loop, images, batch=batch),
        }
    taken = take_turns(works, setting.times(3))
    lines = {
        name: [(float(batch), 1e3 * taken[f"{name} {batch}"].seconds / batch) for batch in BATCHES]
        for name in (LOOP, MIXTURE, PLAIN)
    }
    title = f"Time an image over the batch: {setting.small}, {len(model.experts)} domains"
    return Found(figures=[Curves(title, lines, "milliseconds", "images a batch", log="x")])


def ranks(setting: Setting) -> Found:
    """Over r: the mixture in plain forwards."""
    backbone = random_backbone(setting.large, setting.device)
    models = {rank: Mixture.make(backbone, [rank] * 2) for rank in RANKS}
    images = models[RANKS[0]].images(4)
    weights = models[RANKS[0]].weights(4, 2)
    works: dict[str, Work] = {PLAIN: partial(models[RANKS[0]].plain, images, batch=4)}
    works |= {str(rank): partial(model.soft, images, weights, batch=4) for rank, model in models.items()}
    taken = take_turns(works, setting.times(3))
    line = [(float(rank), taken[str(rank)].over(taken[PLAIN]).median) for rank in RANKS]
    title = f"Cost over the rank: {setting.large}, batches of 4"
    return Found(figures=[Curves(title, {MIXTURE: line}, "plain forwards", "r", log="x")])


def domain_sizes(setting: Setting) -> Found:
    """Over the images of a domain: what is worked out from features that are there."""
    del setting
    lines: dict[str, list[tuple[float, float]]] = {"separability": [], "prototypes and their reach": []}
    for count in IMAGES:
        features, labels = _features(count)
        lines["separability"].append((float(count), seconds(partial(_separability, features, labels))))
        lines["prototypes and their reach"].append((float(count), seconds(partial(located, features))))
    title = f"Seconds over the images of a domain: features of {WIDTH} numbers, {CLASSES} classes"
    return Found(figures=[Curves(title, lines, "seconds", "images", log="xy")])


def _features(count: int) -> tuple[Tensor, Tensor]:
    """Unit-length features of classes that lie apart, and their labels."""
    generator = generator_of(0, "features")
    means = torch.randn(CLASSES, WIDTH, generator=generator)
    labels = torch.arange(count) % CLASSES
    return F.normalize(means[labels] + torch.randn(count, WIDTH, generator=generator), dim=1), labels


def _separability(features: Tensor, labels: Tensor) -> float:
    scatter = ScatterSum(CLASSES)
    for x, y in zip(torch.split(features, 64), torch.split(labels, 64), strict=True):  # as they come from a survey
        scatter.add(x, y)
    return separability(scatter.scatter())
