"""KA-Prompt: C-Prompt whose new prompts are made to go together with the old ones. They begin as copies of the old
prompts that cover the new domain best, chosen one by one. While they are learned, mixtures of new and old prompts are
also to give the right answer in the model before.

Trained: as C-Prompt.
Stored: as C-Prompt.
Paper: Xu et al., "Componential Prompt-Knowledge Alignment for Domain Incremental Learning", ICML 2025, arXiv
2505.04575.
Here: as for C-Prompt. The cover looks at images as evaluation sees them.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from bpg.config import settings
from bpg.data.domain import Domain
from bpg.methods.base import prepared
from bpg.methods.c_prompt import Composed, CPrompt, CPromptSettings, Query
from bpg.methods.parts.prompted import nearest_keys
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
        if not self.network.names or domain.name in self.network.names:
            return
        prompts, keys = pooled(self.network)
        batches = prepared(self.backbone, domain.train, 32)
        query = torch.cat([network.query(batch, self.backbone) for batch in batches])
        fit = (F.normalize(keys, dim=1) @ F.normalize(query, dim=1).T + 1) / 2  # (old prompts, images)
        generator = generator_of(self.settings.seed, domain.name, "cover")
        pairs = torch.tensor(cover(fit.cpu(), self.settings.prompts, generator)).to(keys.device)
        slot = network.slot(domain.name)
        slot.prompts.copy_(prompts[pairs].mean(dim=1))
        slot.keys.copy_(keys[pairs].mean(dim=1))

    def loss(self, domain: Domain) -> Any:
        plain, s = super().loss(domain), self.settings
        if not self.network.names:
            return plain
        old = deepcopy(self.network)  # its shared prompts, its pool and its average head
        prompts, keys = pooled(old)

        def loss(network: Composed, images: Tensor, rows: Tensor) -> Tensor:
            query, slot = network.query(images, self.backbone), network.slot(domain.name)
            new, near = nearest_keys(query, slot.keys.detach(), s.chosen)
            known, cosines = nearest_keys(query, keys, s.chosen)
            weights = torch.exp((cosines - near.amin(dim=1, keepdim=True)).clamp(max=0) / s.temperature)
            weights = torch.cat([torch.ones_like(near), weights], dim=1)  # (B, 2 N)
            both = torch.cat([slot.prompts[new], prompts[known]], dim=1)
            mixed = torch.einsum("bn,bnkld->bkld", weights / weights.sum(dim=1, keepdim=True), both)
            known_rows = network.head.places(old.head.classes).to(rows.device)
            logits = old.read(images, mixed, self.backbone, average=True)
            wide = torch.full((len(images), len(network.head.classes)), -1e4).to(logits)
            wide = wide.index_copy(1, known_rows, logits)
            aligned = torch.where(torch.isin(rows, known_rows), self.named(wide, rows), 0.0)
            found: Tensor = plain(network, images, rows) + s.alignment * aligned
            return found

        return loss


def pooled(network: Composed) -> tuple[Tensor, Tensor]:
    """All prompts (n, blocks, L, d) and their keys (n, d)."""
    slots = [network.slot(name) for name in network.names]
    return torch.cat([slot.prompts for slot in slots]), torch.cat([slot.keys for slot in slots])


def cover(fit: Tensor, count: int, generator: torch.Generator) -> list[tuple[int, int]]:
    """Rows of `fit` (prompts, images), from 0 to 1, that cover the images best, one after another, each as a pair with
    itself; when no row adds anything, pairs of those that were taken, at random.
    """
    best = torch.zeros(fit.shape[1])
    taken: list[int] = []
    while len(taken) < min(count, len(fit)):
        gain = (fit - best).clamp(min=0).sum(dim=1)
        gain[taken] = 0.0
        if float(gain.max()) <= 0:
            break
        taken.append(int(gain.argmax()))
        best = torch.maximum(best, fit[taken[-1]])
    pairs = [(row, row) for row in taken]
    while len(pairs) < count:
        two = torch.randint(len(taken), (2,), generator=generator).tolist()
        pairs.append((taken[two[0]], taken[two[1]]))
    return pairs
