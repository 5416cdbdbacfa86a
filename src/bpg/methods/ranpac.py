"""RanPAC: frozen features are sent through a fixed random map and a ReLU into many channels, where classes lie apart.
There a ridge regression onto the classes has a closed form: it needs two sums over images, and sums over all domains
are the same in any order. Adapters, trained on the first domain alone, fit the features to the task before that.

Trained: adapters with the first domain; nothing after that.
Stored: the adapters, two sums, of channels with channels and of channels with classes, and what follows from them.
Paper: McDonnell et al., "RanPAC: Random Projections and Pre-trained Models for Continual Learning", NeurIPS 2023, arXiv
2307.02251.
Here: the pixels are those of all methods here, where the released code leaves them from 0 to 1. The head of cosines
that the adapters are trained with begins at a scale of 10. The ridge is chosen on the newest domain alone, as in the
original, and raised where the sums could not be inverted with it. The random map is not stored: it follows from the
seed. `channels = 0` leaves it out, `rank = 0` the adapters. With both, this is a linear probe on the frozen features of
all domains at once, in closed form: the bound for probes that see one domain after another.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat
from torch import Tensor, nn

from bpg.backbones.tuning import PLAIN, Tuning
from bpg.config import settings
from bpg.data.batches import Batches
from bpg.data.domain import Domain
from bpg.data.transforms import Augmentation
from bpg.experts.adapter import Adapters
from bpg.methods.base import Learner, passed
from bpg.methods.parts.heads import CosineHead
from bpg.methods.parts.identity import check_classes, check_once
from bpg.methods.parts.ridge import Ridge
from bpg.randomness import generator_of
from bpg.store import State
from bpg.training import Optimisation, cross_entropy
from bpg.types import Prediction


@settings
class RanPACSettings:
    """For DomainNet and CORe50."""

    seed: Annotated[int, Field(ge=0)] = 0
    channels: NonNegativeInt = 10_000  # of the random map; 0: none, the features as they are
    rank: NonNegativeInt = 64  # of the adapters; 0: none
    scale: PositiveFloat = 0.1  # of what the adapters add
    temperature: PositiveFloat = 0.1  # of the softmax over the regression: how sure it sounds
    optimisation: Optimisation = Optimisation(epochs=20, batch_size=48, weight_decay=5e-4)  # of the adapters
    augmentation: Augmentation = Augmentation()


class RanPAC(Learner):
    """A ridge regression from random channels of adapted features, whose sums add up over domains."""

    method = "ranpac"
    Settings = RanPACSettings
    settings: RanPACSettings

    def begin(self) -> None:
        self._adapters: Adapters | None = None
        self._ridge = Ridge(self.backbone.feature_width, self.settings.channels, seed=self.settings.seed)
        self._domains: list[str] = []

    @property
    def classes(self) -> tuple[str, ...]:
        return self._ridge.classes

    def learn(self, domain: Domain) -> None:
        check_classes(self.classes, domain.classes, allowed=self.allow_new_classes)
        check_once(domain.name, self._domains)
        adapters = self._adapters
        if not self._domains and self.settings.rank:
            adapters = self._adapted(domain)
        features = passed(self, domain.train, lambda images: self.backbone(images, _tuning(adapters)))
        names = [domain.train.classes[label] for label in domain.train.labels]
        self._ridge = self._ridge.grown(features, names, domain.name)
        self._adapters, self._domains = adapters, [*self._domains, domain.name]

    def _adapted(self, domain: Domain) -> Adapters:
        """Adapters, trained on the first domain under a head that is not kept."""
        s, o = self.settings, self.settings.optimisation
        adapters = self._empty(generator_of(s.seed, domain.name, "weights"))
        head = CosineHead(self.backbone.feature_width, scale=10.0).to(self.backbone.device)
        head.grow(domain.classes, seed=s.seed)
        tuning = adapters.tuning()

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return cross_entropy(head(self.backbone(images, tuning)), labels, smoothing=o.label_smoothing)

        batches = Batches(domain, self.backbone.preprocessing, s.augmentation, s.seed, o.batch_size, o.epochs)
        self.fit(nn.ModuleList([adapters, head]), loss, batches, vit=self.backbone.vit, resume=self.resume(domain))
        return adapters.requires_grad_(False)

    def _empty(self, generator: torch.Generator) -> Adapters:
        s, b = self.settings, self.backbone
        return Adapters(b.width, b.depth, s.rank, scale=s.scale, generator=generator).to(b.device)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Prediction:
        scores = self._ridge.scores(self.backbone(images, _tuning(self._adapters)))
        log_probs = torch.log_softmax(scores / self.settings.temperature, dim=1)
        return Prediction.of_one(log_probs)

    def state(self) -> State:
        own = self._adapters.state_dict() if self._adapters is not None else {}
        shared = self._ridge.tensors() | {f"adapters/{name}": tensor for name, tensor in own.items()}
        return self.make_state(shared=shared, facts={"classes": list(self.classes), "domains": self._domains})

    def restore(self, state: State) -> None:
        sums = {name: tensor for name, tensor in state.shared.items() if not name.startswith("adapters/")}
        self._ridge.restore(sums, state.facts["classes"])
        self._domains = list(state.facts["domains"])
        if self.settings.rank and self._domains:
            self._adapters = self._empty(generator_of(0)).requires_grad_(False)
            self._adapters.load_state_dict(state.below("adapters/"))


def _tuning(adapters: Adapters | None) -> Tuning:
    return adapters.tuning() if adapters is not None else PLAIN
