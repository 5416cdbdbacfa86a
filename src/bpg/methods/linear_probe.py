"""Linear probes: a linear head is trained on frozen features, one for each domain and chosen by the nearest prototype,
or one for all domains, which goes on training with each. Features are computed once, without augmentation. They are the
yardstick for what frozen features are worth by themselves.

Trained: a linear head.
Stored: a head and five prototypes a domain (`linear_probe`), or one head (`sequential_probe`).
Paper: none; the usual yardstick.
Here: features have unit length, times the square root of their width.
"""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from bpg.backbones.backbone import FINISHED, Backbone
from bpg.backbones.survey import Survey
from bpg.backbones.tuning import PLAIN, Tuning
from bpg.compute import as_float64
from bpg.config import settings
from bpg.data.batches import FeatureBatches
from bpg.data.domain import Domain
from bpg.methods.base import Learner
from bpg.methods.parts.heads import GrowingHead
from bpg.methods.parts.identity import check_classes
from bpg.methods.parts.pool import Member, Separate
from bpg.store import State
from bpg.training import Optimisation
from bpg.types import Prediction


@settings
class ProbeSettings:
    """How a head is trained."""

    seed: Annotated[int, Field(ge=0)] = 0
    k: PositiveInt = 5  # prototypes a domain, where each has its own head
    optimisation: Optimisation = Optimisation(epochs=50, lr=0.1, batch_size=128, weight_decay=0.0)


class LinearProbe(Separate):
    """A linear head for each domain, chosen by the nearest prototype unless another router is given."""

    method = "linear_probe"
    Settings = ProbeSettings
    settings: ProbeSettings
    usual = "hard"

    def learn(self, domain: Domain) -> None:
        self.admit(domain)
        found = self.survey(domain)
        head = train_head(self, GrowingHead(self.backbone.feature_width).to(self.backbone.device), domain, found)
        self.take_in(domain, found, Probed(head))

    def restore(self, state: State) -> None:
        for name, learned in state.domains.items():
            head = GrowingHead(self.backbone.feature_width).to(self.backbone.device)
            head.grow(learned.facts["classes"], seed=0)
            self.pool.add(name, Member.restored(Probed(head), learned, self.backbone))


class SequentialProbe(Learner):
    """One linear head for all domains, which goes on training on each new one."""

    method = "sequential_probe"
    Settings = ProbeSettings
    settings: ProbeSettings

    def begin(self) -> None:
        self._head = GrowingHead(self.backbone.feature_width).to(self.backbone.device)
        self._learned_from: dict[str, str] = {}  # digests of images, by domain

    @property
    def classes(self) -> tuple[str, ...]:
        return self._head.classes

    def learn(self, domain: Domain) -> None:
        check_classes(self.classes, domain.classes, allowed=self.allow_new_classes)
        found = self.survey(domain)
        self._head = train_head(self, deepcopy(self._head), domain, found)
        self._learned_from = {**self._learned_from, domain.name: found.sha256}

    @torch.no_grad()
    def forward(self, images: Tensor) -> Prediction:
        logits = self._head(scaled(self.backbone.embed(images)))
        return Prediction.of_one(torch.log_softmax(as_float64(logits), dim=1))

    def state(self) -> State:
        facts = {"classes": list(self.classes), "images_sha256": self._learned_from}
        return self.make_state(shared=dict(self._head.state_dict()), facts=facts)

    def restore(self, state: State) -> None:
        self._head.grow(state.facts["classes"], seed=0)
        self._head.load_state_dict(dict(state.shared))
        self._learned_from = dict(state.facts.get("images_sha256", {}))  # older models do not know


class Probed(nn.Module):
    """A head on the frozen feature, as an expert of a pool."""

    def __init__(self, head: GrowingHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, images: Tensor, backbone: Backbone) -> Tensor:
        return self.classify(backbone(images), backbone)

    def tuning(self) -> Tuning:
        return PLAIN

    def classify(self, features: Tensor, backbone: Backbone) -> Tensor:
        del backbone
        logits: Tensor = self.head(scaled(F.normalize(features, dim=-1)))
        return logits


def scaled(features: Tensor) -> Tensor:
    """Features of unit length with channels of about 1, which heads learn from at usual rates."""
    return features * math.sqrt(features.shape[1])


def train_head(learner: Learner, head: GrowingHead, domain: Domain, found: Survey) -> GrowingHead:
    """`head`, trained on the features of a domain that were `found`."""
    s, o = learner.settings, learner.settings.optimisation
    head.grow(domain.classes, seed=s.seed)
    targets = head.places([domain.train.classes[label] for label in domain.train.labels])
    inputs = scaled(found.features[FINISHED])
    batches = FeatureBatches(inputs, targets, domain.name, s.seed, o.batch_size, o.epochs)
    learner.fit_features(head.requires_grad_(True), batches, optimisation=o)
    return head.requires_grad_(False)
