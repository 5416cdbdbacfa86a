"""C-Prompt: every domain adds prompts with keys to a pool, and an image's prompt is composed: the mean of the few whose
keys are nearest. While a domain is learned, its own prompts alone are chosen from; at test time all are, so that an
image may be composed of several domains. The head answers as it was on average, the slower the more it changes.

Trained: the newest domain's prompts and keys, prompts of the first blocks that all domains share, and one head.
Stored: all prompts and keys, the shared ones, the head and its average.
Paper: Liu, Peng and Zhou, "Compositional Prompting for Anti-Forgetting in Domain Incremental Learning", IJCV 2024.
Here: old prompts stay bit for bit; in the released code weight decay shrinks them. Domains that are still to come do
not compete at test time. The pixels are those of all methods here, where the released code leaves them from 0 to 1.
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
from bpg.methods.parts.prompted import Prompts, Slotted, check_blocks, halves, nearest_keys
from bpg.randomness import generator_of
from bpg.store import State
from bpg.training import Optimisation

Query = Literal["first", "mean"]  # of the patches' frozen features


@settings
class CPromptSettings:
    """For DomainNet."""

    seed: Annotated[int, Field(ge=0)] = 0
    prompts: PositiveInt = 25  # n, a domain
    chosen: PositiveInt = 3  # N, an image
    length: PositiveInt = 8  # half of it keys, half values
    blocks: tuple[int, ...] | None = (2, 3, 4)  # None: from 2 on
    shared: PositiveInt = 4  # tokens of each shared prompt
    shared_blocks: tuple[int, ...] = (0, 1)
    query: Query = "first"
    pull: NonNegativeFloat = 0.5  # of the chosen keys to the query
    inertia: PositiveFloat = 10.0  # h: the head's average moves by exp(change / usual change - h)
    k: PositiveInt = 5  # prototypes a domain, for other routers
    optimisation: Optimisation = Optimisation(
        epochs=5, optimizer="adamw", lr=6e-4, weight_decay=0.01, schedule="constant"
    )
    augmentation: Augmentation = Augmentation()


class Slot(nn.Module):
    """Prompts (n, blocks, L, d) of a domain and their keys (n, d)."""

    def __init__(self, prompts: Tensor, keys: Tensor) -> None:
        super().__init__()
        self.prompts, self.keys = nn.Parameter(prompts), nn.Parameter(keys)


class Composed(Prompts):
    """The pool, what all domains share, and a head with its average."""

    average_weight: Tensor
    average_bias: Tensor
    before: Tensor  # the shared prompts, a step ago
    moved: Tensor  # how far they have moved in a step, summed over steps
    steps: Tensor

    def __init__(self, backbone: Backbone, s: CPromptSettings) -> None:
        super().__init__(backbone)
        self.blocks = s.blocks if s.blocks is not None else tuple(range(2, backbone.depth))
        self.s = s
        generator = generator_of(s.seed, "shared")
        self.shared = nn.Parameter(torch.rand(len(s.shared_blocks), s.shared, backbone.width, generator=generator))
        self.register_buffer("average_weight", torch.empty(0, backbone.feature_width))
        self.register_buffer("average_bias", torch.empty(0))
        self.register_buffer("before", self.shared.detach().clone())
        self.register_buffer("moved", torch.zeros((), dtype=torch.float64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def query(self, images: Tensor, backbone: Backbone) -> Tensor:
        """What an image is known by, (B, d): the frozen feature of its first patch, or their mean."""
        with torch.no_grad():
            patches: Tensor = backbone(images, Tuning(readout="all"))[:, backbone.vit.config.specials :]
        return patches[:, 0] if self.s.query == "first" else patches.mean(dim=1)

    def compose(self, query: Tensor, slots: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor]:
        """The mean of the chosen prompts (B, blocks, L, d), which they are (B, N), and their keys' cosines (B, N)."""
        which, cosines = nearest_keys(query, torch.cat([slot.keys for slot in slots]), self.s.chosen)
        prompts = torch.cat([slot.prompts for slot in slots])
        return prompts[which].mean(dim=1), which, cosines

    def read(self, images: Tensor, prompts: Tensor, backbone: Backbone, *, average: bool = False) -> Tensor:
        """Logits (B, C) with prompts (B, blocks, L, d)."""
        shared = zip(self.s.shared_blocks, self.shared, strict=True)
        own = zip(self.blocks, prompts.unbind(dim=1), strict=True)
        prefix = {block: halves(prompt, projected=False) for block, prompt in (*shared, *own)}
        features = backbone(images, Tuning(prefix=prefix))
        if average:
            return F.linear(features, self.average_weight, self.average_bias)
        return self.head(features)  # type: ignore[no-any-return]

    def grow_average(self, known: Sequence[str]) -> None:
        """Rows for classes that are new; the average of those that were `known` stays."""
        places = self.head.places(known)
        for name, now in self.head.state_dict().items():
            wide, average = now.clone(), getattr(self, f"average_{name}")
            wide[places] = average
            setattr(self, f"average_{name}", wide)

    @torch.no_grad()
    def step(self) -> None:
        """Move the average after a training step: the less, the more the shared prompts have moved."""
        change = (self.shared - self.before).double().norm()
        self.before.copy_(self.shared)
        self.steps += 1
        self.moved += change
        usual = self.moved / self.steps + 1e-5
        stay = (1 - torch.exp(change / usual - self.s.inertia)).clamp(0, 1).float() if self.steps > 1 else 0.0
        for average, now in ((self.average_weight, self.head.weight), (self.average_bias, self.head.bias)):
            average.copy_(stay * average + (1 - stay) * now)  # type: ignore[operator]


