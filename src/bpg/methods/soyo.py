"""SOYO: every domain has an expert of its own, and a classifier of domains, trained on all of them, says whose is used.
The images of old domains are gone when a new one comes: in their place, features are drawn from a mixture of Gaussians
that was fitted to each. So the classifier of domains sees old and new ones alike.

Trained: prompt tokens, linear adapters and a head for each domain; one linear map from features to domains.
Stored: these, and two Gaussians with full covariances a domain.
Paper: Wang et al., "Boosting Domain Incremental Learning: Selecting the Optimal Parameters is All You Need", CVPR 2025,
arXiv 2505.23744.
Here: as in the released code, without the fusion of several depths that the paper has. The classifier of domains gets
a row with each domain, and is trained from the second on. It and the Gaussians see features of images as evaluation
does, not of crops. A small variance is added to every channel. Prompts begin from a normal distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from pydantic import PositiveInt
from torch import Tensor

from bpg.backbones.backbone import FINISHED
from bpg.compute import as_float64
from bpg.config import settings
from bpg.data.batches import FeatureBatches
from bpg.data.domain import Domain
from bpg.experts.head import check_text
from bpg.methods.parts.aligned import Aligned, AlignedSettings, head_of
from bpg.methods.parts.gaussians import Gaussians, Replay, fitted
from bpg.methods.parts.heads import GrowingHead
from bpg.methods.parts.pool import Member, Pooled
from bpg.methods.parts.selection import chosen
from bpg.methods.parts.ways import OWN
from bpg.randomness import generator_of, seed_of
from bpg.store import State
from bpg.training import Optimisation


@settings
class SOYOSettings(AlignedSettings):
    """And how the domain is found."""

    components: PositiveInt = 2  # Gaussians a domain
    selection: Optimisation = Optimisation(lr=0.1)  # of the classifier of domains


class SOYO(Pooled):
    """An expert for each domain, chosen by a classifier of domains that replays old features from Gaussians."""

    method = "soyo"
    Settings = SOYOSettings
    settings: SOYOSettings
    usual = OWN

    def begin(self) -> None:
        super().begin()
        self.selector = GrowingHead(self.backbone.feature_width).to(self.backbone.device)  # its classes are domains
        if self.settings.head == "text":
            check_text(self.backbone)

    def learn(self, domain: Domain) -> None:
        self.admit(domain)
        s, found = self.settings, self.survey(domain)
        features = found.features[FINISHED]
        expert = self._expert(domain.classes, domain.name)
        self.train_expert(expert, domain)
        selector = self._selector(domain.name, features)
        expert.mixture = fitted(features, k=s.components, seed=seed_of(s.seed, domain.name, "gaussians"))
        self.take_in(domain, found, expert)
        self.selector = selector

    def _expert(self, classes: Sequence[str], name: str) -> Aligned:
        generator = generator_of(self.settings.seed, name, "weights")
        return Aligned(
            self.backbone, head_of(self.settings, self.backbone, classes, generator), self.settings, generator
        )

    def _selector(self, name: str, features: Tensor) -> GrowingHead:
        """The classifier of domains, trained on with `features` of the new one and drawn ones of the others."""
        s, o = self.settings, self.settings.selection
        selector = deepcopy(self.selector)
        selector.grow([name], seed=s.seed)
        others = [other for other in selector.classes if other != name]
        if not others:
            return selector.requires_grad_(False)
        generator, count = generator_of(s.seed, name, "replay"), len(features)
        drawn = [self.pool[other].expert.mixture.sample(count, generator) for other in others]
        places = selector.places(others).repeat_interleave(count)
        own = FeatureBatches(
            features.cpu(), selector.places([name]).expand(count), name, s.seed, o.batch_size, o.epochs
        )
        batches = Replay(own, torch.cat(drawn), places)
        self.fit_features(selector.requires_grad_(True), batches, optimisation=o, activity="selector")
        return selector.requires_grad_(False)

    def choose(self, images: Tensor, features: Tensor) -> Tensor:
        """The likeliest domain; rows stand in the order of their names, as the pool's members do."""
        del images
        return chosen(as_float64(self.selector(features)).argmax(dim=1), len(self.domains))

    def state(self) -> State:
        shared = {f"selector/{name}": own for name, own in self.selector.state_dict().items()}
        facts = {"classes": list(self.classes)}
        return self.make_state(super().state().domains, shared=shared if self.domains else {}, facts=facts)

    def restore(self, state: State) -> None:
        if not state.domains:
            return
        self.selector.grow(list(state.domains), seed=0)
        self.selector.load_state_dict(state.below("selector/"))
        self.selector.requires_grad_(False)
        for name, learned in state.domains.items():
            expert = self._expert(learned.facts["classes"], name)
            expert.mixture = Gaussians.empty(len(learned.tensors["expert/mixture.shares"]), self.backbone.feature_width)
            self.pool.add(name, Member.restored(expert, learned, self.backbone))
        if list(self.classes) != state.facts["classes"]:
            raise ValueError("domains of other classes than the model's")
