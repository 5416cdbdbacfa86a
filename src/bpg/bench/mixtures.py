"""What the mixture costs at test time, beside the paper's loop over all experts and what else people would use.

The number of experts per image is forced: how many a model needs is a question of its domains, not of its speed.
Experts and backbones have random weights, which are as slow as trained ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from bpg.backbones.backbone import FINISHED, Backbone, Probe
from bpg.backbones.catalogue import find
from bpg.backbones.faster import Arithmetic, faster
from bpg.backbones.vit import ViT
from bpg.bench import peers
from bpg.bench.findings import Found, Setting, ratios
from bpg.bench.timing import Work, take_turns
from bpg.compute import float64_device
from bpg.engine import run_experts
from bpg.experts.expert import Expert, ExpertSettings
from bpg.mixture import mix
from bpg.prototypes import LEVELS, Place
from bpg.randomness import generator_of
from bpg.routing import Places, stops

RANKS = (219, 390, 165, 320, 91, 310)  # for features of 768 numbers
WIDTH, CLASSES, PROTOTYPES = 768, 345, 5
SHARES = (1.2, 2.0, 3.0)  # experts per image
FEWEST = 5  # images of a measurement: 1.2 experts per image are 6 pairs
MANY = 64  # domains
CHOICES: dict[str, tuple[Arithmetic, ...]] = {"cpu": ("8-bit", "graph"), "cuda": ("half",)}
PLAIN, LOOP = "one plain forward", "the paper's loop: every expert on every image"
OVER = {PLAIN: "over plain", LOOP: "over the loop"}
WANTED_OF_LOOP = dict(zip(SHARES, (0.33, 0.45, 0.61), strict=True))
WANTED_OF_PLAIN = dict(zip(SHARES, (2.2, 3.0, 4.0), strict=True))


@dataclass(frozen=True, eq=False)
class Mixture:
    """A model of so many domains, with who speaks on which image given from outside."""

    backbone: Backbone
    experts: list[Expert]
    centres: list[Tensor]  # of each domain
    probe: Probe = FINISHED

    @cached_property
    def places(self) -> Places:
        reach = torch.linspace(0.5, 1, LEVELS, dtype=torch.float64)
        return Places([Place(own, reach) for own in self.centres])

    @classmethod
    def make(
        cls,
        backbone: Backbone,
        ranks: Sequence[int],
        *,
        settings: ExpertSettings | None = None,
        probe: Probe = FINISHED,
    ) -> Mixture:
        """Experts of `ranks`."""
        classes = [f"class {index:03}" for index in range(CLASSES)]
        experts = [
            Expert(backbone, classes, rank=rank, settings=settings or ExpertSettings(), generator=generator_of(0, at))
            .requires_grad_(False)
            .eval()
            for at, rank in enumerate(ranks)
        ]
        generator = generator_of(0, "prototypes")
        shape = PROTOTYPES, backbone.width_of(probe)
        centres = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in ranks]
        return cls(backbone, experts, centres, probe)

    @cached_property
    def rounded_centres(self) -> list[Tensor]:
        """As features are, in float32 beside the backbone."""
        return [own.float().to(self.backbone.device) for own in self.centres]

    def first(self, domains: int) -> Mixture:
        """The model when it knew so many domains."""
        return replace(self, experts=self.experts[:domains], centres=self.centres[:domains])

    @torch.no_grad()
    def plain(self, images: Tensor, *, batch: int) -> None:
        """The frozen backbone alone."""
        for own in torch.split(images, batch):
            self.backbone(own)

    @torch.no_grad()
    def soft(self, images: Tensor, weights: Tensor, *, batch: int) -> None:
        """Route, and run those who have a weight."""
        for own, said in zip(torch.split(images, batch), torch.split(weights, batch), strict=True):
            tokens = self.backbone.start(own)
            (seen,) = self.backbone.probed(tokens, [self.probe])
            self.places.distances(F.normalize(seen, dim=1))
            self._answer(tokens, said)

    @torch.no_grad()
    def unrouted(self, images: Tensor, weights: Tensor, *, batch: int) -> None:
        """Run those who have a weight, which somebody else told."""
        for own, said in zip(torch.split(images, batch), torch.split(weights, batch), strict=True):
            self._answer(self.backbone.start(own), said)

    @torch.no_grad()
    def loop(self, images: Tensor, *, batch: int) -> None:
        """The paper's way: route, run every expert on every image, weigh."""
        for own in torch.split(images, batch):
            self.places.distances(self.backbone.embed(own))
            logits = torch.stack([expert(own, self.backbone) for expert in self.experts], dim=1)
            logits.mean(dim=1)

    @torch.no_grad()
    def one_by_one(self, images: Tensor, weights: Tensor, *, batch: int) -> None:
        """S-Prompts' way: compare with one centre after another, then each domain's images through its expert."""
        for own, said in zip(torch.split(images, batch), torch.split(weights, batch), strict=True):
            peers.nearest_domain(self.backbone.embed(own), self.rounded_centres)
            for expert in said.any(dim=0).nonzero()[:, 0].tolist():
                self.experts[expert](own[said[:, expert] > 0], self.backbone)

    def _answer(self, tokens: Tensor, weights: Tensor) -> Tensor:
        columns = [torch.arange(CLASSES)] * len(self.experts)
        logits = run_experts(self.backbone, tokens, weights, self.experts, columns=columns, classes=CLASSES)
        known = torch.ones(len(self.experts), CLASSES, dtype=torch.bool, device=weights.device)
        return mix(logits, weights, known, "probabilities")

    def images(self, count: int) -> Tensor:
        """Noise of the right shape."""
        size = self.backbone.preprocessing.size
        return torch.randn(count, 3, size, size, generator=generator_of(0, "images")).to(self.backbone.device)

    def weights(self, count: int, share: float) -> Tensor:
        """Weights (B, T) of `share` experts per image, rounded up over all images, as evenly spread as can be."""
        domains = len(self.experts)
        pairs = math.ceil(min(share, domains) * count - 1e-9)
        generator = generator_of(0, "weights", domains)
        order = torch.stack([torch.randperm(domains, generator=generator) for _ in range(count)])
        weights = torch.zeros(count, domains, dtype=torch.float64)
        for pair in range(pairs):
            weights[pair % count, order[pair % count, pair // count]] = 1
        return (weights / weights.sum(dim=1, keepdim=True)).to(float64_device(self.backbone.device))


def random_backbone(name: str, device: torch.device, image_size: int | None = None) -> Backbone:
    """A backbone of a known shape with random weights."""
    entry = find(name)
    size = image_size or entry.vit.image_size
    vit, pixels = replace(entry.vit, image_size=size), replace(entry.preprocessing, size=size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = Backbone(ViT(vit), pixels, name=entry.name)
    return backbone.to(device)


def ranks_for(backbone: Backbone, domains: int = len(RANKS)) -> list[int]:
    """As large for this backbone as the paper's are for ViT-B/16."""
    return [max(1, round(RANKS[at % len(RANKS)] * backbone.width / WIDTH)) for at in range(domains)]


def engine(setting: Setting) -> Found:
    """The mixture at several numbers of experts per image, and what people would use instead."""
    mixture = _model(setting.large, setting.device)
    works = _beside_the_loop(mixture, batch=8)
    images, alone = mixture.images(8), mixture.weights(8, 1)
    works |= {
        "hard selection": partial(mixture.soft, images, alone, batch=8),
        "hard selection, without the routing pass": partial(mixture.unrouted, images, alone, batch=8),
        "hard selection as in S-Prompts, a loop over centres": partial(mixture.one_by_one, images, alone, batch=8),
    }
    plain = peers.timm_forward(setting.large, images)
    if plain is not None:
        works["timm, one plain forward"] = plain
    title = f"{setting.large}, {len(RANKS)} domains, batches of 8"
    tables = [ratios(title, take_turns(works, setting.times()), over=OVER, wanted=_wanted())]
    notes = [] if plain is not None else ["timm is not installed, or does not know this backbone: left out."]
    lora = ExpertSettings(prompts=0, parts="lora", lora_maps=peers.LORA_MAPS)
    ours = Mixture.make(mixture.backbone, ranks_for(mixture.backbone), settings=lora)
    theirs = peers.peft_mixed_batch(setting.large, ranks_for(mixture.backbone), images, alone)
    if theirs is None:
        return Found(tables, notes=[*notes, "peft is not installed, or timm does not know this backbone: left out."])
    beside: dict[str, Work] = {
        "peft": theirs,
        "the engine": partial(ours.unrouted, images, alone, batch=8),
    }
    title = (
        f"LoRA of the same ranks on {', '.join(peers.LORA_MAPS)}, one expert per image, nothing routed, batches of 8"
    )
    tables.append(ratios(title, take_turns(beside, setting.times()), over={"peft": "over peft's mixed batch"}))
    return Found(tables, notes=notes)


def batches(setting: Setting) -> Found:
    """The same for single images and for large batches."""
    mixture = _model(setting.large, setting.device)
    tables = [
        ratios(
            f"{setting.large}, {len(RANKS)} domains, batches of {batch}",
            take_turns(_beside_the_loop(mixture, batch=batch), setting.times(3)),
            over=OVER,
            wanted=_wanted(OVER[LOOP]),
        )
        for batch in (1, 32)
    ]
    return Found(tables)


def domains(setting: Setting) -> Found:
    """Whether the mixture costs the same when the model knows ten times as many domains."""
    few, many = (_model(setting.large, setting.device, count) for count in (6, MANY))
    images = few.images(8)
    names = {few: f"the mixture, 2 experts per image, {len(few.experts)} domains", many: f"the same, {MANY} domains"}
    works: dict[str, Work] = {
        name: partial(model.soft, images, model.weights(8, 2), batch=8) for model, name in names.items()
    }
    heading = f"over {len(few.experts)} domains"
    table = ratios(
        f"{setting.large}, batches of 8",
        take_turns(works, setting.times()),
        over={names[few]: heading},
        wanted={names[many]: {heading: 1.10}},
    )
    return Found([table])


def choices(setting: Setting) -> Found:
    """What each way to answer faster than exactly saves; what it costs in answers, `bpg evaluate --profile` says."""
    tables = []
    for name, batch in dict.fromkeys([(setting.small, 1), (setting.small, 8), (setting.large, 1)]):
        exact = _model(name, setting.device)
        backbone = exact.backbone
        early = Mixture.make(backbone, ranks_for(backbone), probe=stops(backbone.depth)[2])
        models = {"exact": exact, f"routed by the {early.probe}": early}
        for arithmetic in CHOICES.get(setting.device.type, ()):
            rough = faster(backbone, arithmetic)
            models[arithmetic] = replace(exact, backbone=rough)
            models[f"{arithmetic}, routed by the {early.probe}"] = replace(early, backbone=rough)
        count = max(batch, 4)
        images, weights = exact.images(count), exact.weights(count, 2)
        works: dict[str, Work] = {
            choice: partial(model.soft, images, weights, batch=batch) for choice, model in models.items()
        }
        for work in [*works.values()] * 3:  # graphs are made, and made better, in their first calls
            work()
        taken = take_turns(works, setting.times())
        tables.append(ratios(f"{name}, 2 experts per image, batches of {batch}", taken, over={"exact": "over exact"}))
    return Found(tables)


def _model(name: str, device: torch.device, domains: int = len(RANKS)) -> Mixture:
    backbone = random_backbone(name, device)
    return Mixture.make(backbone, ranks_for(backbone, domains))


def _beside_the_loop(mixture: Mixture, *, batch: int) -> dict[str, Work]:
    count = max(batch, FEWEST)
    images = mixture.images(count)

    works: dict[str, Work] = {
        PLAIN: partial(mixture.plain, images, batch=batch),
        LOOP: partial(mixture.loop, images, batch=batch),
    }
    for share in SHARES:
        weights = mixture.weights(count, share)
        works[_title(share)] = partial(mixture.soft, images, weights, batch=batch)
    return works


def _wanted(*headings: str) -> dict[str, dict[str, float]]:
    every = {
        _title(share): {OVER[PLAIN]: WANTED_OF_PLAIN[share], OVER[LOOP]: WANTED_OF_LOOP[share]} for share in SHARES
    }
    return {
        name: {heading: most for heading, most in own.items() if heading in (headings or OVER.values())}
        for name, own in every.items()
    }


def _title(share: float) -> str:
    return f"the mixture, {share:g} experts per image"