class CPrompt(Slotted):
    """Prompts of all domains in one pool, composed for each image; the head answers as it was on average."""

    method = "c_prompt"
    Settings = CPromptSettings
    settings: CPromptSettings

    def build(self) -> Composed:
        network = Composed(self.backbone, self.settings)
        check_blocks((*network.blocks, *self.settings.shared_blocks), self.backbone.depth)
        return network.to(self.backbone.device)

    def empty(self, network: Composed, name: str) -> Slot:
        s, generator = self.settings, generator_of(self.settings.seed, name, "weights")
        shape = (s.prompts, len(network.blocks), s.length, self.backbone.width)
        prompts = 2 * torch.rand(shape, generator=generator) - 1
        return Slot(prompts, torch.rand(s.prompts, self.backbone.feature_width, generator=generator))

    def learn(self, domain: Domain) -> None:
        self.admit(domain)
        network = self.grown(domain)
        network.grow_average(self.classes)
        self.prepare(network, domain)
        self.settle(self.train(network, domain, self.loss(domain), after=network.step), domain)

    def prepare(self, network: Composed, domain: Domain) -> None:
        """Change what the domain's prompts begin as."""

    def restore(self, state: State) -> None:
        rows = torch.empty(len(state.facts["classes"]), self.backbone.feature_width)
        self.network.average_weight, self.network.average_bias = rows, rows[:, 0].clone()
        super().restore(state)

    def loss(self, domain: Domain) -> Any:
        """To name the class by the domain's own prompts, whose keys are drawn to the images."""

        def loss(network: Composed, images: Tensor, rows: Tensor) -> Tensor:
            query = network.query(images, self.backbone)
            prompts, _, cosines = network.compose(query, [network.slot(domain.name)])
            away = (1 - cosines).sum(dim=1)
            return self.named(network.read(images, prompts, self.backbone), rows) + self.settings.pull * away

        return loss

    def answer(self, network: Composed, images: Tensor) -> tuple[Tensor, Tensor]:
        prompts, which, _ = network.compose(network.query(images, self.backbone), list(network.slots))
        shares = F.one_hot(which // self.settings.prompts, len(network.slots)).double().mean(dim=1)
        return network.read(images, prompts, self.backbone, average=True), shares

    def forced(self, network: Composed, images: Tensor, name: str, backbone: Backbone) -> Tensor:
        prompts, _, _ = network.compose(network.query(images, backbone), [network.slot(name)])
        return network.read(images, prompts, backbone, average=True)
