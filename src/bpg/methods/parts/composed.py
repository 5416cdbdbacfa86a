"""A pool of prompts that are composed for each image, and a head that answers as it was on average: C-Prompt and its
kin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from bpg.backbones.backbone import Backbone
from bpg.backbones.tuning import Tuning
from bpg.config import settings
from bpg.data.transforms import Augmentation
from bpg.methods.parts.heads import AveragedHead
from bpg.methods.parts.prompted import Prompts, nearest_keys, prefixes
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
