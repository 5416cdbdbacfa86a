"""CODA-Prompt: an image's prompt is a sum over components, each weighted by how well the image fits its key. How an
image is looked at for that, which channels of its frozen feature count, is learned for each component. Every domain
adds components at right angles to the old ones, which stay as they are.

Trained: the newest domain's components, with their keys and their attention, and one head.
Stored: all components, and the head.
Paper: Smith et al., "CODA-Prompt: COntinual Decomposed Attention-based Prompting for Rehearsal-Free Continual
Learning", CVPR 2023, arXiv 2211.13218.
Here: a domain gets a fixed number of components, so that the number of domains need not be known. The penalty on what
is not at right angles is 0 as in the released code. The rate falls by a cosine over steps, to 0.
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
from bpg.methods.parts.prompted import Prompted, Prompts, check_blocks, halves
from bpg.randomness import generator_of
from bpg.training import Optimisation

TABLES = ("prompts", "keys", "attention")


@settings
class CODASettings:
    """As released."""

    seed: Annotated[int, Field(ge=0)] = 0
    components: PositiveInt = 16  # a domain; 100 over six domains
    length: PositiveInt = 8  # half of it keys, half values
    blocks: tuple[int, ...] = (0, 1, 2, 3, 4)
    penalty: NonNegativeFloat = 0.0  # mu, on what is not at right angles
    optimisation: Optimisation = Optimisation(epochs=5, optimizer="adamw", lr=1e-3, weight_decay=0.0)
    augmentation: Augmentation = Augmentation()


class Components(nn.Module):
    """Of one domain, for each block: prompts (blocks, m, L d), keys and attention (blocks, m, d)."""

    def __init__(self, prompts: Tensor, keys: Tensor, attention: Tensor) -> None:
        super().__init__()
        self.prompts, self.keys, self.attention = map(nn.Parameter, (prompts, keys, attention))


class Decomposed(Prompts):
    """The components of all domains."""

    def __init__(self, backbone: Backbone, s: CODASettings) -> None:
        super().__init__(backbone)
        self.blocks, self.length = s.blocks, s.length

    def table(self, name: str) -> Tensor:
        """A table of all domains, (blocks, all components, ...)."""
        return torch.cat([getattr(slot, name) for slot in self.slots], dim=1)

    def weights(self, query: Tensor) -> Tensor:
        """alpha (B, blocks, components): the cosine of the attended query and the key."""
        attended = query[:, None, None] * self.table("attention")
        return F.cosine_similarity(attended, self.table("keys"), dim=-1)

    def forward(self, images: Tensor, backbone: Backbone) -> Tensor:
        with torch.no_grad():
            query = backbone(images)
        summed = torch.einsum("bnm,nmd->bnd", self.weights(query), self.table("prompts"))
        prompts = torch.unflatten(summed, -1, (self.length, -1)).unbind(dim=1)  # of each block (B, L, d)
        prefix = {block: halves(own, projected=True) for block, own in zip(self.blocks, prompts, strict=True)}
        logits: Tensor = self.head(backbone(images, Tuning(prefix=prefix)))
        return logits

    def apart(self) -> Tensor:
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

    def empty(self, network: Decomposed, name: str) -> Components:
        s, generator = self.settings, generator_of(self.settings.seed, name, "weights")
        widths = (s.length * self.backbone.width, self.backbone.feature_width, self.backbone.feature_width)
        tables = []
        for table, width in zip(TABLES, widths, strict=True):
            known = network.table(table).detach().cpu() if network.names else torch.empty(len(s.blocks), 0, width)
            tables.append(torch.stack([right_angles(own, s.components, generator) for own in known]))
        return Components(*tables)

    def learn(self, domain: Domain) -> None:
        def loss(network: Decomposed, images: Tensor, rows: Tensor) -> Tensor:
            return self.task(network, images, rows) + self.settings.penalty * network.apart()

        network = self.grown(domain)
        self.network = self.train(network, domain, loss if self.settings.penalty else None)


def right_angles(known: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` rows (count, d) of length 1 at right angles to those `known` (n, d) and to each other, by Gram-Schmidt.

    Where there is no such direction left, a random one takes its place.
    """
    width = known.shape[1]
    basis: list[Tensor] = []
    for row in known.double():  # learned rows are no longer at right angles to each other
        _extend(basis, row)
    made: list[Tensor] = []
    while len(made) < count:
        drawn = torch.randn(width, dtype=torch.float64, generator=generator)
        fresh = _extend(basis, drawn)
        made.append(fresh if fresh is not None else F.normalize(drawn, dim=0))
    return torch.stack(made).float()


def _extend(basis: list[Tensor], row: Tensor) -> Tensor | None:
    """What is left of `row` at right angles to the basis, of length 1 and now part of it; None if nothing is."""
    left = row
    if basis:
        known = torch.stack(basis)
        for _ in range(2):  # once more, for what rounding left
            left = left - (known @ left) @ known
    if len(basis) >= len(row) or left.norm() < 1e-6 * row.norm():
        return None
    basis.append(left / left.norm())
    return basis[-1]
