"""PINA: one classifier is learned on the first domain and stays as it is. Every later domain learns prompt tokens and
linear adapters that bring its features to where the first domain's lie, so that the old classifier fits. Which domain
an image is of is asked of the image with its patches in disorder: what it shows is gone, its style is left.

Trained: prompt tokens and linear adapters for each domain; the classifier, with the first domain alone.
Stored: these, and five centres of shuffled images' features a domain.
Paper: Wang et al., "Non-exemplar Domain Incremental Learning via Cross-Domain Concept Integration", ECCV 2024.
Here: how the selector on shuffled patches is fitted is not published: it is the nearest centre of shuffled images'
features, in the same few orders for every image. `shuffles = 0` is the released code's nearest centre. A class that
the first domain does not have gets a row of its own with the domain that brings it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from bpg.config import settings
from bpg.data.domain import Domain
from bpg.data.transforms import Augmentation
from bpg.experts.head import check_text
from bpg.methods.base import prepared
from bpg.methods.parts.aligned import Aligned, Kind, Reading, Unified
from bpg.methods.parts.identity import tensors_digest
from bpg.methods.parts.pool import Member, Pooled
from bpg.methods.parts.selection import nearest_centre, shuffled, shuffles
from bpg.prototypes import prototypes
from bpg.randomness import generator_of, seed_of
from bpg.store import State
from bpg.training import Optimisation


@settings
class PINASettings:
    """For DomainNet."""

    seed: Annotated[int, Field(ge=0)] = 0
    prompts: PositiveInt = 10  # tokens
    hidden: PositiveInt = 16  # h, rank of the adapters
    where: Literal["deep", "shallow"] = "deep"  # adapters behind every block, or one behind the last norm
    head: Kind = "linear"  # text: CLIP's class names behind learned words
    context: PositiveInt = 16  # words of a text head
    k: PositiveInt = 5  # centres a domain
    shuffles: NonNegativeInt = 2  # orders of the patches that an image is asked in; 0: as it is
    grid: tuple[PositiveInt, PositiveInt] = (3, 2)  # rows and columns of patches
    optimisation: Optimisation = Optimisation()
    augmentation: Augmentation = Augmentation()


class PINA(Pooled):
    """One classifier of the first domain, and for each later one what brings its features there."""

    method = "pina"
    Settings = PINASettings
    settings: PINASettings
    has_own = True

    def begin(self) -> None:
        super().begin()
        self.pool.choose = self.choose
        self.unified: Unified | None = None
        if self.settings.head == "text":
            check_text(self.backbone)

    def learn(self, domain: Domain) -> None:
        self.admit(domain)
        s, found = self.settings, self.survey(domain)
        first = self.unified is None
        unified = self.unified or self._classifier(domain.classes)
        expert = self._expert(unified, domain.classes, domain.name, first=first)
        together = nn.ModuleList([expert, unified]) if first else None
        self.train_expert(expert, domain, tensors_digest(unified), module=together)
        centres = prototypes(self._styles(domain), k=s.k, seed=seed_of(s.seed, domain.name, "styles"))
        expert.register_buffer("centres", centres)
        facts = {
            "classes": list(domain.classes),
            "images": len(domain.train),
            "images_sha256": found.sha256,
            "parameters": sum(own.numel() for own in expert.parameters()),
            "first": first,
        }
        self.pool.add(domain.name, Member(expert, self.locate(domain, found), facts))
        self.unified = unified.requires_grad_(False).eval()

    def _classifier(self, classes: Any) -> Unified:
        s = self.settings
        return Unified(s.head, self.backbone, classes, context=s.context, generator=generator_of(s.seed, "unified"))

    def _expert(self, unified: Unified, classes: Any, name: str, *, first: bool) -> Aligned:
        s, generator = self.settings, generator_of(self.settings.seed, name, "weights")
        head = Reading(unified, self.backbone, classes, generator)
        where = "none" if first else s.where  # the first domain's features are where they are
        return Aligned(self.backbone, head, prompts=s.prompts, hidden=s.hidden, where=where, generator=generator)

    def _styles(self, domain: Domain) -> Tensor:
        return torch.cat([self.style(batch) for batch in prepared(self.backbone, domain.train, 32)])

    @torch.no_grad()
    def style(self, images: Tensor) -> Tensor:
        """The frozen feature (B, d) of images with their patches in disorder, the mean over a few orders."""
        s = self.settings
        orders = shuffles(s.shuffles, grid=s.grid, seed=s.seed)
        views = [shuffled(images, order, grid=s.grid) for order in orders] or [images]
        return F.normalize(torch.stack([self.backbone.embed(view) for view in views]).mean(dim=0), dim=1)

    def choose(self, images: Tensor, features: Tensor) -> Tensor:
        """The domain of the nearest centre of shuffled images."""
        style = self.style(images) if self.settings.shuffles else features
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
        unified.load_state_dict({name.removeprefix("unified/"): own for name, own in state.shared.items()})
        self.unified = unified.requires_grad_(False).eval()
        for name, learned in state.domains.items():
            expert = self._expert(unified, learned.facts["classes"], name, first=learned.facts["first"])
            expert.register_buffer("centres", torch.empty_like(learned.tensors["expert/centres"]))
            self.pool.add(name, Member.restored(expert, learned, self.backbone))
