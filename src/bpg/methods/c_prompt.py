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

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from bpg.backbones.backbone import Backbone
from bpg.backbones.tuning import Tuning
from bpg.config import settings
from bpg.data.domain import Domain
from bpg.data.transforms import Augmentation
from bpg.methods.parts.heads import AveragedHead
from bpg.methods.parts.prompted import Prompts, Slot, Slotted, check_blocks, nearest_keys, patch_query, prefixes
from bpg.methods.parts.single import SingleLoss
from bpg.randomness import generator_of
from bpg.training import Optimisation

Query = Literal["first", "mean"]  # of the patches' frozen features
Even = Annotated[int, Field(gt=0, multiple_of=2)]


@settings
class CPromptSettings:
    """For DomainNet."""

    seed: Annotated[int, Field(ge=0)] = 0
    prompts: PositiveInt = 25  # n, a domain
    chosen: PositiveInt = 3  # N, an image
    length: Even = 8  # half of it keys, half values
    blocks: tuple[int, ...] | None = (2, 3, 4)  # None: from 2 on
    shared: Even = 4  # tokens of each shared prompt
    shared_blocks: tuple[int, ...] = (0, 1)
    query: Query = "first"
    pull: NonNegativeFloat = 0.5  # of the chosen keys to the query
    inertia: PositiveFloat = 10.0  # h: the head's average moves by exp(change / usual change - h)
    k: PositiveInt = 5  # prototypes a domain, for other routers
    optimisation: Optimisation = Optimisation(
        epochs=5, optimizer="adamw", lr=6e-4, weight_decay=0.01, schedule="constant"
    )
    augmentation: Augmentation = Augmentation()


class Composed(Prompts):
    """The pool, what all domains share, and a head with its average."""

    head: AveragedHead
    before: Tensor  # the shared prompts, a step ago
    moved: Tensor  # how far they have moved in a step, summed over steps
    steps: Tensor

    def __init__(self, backbone: Backbone, s: CPromptSettings) -> None:
        super().__init__(AveragedHead(backbone.feature_width))
        self.blocks = s.blocks if s.blocks is not None else tuple(range(2, backbone.depth))
        self.s = s
        generator = generator_of(s.seed, "shared")
        self.shared = nn.Parameter(torch.rand(len(s.shared_blocks), s.shared, backbone.width, generator=generator))
        self.register_buffer("before", self.shared.detach().clone())
        self.register_buffer("moved", torch.zeros(()))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def compose(self, query: Tensor, slots: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor]:
        """The mean of the chosen prompts (B, blocks, L, d), which they are (B, N), and their keys' cosines (B, N)."""
        which, cosines = nearest_keys(query, torch.cat([slot.keys for slot in slots]), self.s.chosen)
        prompts = torch.cat([slot.prompts for slot in slots])
        return prompts[which].mean(dim=1), which, cosines

    def read(self, images: Tensor, prompts: Tensor, backbone: Backbone) -> Tensor:
        """Features (B, d) with prompts (B, blocks, L, d)."""
        shared = prefixes(self.s.shared_blocks, self.shared, projected=False)
        own = prefixes(self.blocks, prompts, projected=False)
        return backbone(images, Tuning(prefix=shared | own))  # type: ignore[no-any-return]

    @torch.no_grad()
    def step(self) -> None:
        """Move the head's average after a training step: the more, the more the shared prompts have just moved."""
        change = (self.shared - self.before).norm()
        self.before.copy_(self.shared)
        self.steps += 1
        self.moved += change
        usual = self.moved / self.steps + 1e-5
        stay = (1 - torch.exp(change / usual - self.s.inertia)).clamp(0, 1)
        self.head.follow(torch.where(self.steps > 1, stay, 0.0))


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
            query = patch_query(images, self.backbone, self.settings.query)
            prompts, _, cosines = network.compose(query, [slot])
            logits = network.head(network.read(images, prompts, self.backbone))
            return self.named(logits, rows) + self.settings.pull * (1 - cosines).sum(dim=1)

        return loss

    def answer(self, network: Composed, images: Tensor, backbone: Backbone) -> tuple[Tensor, Tensor]:
        query = patch_query(images, backbone, self.settings.query)
        prompts, which, _ = network.compose(query, list(network.slots))
        shares = F.one_hot(which // self.settings.prompts, len(network.slots)).float().mean(dim=1)
        return network.head.steady(network.read(images, prompts, backbone)), shares

    def forced(self, network: Composed, images: Tensor, name: str, backbone: Backbone) -> Tensor:
        prompts, _, _ = network.compose(patch_query(images, backbone, self.settings.query), [network.slot(name)])
        return network.head.steady(network.read(images, prompts, backbone))
