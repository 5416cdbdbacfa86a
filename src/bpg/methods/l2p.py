"""L2P: a pool of prompts with a key each is shared by all domains. Every image takes the few whose keys are nearest to
its frozen feature, and what becomes of these tokens in the backbone is what the head reads. Prompts and head go on
training with each domain; images that are alike meet in the same prompts, whatever their domain.

Trained: the pool, its keys and one head.
Stored: these; with `memory.images` above 0, images too.
Paper: Wang et al., "Learning to Prompt for Continual Learning", CVPR 2022, arXiv 2112.08654.
Here: the backbone is frozen; in the released setting for CORe50 it is not. Each image chooses for itself; in the
released code a batch votes, which tells it the domain. Layout and beginnings are those of the released code: tokens
without positions, values from 0 to 0.01, a head that begins as nothing.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from bpg.backbones.backbone import Backbone
from bpg.backbones.tuning import Tuning
from bpg.config import settings
from bpg.data.domain import Domain
from bpg.data.transforms import Augmentation
from bpg.methods.parts.heads import GrowingHead
from bpg.methods.parts.memory import MemorySettings
from bpg.methods.parts.prompted import Prompted, Prompts, nearest_keys
from bpg.randomness import generator_of
from bpg.training import Optimisation


@settings
class L2PSettings:
    """Sizes as released for CORe50, optimisation as in PILOT, at a larger batch."""

    seed: Annotated[int, Field(ge=0)] = 0
    pool: PositiveInt = 10  # M, prompts
    length: PositiveInt = 5  # tokens a prompt
    chosen: PositiveInt = 4  # N, prompts an image
    pull: NonNegativeFloat = 1.0  # lambda, of the chosen keys to the query
    memory: MemorySettings = MemorySettings(images=0)
    optimisation: Optimisation = Optimisation(
        epochs=5, optimizer="adamw", lr=1.875e-3, weight_decay=0.0, schedule="constant", clip_norm=1.0
    )
    augmentation: Augmentation = Augmentation()


class Pool(Prompts):
    """Prompts (M, L, d) and their keys (M, d)."""

    def __init__(self, backbone: Backbone, s: L2PSettings) -> None:
        super().__init__(GrowingHead(backbone.feature_width, zero=True))
        generator = generator_of(s.seed, "pool")
        self.prompts = nn.Parameter(0.01 * torch.rand(s.pool, s.length, backbone.width, generator=generator))
        self.keys = nn.Parameter(0.01 * torch.rand(s.pool, backbone.feature_width, generator=generator))
        self.chosen = s.chosen

    def read(self, images: Tensor, backbone: Backbone) -> tuple[Tensor, Tensor]:
        """Logits (B, C), and the cosines of the chosen keys (B, N)."""
        with torch.no_grad():
            query = backbone(images)
        which, cosines = nearest_keys(query, self.keys, self.chosen)
        tokens = backbone(images, Tuning(tokens=self.prompts[which].flatten(1, 2), readout="tokens"))
        return self.head(tokens.mean(dim=1)), cosines

    def forward(self, images: Tensor, backbone: Backbone) -> Tensor:
        return self.read(images, backbone)[0]


class L2P(Prompted):
    """A pool of prompts that all domains share, chosen by the nearest keys."""

    method = "l2p"
    Settings = L2PSettings
    settings: L2PSettings

    def build(self) -> Pool:
        return Pool(self.backbone, self.settings).to(self.backbone.device)

    def learn(self, domain: Domain) -> None:
        network = self.grown(domain)

        def loss(network: Pool, images: Tensor, rows: Tensor) -> Tensor:
            logits, cosines = network.read(images, self.backbone)
            return self.named(logits, rows) - self.settings.pull * cosines.sum(dim=1)

        network = self.train(network, domain, loss, **self.replayed(network, domain))
        self.memory, self.network = self.remembered(network, domain), network
