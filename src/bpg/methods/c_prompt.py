"""C-Prompt: every domain adds prompts with keys to a pool, and an image's prompt is composed: the mean of the few whose
keys are nearest. While a domain is learned, its own prompts alone are chosen from; at test time all are, so that an
image may be composed of several domains. The head answers as it was on average over training steps.

Trained: the newest domain's prompts and keys, prompts of the first blocks that all domains share, and one head.
Stored: all prompts and keys, the shared ones, the head and its average.
Paper: Liu, Peng and Zhou, "Compositional Prompting for Anti-Forgetting in Domain Incremental Learning", IJCV 2024.
Here: old prompts stay bit for bit; in the released code weight decay shrinks them. Domains that are still to come do
not compete at test time. The pixels are those of all methods here, where the released code leaves them from 0 to 1 and
crops otherwise. The average needs thousands of steps at the published inertia: short trainings need a smaller one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bpg.backbones.backbone import Backbone
from bpg.data.domain import Domain
from bpg.methods.parts.composed import Composed, CPromptSettings
from bpg.methods.parts.prompted import Slot, Slotted, check_blocks, patch_query
from bpg.methods.parts.single import SingleLoss
from bpg.randomness import generator_of


class CPrompt(Slotted):
    """Prompts of all domains in one pool, composed for each image; the head answers as it was on average."""

    method = "c_prompt"
    Settings = CPromptSettings
    settings: CPromptSettings

    def build(self) -> Composed:
        network = Composed(self.backbone, self.settings)
        check_blocks((*self.settings.shared_blocks, *network.blocks), self.backbone.depth)
        return network.to(self.backbone.device)

    def empty(self, network: Composed, name: str) -> Slot:
        """Prompts (n, blocks, L, d) of a domain and their keys (n, d)."""
        s, generator = self.settings, generator_of(self.settings.seed, name, "weights")
        shape = (s.prompts, len(network.blocks), s.length, self.backbone.width)
        prompts = 2 * torch.rand(shape, generator=generator) - 1
        keys = torch.rand(s.prompts, self.backbone.feature_width, generator=generator)
        return Slot(prompts=prompts, keys=keys)

    def learn(self, domain: Domain) -> None:
        self.admit(domain)
        network = self.grown(domain)
        self.prepare(network, domain)
        self.settle(self.train(network, domain, self.loss(network, domain), after=network.step), domain)

    def prepare(self, network: Composed, domain: Domain) -> None:
        """Change what the domain's prompts begin as."""

    def loss(self, network: Composed, domain: Domain) -> SingleLoss:
        """To name the class by the domain's own prompts, whose keys are drawn to the images."""
        slot = network.slot(domain.name)

        def loss(network: Composed, images: Tensor, rows: Tensor) -> Tensor:
            return self.by_slot(network, slot, images, self.query(images, self.backbone), rows)

        return loss

    def by_slot(self, network: Composed, slot: Slot, images: Tensor, query: Tensor, rows: Tensor) -> Tensor:
        """The loss where a slot has the prompts and the query is known."""
        prompts, _, cosines = network.compose(query, [slot])
        logits = network.head(network.read(images, prompts, self.backbone))
        return self.named(logits, rows) + self.settings.pull * (1 - cosines).sum(dim=1)

    def query(self, images: Tensor, backbone: Backbone) -> Tensor:
        """What an image's prompts are chosen by, (B, d)."""
        return patch_query(images, backbone, self.settings.query)

    def answer(self, network: Composed, images: Tensor, backbone: Backbone) -> tuple[Tensor, Tensor]:
        query = self.query(images, backbone)
        prompts, which, _ = network.compose(query, list(network.slots))
        shares = F.one_hot(which // self.settings.prompts, len(network.slots)).float().mean(dim=1)
        return network.head.steady(network.read(images, prompts, backbone)), shares

    def forced(self, network: Composed, images: Tensor, name: str, backbone: Backbone) -> Tensor:
        prompts, _, _ = network.compose(self.query(images, backbone), [network.slot(name)])
        return network.head.steady(network.read(images, prompts, backbone))
