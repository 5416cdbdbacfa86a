"""CODA-Prompt: an image's prompt is a sum over components, each weighted by how well the image fits its key. How an
image is looked at for that, which channels of its frozen feature count, is learned for each component. Every domain
adds components at right angles to the old ones, which stay as they are.

Trained: the newest domain's components, with their keys and their attention, and one head.
Stored: all components, and the head.
Paper: Smith et al., "CODA-Prompt: COntinual Decomposed Attention-based Prompting for Rehearsal-Free Continual
Learning", CVPR 2023, arXiv 2211.13218.
Here: a domain gets a fixed number of components, so that the number of domains need not be known. The penalty on what
is not at right angles is 0 as in the released code. The rate falls by a cosine over steps, to 0. When there are more
components than channels, the last ones are drawn at random.
"""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from bpg.backbones.backbone import Backbone
from bpg.backbones.tuning import Tuning
from bpg.config import settings
from bpg.data.domain import Domain
from bpg.data.transforms import Augmentation
from bpg.methods.parts.heads import GrowingHead
from bpg.methods.parts.prompted import Prompted, Prompts, Slot, check_blocks, prefixes, right_angles
from bpg.randomness import generator_of
from bpg.training import Optimisation

TABLES = ("prompts", "keys", "attention")


@settings
class CODASettings:
    """As released."""

    seed: Annotated[int, Field(ge=0)] = 0
    components: PositiveInt = 16  # a domain; 100 over six domains
    length: Annotated[int, Field(gt=0, multiple_of=2)] = 8  # half of it keys, half values
    blocks: tuple[int, ...] = (0, 1, 2, 3, 4)
    penalty: NonNegativeFloat = 0.0  # mu, on what is not at right angles
    optimisation: Optimisation = Optimisation(epochs=5, optimizer="adamw", lr=1e-3, weight_decay=0.0)
    augmentation: Augmentation = Augmentation()


class Decomposed(Prompts):
    """The components of all domains."""

    def __init__(self, backbone: Backbone, s: CODASettings) -> None:
        super().__init__(GrowingHead(backbone.feature_width))
        self.blocks, self.length = s.blocks, s.length

    def table(self, name: str) -> Tensor:
        """A table of all domains, (blocks, all components, ...)."""
        return torch.cat([getattr(slot, name) for slot in self.slots], dim=1)

    def weights(self, query: Tensor) -> Tensor:
        """alpha (B, blocks, components): the cosine of the attended query and the key."""
        attention = self.table("attention")
        along = torch.einsum("bd,nmd->bnm", query, attention * F.normalize(self.table("keys"), dim=-1))
        length = torch.einsum("bd,nmd->bnm", query.square(), attention.square()).clamp(min=1e-16).sqrt()
        return along / length

    def forward(self, images: Tensor, backbone: Backbone) -> Tensor:
        with torch.no_grad():
            query = backbone(images)
        summed = torch.einsum("bnm,nmd->bnd", self.weights(query), self.table("prompts"))
        prompts = torch.unflatten(summed, -1, (self.length, -1))  # (B, blocks, L, d)
        prefix = prefixes(self.blocks, prompts, projected=True)
        logits: Tensor = self.head(backbone(images, Tuning(prefix=prefix)))
        return logits

    def crowding(self) -> Tensor:
        """How far all components are from right angles and length 1."""
        found = []
        for name in TABLES:
            rows = self.table(name)
            found.append((rows @ rows.mT - torch.eye(rows.shape[1]).to(rows)).square().mean(dim=(1, 2)).sum())
        return torch.stack(found).sum()


class CODAPrompt(Prompted):
    """Prompts summed from components by attention; every domain adds its own."""

    method = "coda_prompt"
    Settings = CODASettings
    settings: CODASettings

    def build(self) -> Decomposed:
        check_blocks(self.settings.blocks, self.backbone.depth)
        return Decomposed(self.backbone, self.settings).to(self.backbone.device)

    def empty(self, network: Decomposed, name: str) -> Slot:
        """Of each block: prompts (blocks, m, L d), keys and attention (blocks, m, d)."""
        s, generator = self.settings, generator_of(self.settings.seed, name, "weights")
        widths = (s.length * self.backbone.width, self.backbone.feature_width, self.backbone.feature_width)
        tables, others = {}, network.others(name)
        for table, width in zip(TABLES, widths, strict=True):
            old = [torch.empty(len(s.blocks), 0, width), *(getattr(slot, table).detach().cpu() for slot in others)]
            tables[table] = torch.stack([right_angles(own, s.components, generator) for own in torch.cat(old, dim=1)])
        return Slot(**tables)

    def learn(self, domain: Domain) -> None:
        def loss(network: Decomposed, images: Tensor, rows: Tensor) -> Tensor:
            return self.task(network, images, rows) + self.settings.penalty * network.crowding()

        network = self.grown(domain)
        self.network = self.train(network, domain, loss if self.settings.penalty else None)
