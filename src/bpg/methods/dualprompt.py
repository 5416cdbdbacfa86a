"""DualPrompt: what all domains have in common goes into prompts of the first blocks, which go on training, and what a
domain has for itself into prompts of the next blocks, which are its own. Each domain has a key that is drawn to its
images' frozen features. At test time the nearest key says whose prompts are used.

Trained: the common prompts, one head, and the newest domain's prompts and key.
Stored: the common prompts, the head, and every domain's prompts and key.
Paper: Wang et al., "DualPrompt: Complementary Prompting for Rehearsal-free Continual Learning", ECCV 2022, arXiv
2204.04799.
Here: each image has its own keys and values. Ports reshape where they should permute, so that images of a batch get
each other's, and a model tested one image at a time loses ten points. Only learned keys compete at test time. Prompts
begin as in ports, from -1 to 1; keys as in the released code, near 0, since a key that begins large is not drawn to its
images within a few hundred steps; the head as there, as nothing. Rate and batch are ours.
"""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from bpg.backbones.backbone import Backbone
from bpg.backbones.tuning import Tuning
from bpg.config import settings
from bpg.data.domain import Domain
from bpg.data.transforms import Augmentation
from bpg.methods.parts.heads import GrowingHead
from bpg.methods.parts.prompted import Prompts, Slot, Slotted, check_blocks, nearest_keys, prefixes
from bpg.randomness import generator_of
from bpg.training import Optimisation


@settings
class DualPromptSettings:
    """For domains, with ImageNet-R's lengths."""

    seed: Annotated[int, Field(ge=0)] = 0
    common: PositiveInt = 5  # keys and as many values a block
    common_blocks: tuple[int, ...] = (0, 1)
    own: PositiveInt = 20
    own_blocks: tuple[int, ...] = (2, 3, 4)
    pull: NonNegativeFloat = 1.0  # lambda, of the domain's key to the query
    k: PositiveInt = 5  # prototypes a domain, for other routers
    optimisation: Optimisation = Optimisation(
        epochs=5, optimizer="adamw", lr=1e-3, weight_decay=0.0, schedule="constant", clip_norm=1.0
    )
    augmentation: Augmentation = Augmentation()


class Dual(Prompts):
    """The common prompts, and those of each domain."""

    def __init__(self, backbone: Backbone, s: DualPromptSettings) -> None:
        super().__init__(GrowingHead(backbone.feature_width, zero=True))
        generator = generator_of(s.seed, "common")
        shape = (len(s.common_blocks), 2 * s.common, backbone.width)
        self.common = nn.Parameter(2 * torch.rand(shape, generator=generator) - 1)
        self.s = s

    def read(self, images: Tensor, prompts: Tensor, backbone: Backbone) -> Tensor:
        """Logits (B, C) with prompts (blocks, 2 L, d), or (B, blocks, 2 L, d) with some for each image."""
        common = prefixes(self.s.common_blocks, self.common, projected=True)
        own = prefixes(self.s.own_blocks, prompts, projected=True)
        logits: Tensor = self.head(backbone(images, Tuning(prefix=common | own)))
        return logits


class DualPrompt(Slotted):
    """Prompts that all domains share, and prompts of each domain, found by its key."""

    method = "dualprompt"
    Settings = DualPromptSettings
    settings: DualPromptSettings

    def build(self) -> Dual:
        s = self.settings
        check_blocks((*s.common_blocks, *s.own_blocks), self.backbone.depth)
        return Dual(self.backbone, s).to(self.backbone.device)

    def empty(self, network: Dual, name: str) -> Slot:
        """Prompts (blocks, 2 L, d) of a domain and its key (d,)."""
        s, generator = self.settings, generator_of(self.settings.seed, name, "weights")
        shape = (len(s.own_blocks), 2 * s.own, self.backbone.width)
        prompts = 2 * torch.rand(shape, generator=generator) - 1
        if others := network.others(name):  # begin where the domain before ended
            prompts = others[-1].prompts.detach().clone()
        return Slot(prompts=prompts, key=0.01 * torch.rand(self.backbone.feature_width, generator=generator))

    def learn(self, domain: Domain) -> None:
        self.admit(domain)

        def loss(network: Dual, images: Tensor, rows: Tensor) -> Tensor:
            slot = network.slot(domain.name)
            near = F.cosine_similarity(self.embed(images), slot.key[None])
            return self.named(network.read(images, slot.prompts, self.backbone), rows) - self.settings.pull * near

        self.settle(self.train(self.grown(domain), domain, loss), domain)

    def answer(self, network: Dual, images: Tensor, backbone: Backbone) -> tuple[Tensor, Tensor]:
        slots = [network.slot(name) for name in network.names]
        which, _ = nearest_keys(backbone.embed(images), torch.stack([slot.key for slot in slots]), 1)
        prompts = torch.stack([slot.prompts for slot in slots])[which[:, 0]]  # (B, blocks, 2 L, d)
        return network.read(images, prompts, backbone), F.one_hot(which[:, 0], len(network.slots))

    def forced(self, network: Dual, images: Tensor, name: str, backbone: Backbone) -> Tensor:
        return network.read(images, network.slot(name).prompts, backbone)
