"""KA-Prompt: C-Prompt whose new prompts are made to go together with the old ones. They begin as copies of the old
prompts that cover the new domain best, chosen one by one. While they are learned, mixtures of new and old prompts are
also to give the right answer in the model before.

Trained: as C-Prompt.
Stored: as C-Prompt.
Paper: Xu et al., "Componential Prompt-Knowledge Alignment for Domain Incremental Learning", ICML 2025, arXiv
2505.04575.
Here: as for C-Prompt. The cover looks at images as evaluation sees them. What old prompts weigh beside new ones follows
from the cosines of their keys; the released code scales the new keys otherwise, and lets the alignment move them, too.
"""

from __future__ import annotations

from copy import deepcopy

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from bpg.config import settings
from bpg.data.domain import Domain
from bpg.methods.base import passed
from bpg.methods.c_prompt import CPrompt
from bpg.methods.parts.composed import Composed, CPromptSettings, Query
from bpg.methods.parts.prompted import nearest_keys
from bpg.methods.parts.single import SingleLoss
from bpg.randomness import generator_of
from bpg.training import Optimisation


@settings
class KAPromptSettings(CPromptSettings):
    """For DomainNet."""

    blocks: tuple[int, ...] | None = None
    query: Query = "mean"
    alignment: NonNegativeFloat = 0.1  # of the answer of mixed prompts in the model before
    temperature: PositiveFloat = 0.01  # tau: how soon an old prompt that fits worse counts less
    optimisation: Optimisation = Optimisation(
        epochs=10, optimizer="adamw", lr=6e-4, weight_decay=0.01, schedule="constant"
    )


class KAPrompt(CPrompt):
    """C-Prompt with new prompts that begin from old ones and stay fit to be mixed with them."""

    method = "ka_prompt"
    Settings = KAPromptSettings
    settings: KAPromptSettings

    @torch.no_grad()
    def prepare(self, network: Composed, domain: Domain) -> None:
        """Begin with the old prompts that cover the domain's images best."""
        if not network.others(domain.name):
            return
        prompts, keys = pooled(network, domain.name)
        query = passed(self, domain.train, lambda images: self.query(images, self.backbone))
        near = (F.normalize(keys, dim=1) @ F.normalize(query, dim=1).T + 1) / 2  # (old prompts, images)
        generator = generator_of(self.settings.seed, domain.name, "cover")
        pairs = torch.tensor(cover(near.cpu(), self.settings.prompts, generator)).to(keys.device)
        slot = network.slot(domain.name)
        slot.prompts.copy_(prompts[pairs].mean(dim=1))
        slot.keys.copy_(keys[pairs].mean(dim=1))

    def loss(self, network: Composed, domain: Domain) -> SingleLoss:
        s, slot = self.settings, network.slot(domain.name)
        if not network.others(domain.name) or not s.alignment:
            return super().loss(network, domain)
        old = deepcopy(self.network)  # its shared prompts and its average head
        prompts, keys = pooled(old, domain.name)
        known = network.head.places(old.head.classes)

        def loss(network: Composed, images: Tensor, rows: Tensor) -> Tensor:
            query = self.query(images, self.backbone)
            new, near = nearest_keys(query, slot.keys.detach(), s.chosen)
            far, cosines = nearest_keys(query, keys, s.chosen)
            both = torch.cat([slot.prompts[new], prompts[far]], dim=1)
            mixed = torch.einsum("bn,bnkld->bkld", mixture(near, cosines, s.temperature), both)
            logits = old.head.steady(old.read(images, mixed, self.backbone))
            found = rows[:, None] == known.to(rows.device)  # a class that is new cannot be asked of the model before
            aligned = torch.where(found.any(dim=1), self.named(logits, found.int().argmax(dim=1)), 0.0)
            return self.by_slot(network, slot, images, query, rows) + s.alignment * aligned

        return loss


def mixture(near: Tensor, far: Tensor, temperature: float) -> Tensor:
    """Shares (B, 2 N) of new and old prompts: an old one whose cosine is below all new ones' counts less."""
    less = torch.exp((far - near.amin(dim=1, keepdim=True)).clamp(max=0) / temperature)
    weights = torch.cat([torch.ones_like(near), less], dim=1)
    return weights / weights.sum(dim=1, keepdim=True)


def pooled(network: Composed, but: str) -> tuple[Tensor, Tensor]:
    """All prompts (n, blocks, L, d) and their keys (n, d), those of one domain aside."""
    slots = network.others(but)
    return torch.cat([slot.prompts for slot in slots]), torch.cat([slot.keys for slot in slots])


def cover(fit: Tensor, count: int, generator: torch.Generator) -> list[tuple[int, int]]:
    """Rows of `fit` (prompts, images), from 0 to 1, that cover the images best, one after another, each as a pair with
    itself; when no row adds anything, pairs of those that were taken, at random.
    """
    best = torch.zeros(fit.shape[1])
    taken: list[int] = []
    while len(taken) < count:
        gain = (fit - best).clamp(min=0).sum(dim=1)
        if float(gain.max()) <= 0:
            break
        taken.append(int(gain.argmax()))
        best = torch.maximum(best, fit[taken[-1]])
    pairs = [(row, row) for row in taken]
    while len(pairs) < count:
        two = torch.randint(len(taken), (2,), generator=generator).tolist()
        pairs.append((taken[two[0]], taken[two[1]]))
    return pairs
