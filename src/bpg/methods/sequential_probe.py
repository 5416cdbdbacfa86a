"""One linear probe for all domains: a linear head on frozen features goes on training with each new domain. Features
are computed once, without augmentation. It is the yardstick for what frozen features are worth by themselves where a
head is shared, and nothing protects it.

Trained: a linear head.
Stored: the head.
Paper: none; the usual yardstick.
Here: features have unit length, times the square root of their width. No prototypes are kept: `k` is not used.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor

from bpg.compute import as_float64
from bpg.data.domain import Domain
from bpg.methods.base import Learner
from bpg.methods.linear_probe import ProbeSettings, scaled, train_head
from bpg.methods.parts.heads import GrowingHead
from bpg.methods.parts.identity import check_classes
from bpg.store import State
from bpg.types import Prediction


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
