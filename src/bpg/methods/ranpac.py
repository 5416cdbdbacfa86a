"""RanPAC: frozen features are sent through a fixed random map and a ReLU into many channels, where classes lie apart.
There a ridge regression onto the classes has a closed form: it needs two sums over images, and sums over all domains
are the same in any order. Adapters, trained on the first domain alone, fit the features to the task before that.

Trained: adapters with the first domain; nothing after that.
Stored: the adapters, and two sums: of channels with channels, and of channels with classes.
Paper: McDonnell et al., "RanPAC: Random Projections and Pre-trained Models for Continual Learning", NeurIPS 2023, arXiv
2307.02251.
Here: the head of cosines that the adapters are trained with begins at a scale of 10. The ridge is chosen on the newest
domain alone, as in the original; a penalty for which the sums cannot be inverted is passed over.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from bpg.backbones.tuning import PLAIN, Part, Tuning
from bpg.compute import as_float64
from bpg.config import settings
from bpg.data.batches import Batches
from bpg.data.domain import Domain
from bpg.data.transforms import Augmentation
from bpg.experts.adapter import Adapter
from bpg.methods.base import Learner, prepared
from bpg.methods.parts.heads import CosineHead
from bpg.methods.parts.identity import check_classes
from bpg.methods.parts.ridge import RandomChannels, solved
from bpg.progress import counted
from bpg.randomness import generator_of
from bpg.store import State
from bpg.training import Optimisation, cross_entropy
from bpg.types import Prediction


@settings
class RanPACSettings:
    """For DomainNet and CORe50."""

    seed: Annotated[int, Field(ge=0)] = 0
    channels: PositiveInt = 10_000  # of the random map
    rank: NonNegativeInt = 64  # of the adapters; 0: none
    scale: PositiveFloat = 0.1  # of what the adapters add
    temperature: PositiveFloat = 0.1  # of the softmax over the regression: how sure it sounds
    optimisation: Optimisation = Optimisation(epochs=20, batch_size=48, weight_decay=5e-4)  # of the adapters
    augmentation: Augmentation = Augmentation()


class Adapters(nn.Module):
    """Adapters beside every MLP."""

    def __init__(self, width: int, depth: int, rank: int, scale: float, generator: torch.Generator) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Adapter(width, rank, generator=generator) for _ in range(depth))
        self.scale = scale

    def tuning(self) -> Tuning:
        def scaled(part: nn.Module) -> Part:
            return lambda h: self.scale * part(h)

        return Tuning(branch={block: {"residual": scaled(part)} for block, part in enumerate(self.parts)})


class RanPAC(Learner):
    """A ridge regression from random channels of adapted features, whose sums add up over domains."""

    method = "ranpac"
    Settings = RanPACSettings
    settings: RanPACSettings

    def begin(self) -> None:
        m = self.settings.channels
        self._classes: tuple[str, ...] = ()
        self._adapters: Adapters | None = None
        self._gram, self._cross = torch.zeros(m, m), torch.zeros(m, 0)  # G and Q, sums over all domains
        self._weights = torch.zeros(m, 0)  # W_o
        self._channels = RandomChannels(self.backbone.feature_width, m, seed=self.settings.seed)

    @property
    def classes(self) -> tuple[str, ...]:
        return self._classes

    def learn(self, domain: Domain) -> None:
        check_classes(self.classes, domain.classes, allowed=self.allow_new_classes)
        adapters = self._adapters
        if not self.classes and self.settings.rank:
            adapters = self._adapted(domain)
        features = self._features(domain, adapters)
        classes = tuple(sorted({*self.classes, *domain.classes}))
        labels = torch.tensor([classes.index(domain.train.classes[label]) for label in domain.train.labels])
        ridge = self._channels.penalty(
            features, labels, len(classes), generator_of(self.settings.seed, domain.name, "ridge")
        )
        gram, cross = self._channels.sums(features, labels, len(classes))
        gram = gram + self._gram
        cross[:, [classes.index(name) for name in self.classes]] += self._cross
        weights = solved(gram, cross, ridge)
        while weights is None:  # what one domain could do with may be too little for the sum
            ridge *= 10
            weights = solved(gram, cross, ridge)
        self._adapters, self._classes = adapters, classes
        self._gram, self._cross, self._weights = gram, cross, weights

    def _adapted(self, domain: Domain) -> Adapters:
        s, o = self.settings, self.settings.optimisation
        adapters = self._make(generator_of(s.seed, domain.name, "weights"))
        head = CosineHead(self.backbone.feature_width, scale=10.0).to(self.backbone.device)
        head.grow(domain.classes, seed=s.seed)
        tuning = adapters.tuning()

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return cross_entropy(head(self.backbone(images, tuning)), labels, smoothing=o.label_smoothing)

        batches = Batches(domain, self.backbone.preprocessing, s.augmentation, s.seed, o.batch_size, o.epochs)
        self.fit(nn.ModuleList([adapters, head]), loss, batches, vit=self.backbone.vit, resume=self.resume(domain))
        return adapters.requires_grad_(False)

    def _make(self, generator: torch.Generator) -> Adapters:
        s, b = self.settings, self.backbone
        return Adapters(b.width, b.depth, s.rank, s.scale, generator).to(b.device)

    @torch.no_grad()
    def _features(self, domain: Domain, adapters: Adapters | None) -> Tensor:
        """Features (n, d) of the domain's images as evaluation sees them."""
        tuning = adapters.tuning() if adapters is not None else PLAIN
        tell = counted(self.progress, "survey") if self.progress is not None else None
        found: list[Tensor] = []
        for batch in prepared(self.backbone, domain.train, 32):
            found.append(self.backbone(batch, tuning).cpu())
            if tell is not None:
                tell(sum(map(len, found)), len(domain.train))
        return torch.cat(found)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Prediction:
        tuning = self._adapters.tuning() if self._adapters is not None else PLAIN
        scores = as_float64(self._channels(self.backbone(images, tuning)))
        log_probs = torch.log_softmax(scores @ self._weights.to(scores) / self.settings.temperature, dim=1)
        return Prediction(log_probs, None, torch.ones(len(images), dtype=torch.long))

    def state(self) -> State:
        shared = {"gram": self._gram, "cross": self._cross, "weights": self._weights} if self.classes else {}
        if self._adapters is not None:
            shared |= {f"adapters/{name}": own for name, own in self._adapters.state_dict().items()}
        return self.make_state(shared=shared, facts={"classes": list(self.classes)})

    def restore(self, state: State) -> None:
        self._classes = tuple(state.facts["classes"])
        if not self.classes and not state.shared:
            return
        m, c = self.settings.channels, len(self.classes)
        self._gram, self._cross, self._weights = (state.shared[name] for name in ("gram", "cross", "weights"))
        if self._gram.shape != (m, m) or self._cross.shape != (m, c) or self._weights.shape != (m, c):
            raise ValueError("sums of other channels or classes")
        if self.settings.rank:
            own = {n.removeprefix("adapters/"): t for n, t in state.shared.items() if n.startswith("adapters/")}
            self._adapters = self._make(generator_of(0))
            self._adapters.load_state_dict(own)
            self._adapters.requires_grad_(False)
