"""S-Prompts: every domain has prompt tokens and a head of its own, learned apart from all others on a frozen backbone.
Where a domain lies is told by five k-means centres of its frozen features. At test time the nearest centre says whose
prompts and head are used.

Trained: M prompt tokens and a linear head (S-iPrompts), or M prompt tokens and learned context words before CLIP's
class names (S-liPrompts), for each domain.
Stored: these, and five centres a domain.
Paper: Wang, Huang and Hong, "S-Prompts Learning with Pre-trained Transformers: An Occam's Razor for Domain Incremental
Learning", NeurIPS 2022, arXiv 2207.12819.
Here: centres are found on images as evaluation sees them, not on crops. All domains have one weight decay. The released
code's weight decay also shrinks prompts of old domains; here nothing touches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from bpg.config import settings
from bpg.data.domain import TEMPLATE, Domain
from bpg.data.transforms import Augmentation
from bpg.experts.expert import Expert, ExpertSettings, parameter_count
from bpg.experts.head import check_text
from bpg.methods.parts.pool import Member, Separate
from bpg.methods.parts.selection import nearest_centre
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
    def expert(self) -> ExpertSettings:
        return ExpertSettings(prompts=self.prompts, parts="none")


@settings
class SliPromptsSettings(SPromptsSettings):
    """With context words."""

    context: PositiveInt = 16  # words, before a class's name

    @property
    def expert(self) -> ExpertSettings:
        return ExpertSettings(prompts=self.prompts, parts="none", head="text", context=self.context)


class SiPrompts(Separate):
    """Prompt tokens and a linear head for each domain, chosen by the nearest centre."""

    method = "s_iprompts"
    Settings = SPromptsSettings
    settings: SPromptsSettings
    has_own = True

    def begin(self) -> None:
        super().begin()
        self.pool.choose = self.choose
        if self.settings.expert.head == "text":
            check_text(self.backbone)

    def choose(self, images: Tensor, features: Tensor) -> Tensor:
        """The domain of the nearest centre."""
        del images
        return nearest_centre(features, self.prototypes)

    def learn(self, domain: Domain) -> None:
        self.admit(domain)
        s, found = self.settings, self.survey(domain)
        expert = self.expert(domain.classes, generator_of(s.seed, domain.name, "weights"), domain.template)
        self.train_expert(expert, domain)
        facts = {
            "classes": list(domain.classes),
            "images": len(domain.train),
            "images_sha256": found.sha256,
            "parameters": parameter_count(self.backbone, len(domain.classes), rank=1, settings=s.expert),
            "template": domain.template,
        }
        self.pool.add(domain.name, Member(expert, self.locate(domain, found), facts))

    def restore(self, state: State) -> None:
        for name, learned in state.domains.items():
            expert = self.expert(learned.facts["classes"], generator_of(0), learned.facts["template"])
            self.pool.add(name, Member.restored(expert, learned, self.backbone))

    def expert(self, classes: Sequence[str], generator: torch.Generator, template: str = TEMPLATE) -> Expert:
        """A domain's expert that has learned nothing yet."""
        return Expert(
            self.backbone, classes, rank=1, settings=self.settings.expert, generator=generator, template=template
        )


class SliPrompts(SiPrompts):
    """Prompt tokens and context words for each domain on CLIP, chosen by the nearest centre."""

    method = "s_liprompts"
    Settings = SliPromptsSettings
    settings: SliPromptsSettings
