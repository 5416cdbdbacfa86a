"""S-Prompts: every domain has prompt tokens and a head of its own, learned apart from all others on a frozen backbone.
Where a domain lies is told by five k-means centres of its frozen features. At test time the nearest centre says whose
prompts and head are used.

Trained: M prompt tokens and a linear head (S-iPrompts), or M prompt tokens and learned context words before CLIP's
class names (S-liPrompts), for each domain.
Stored: these, and five centres a domain.
Paper: Wang, Huang and Hong, "S-Prompts Learning with Pre-trained Transformers: An Occam's Razor for Domain Incremental
Learning", NeurIPS 2022, arXiv 2207.12819.
Here: prompts begin from a normal distribution of about the released one's spread. Centres are found on images as
evaluation sees them, not on crops. All domains have one weight decay. The released code's weight decay also shrinks
prompts of old domains; here nothing touches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from bpg.config import settings
from bpg.data.domain import Domain
from bpg.data.transforms import Augmentation
from bpg.experts.expert import Expert, ExpertSettings
from bpg.experts.head import check_text
from bpg.methods.parts.pool import Member, Separate
from bpg.methods.parts.selection import nearest_centre
from bpg.methods.parts.ways import OWN
from bpg.randomness import generator_of
from bpg.store import State
from bpg.training import Optimisation


@settings
class SPromptsSettings:
    """What a domain's expert is, for DomainNet."""

    seed: Annotated[int, Field(ge=0)] = 0
    prompts: PositiveInt = 10  # tokens
    k: PositiveInt = 5  # centres a domain
    optimisation: Optimisation = Optimisation()
    augmentation: Augmentation = Augmentation()

    @property
    def parts(self) -> ExpertSettings:
        return ExpertSettings(prompts=self.prompts, parts="none")


@settings
class SliPromptsSettings(SPromptsSettings):
    """With context words."""

    context: PositiveInt = 16  # words, before a class's name

    @property
    def parts(self) -> ExpertSettings:
        return ExpertSettings(prompts=self.prompts, parts="none", head="text", context=self.context)


class SiPrompts(Separate):
    """Prompt tokens and a linear head for each domain, chosen by the nearest centre."""

    method = "s_iprompts"
    Settings = SPromptsSettings
    settings: SPromptsSettings
    usual = OWN

    def begin(self) -> None:
        super().begin()
        if self.settings.parts.head == "text":
            check_text(self.backbone)

    def choose(self, images: Tensor, features: Tensor) -> Tensor:
        """The domain of the nearest centre."""
        del images
        return nearest_centre(features, self.prototypes)

    def learn(self, domain: Domain) -> None:
        self.admit(domain)
        found = self.survey(domain)
        expert = self._expert(domain.classes, generator_of(self.settings.seed, domain.name, "weights"))
        self.train_expert(expert, domain)
        self.take_in(domain, found, expert)

    def restore(self, state: State) -> None:
        for name, learned in state.domains.items():
            expert = self._expert(learned.facts["classes"], generator_of(0))
            self.pool.add(name, Member.restored(expert, learned, self.backbone))

    def _expert(self, classes: Sequence[str], generator: torch.Generator) -> Expert:
        return Expert(self.backbone, classes, rank=1, settings=self.settings.parts, generator=generator)


class SliPrompts(SiPrompts):
    """Prompt tokens and context words for each domain on CLIP, chosen by the nearest centre."""

    method = "s_liprompts"
    Settings = SliPromptsSettings
    settings: SliPromptsSettings
