"""A linear probe for each domain: a linear head is trained on frozen features, and chosen by the nearest prototype.
Features are computed once, without augmentation. It is the yardstick for what frozen features are worth by themselves
where each domain has its own head.

Trained: a linear head for each domain.
Stored: these, and five prototypes a domain.
Paper: none; the usual yardstick.
Here: features have unit length, times the square root of their width.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from bpg.backbones.backbone import FINISHED, Backbone
from bpg.backbones.survey import Survey
from bpg.backbones.tuning import PLAIN, Tuning
from bpg.config import settings
from bpg.data.batches import FeatureBatches
from bpg.data.domain import Domain
from bpg.methods.base import Learner
from bpg.methods.parts.heads import GrowingHead
from bpg.methods.parts.pool import Member, Separate
from bpg.store import State
from bpg.training import Optimisation


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
