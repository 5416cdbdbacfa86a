"""PINA: one classifier is learned on the first domain and stays as it is. Every later domain learns prompt tokens and
linear adapters that bring its features to where the first domain's lie, so that the old classifier fits. Which domain
an image is of is asked of the image with its patches in disorder: what it shows is gone, its style is left.

Trained: prompt tokens and linear adapters for each domain; the classifier, with the first domain alone.
Stored: these, and five centres of shuffled images' features a domain.
Paper: Wang et al., "Non-exemplar Domain Incremental Learning via Cross-Domain Concept Integration", ECCV 2024.
Here: how the selector on shuffled patches is fitted is not published: it is the nearest centre of shuffled images'
features, in the same few orders for every image. `shuffles = 0` is the released code's nearest centre. A domain
answers for its own classes; one that the first domain does not have gets a row of its own with each domain that has it.
Prompts begin from a normal distribution of about the released one's spread.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from bpg.backbones.backbone import FINISHED
from bpg.backbones.survey import Survey
from bpg.config import settings
from bpg.data.domain import Domain
from bpg.experts.head import check_text
from bpg.methods.base import passed
from bpg.methods.parts.aligned import Aligned, AlignedSettings, Reading, Unified
from bpg.methods.parts.identity import tensors_digest
from bpg.methods.parts.pool import Member, Pooled
from bpg.methods.parts.selection import Styles, nearest_centre
from bpg.methods.parts.ways import OWN
from bpg.prototypes import prototypes
from bpg.randomness import generator_of, seed_of
from bpg.store import State


@settings
class PINASettings(AlignedSettings):
    """And how the domain is asked for."""

    shuffles: NonNegativeInt = 2  # orders of the patches that an image is asked in; 0: as it is
    grid: tuple[PositiveInt, PositiveInt] = (3, 2)  # rows and columns of patches


class PINA(Pooled):
    """One classifier of the first domain, and for each later one what brings its features there."""

    method = "pina"
    Settings = PINASettings
    settings: PINASettings
    usual = OWN

    def begin(self) -> None:
        super().begin()
        s = self.settings
        self.unified: Unified | None = None
        self.styles = Styles(self.backbone, orders=s.shuffles, grid=s.grid, seed=s.seed)
        if s.head == "text":
            check_text(self.backbone)

    def learn(self, domain: Domain) -> None:
        self.admit(domain)
        found = self.survey(domain)
        unified, alone = self.unified, set(self.domains) <= {domain.name}
        if unified is None or alone:
            unified = self._classifier(domain.classes)
        first = alone or (domain.name in self.pool and self.pool[domain.name].facts["first"])
        expert = self._expert(unified, domain.classes, domain.name, first=first)
        module = nn.ModuleList([expert, unified]) if alone else expert
        self.train_expert(expert, domain, tensors_digest(unified), module=module)
        expert.register_buffer("centres", self._centres(domain, found))
        self.take_in(domain, found, expert, first=first)
        self.unified = unified.requires_grad_(False).eval()

    def _classifier(self, classes: Sequence[str]) -> Unified:
        return Unified(self.backbone, classes, self.settings, generator_of(self.settings.seed, "unified"))

    def _expert(self, unified: Unified, classes: Sequence[str], name: str, *, first: bool) -> Aligned:
        """The first domain's features are where they are: it has no adapters."""
        generator = generator_of(self.settings.seed, name, "weights")
        head = Reading(unified, self.backbone, classes, generator)
        return Aligned(self.backbone, head, self.settings, generator, adapted=not first)

    def _centres(self, domain: Domain, found: Survey) -> Tensor:
        s = self.settings
        plain = found.features[FINISHED]
        features = passed(self, domain.train, self.styles) if s.shuffles else plain
        return prototypes(features, k=s.k, seed=seed_of(s.seed, domain.name, "styles"))

    def choose(self, images: Tensor, features: Tensor) -> Tensor:
        """The domain of the nearest centre of shuffled images."""
        style = self.styles(images) if self.settings.shuffles else features
        return nearest_centre(style, [member.expert.centres for member in self.pool.members])

    def state(self) -> State:
        kept = super().state()
        if self.unified is None:
            return kept
        shared = {f"unified/{name}": tensor for name, tensor in self.unified.state_dict().items()}
        return self.make_state(kept.domains, shared=shared, facts={"unified": list(self.unified.classes)})

    def restore(self, state: State) -> None:
        if not state.domains:
            return
        unified = self._classifier(state.facts["unified"])
        unified.load_state_dict(state.below("unified/"))
        self.unified = unified.requires_grad_(False).eval()
        for name, learned in state.domains.items():
            expert = self._expert(unified, learned.facts["classes"], name, first=learned.facts["first"])
            centres = learned.tensors["expert/centres"]
            if centres.ndim != 2 or centres.shape[1] != self.backbone.feature_width or not centres.isfinite().all():
                raise ValueError(f"centres of {name} that no learner writes")
            expert.register_buffer("centres", torch.empty_like(centres))
            self.pool.add(name, Member.restored(expert, learned, self.backbone))
