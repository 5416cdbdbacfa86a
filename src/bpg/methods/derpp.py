"""DER++: images of earlier domains are kept together with the logits that the model gave them then. With every batch of
the new domain, one draw of them is to get the same logits again, and another draw the right label. The logits carry
more of what the model knew than labels do.

Trained: the whole network and one head.
Stored: the network, M images, and C logits of each.
Paper: Buzzega et al., "Dark Experience for General Continual Learning: a Strong, Simple Baseline", NeurIPS 2020, arXiv
2004.07211.
Here: logits are taken of the image as evaluation sees it, when its domain is learned; in mammoth, of a crop, in the
middle of training. The memory changes when a domain is learned, not within it. One rate of 1e-3 trains backbone and
head, as PILOT fine-tunes, where others give the head 1e-2.
"""

from __future__ import annotations

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from bpg.config import settings
from bpg.data.domain import Domain
from bpg.methods.base import passed
from bpg.methods.er import ERSettings
from bpg.methods.parts.memory import Memory
from bpg.methods.parts.whole import Network, Whole
from bpg.store import State


@settings
class DERSettings(ERSettings):
    """How much the two draws weigh beside the new domain."""

    alpha: NonNegativeFloat = 0.3  # of the squared distance from the old logits, a mean over classes
    beta: NonNegativeFloat = 0.5  # of the label's cross-entropy


class DERpp(Whole):
    """Fine-tuning with images of earlier domains, their old logits and their labels."""

    method = "derpp"
    Settings = DERSettings
    settings: DERSettings

    def begin(self) -> None:
        super().begin()
        self._logits = torch.empty(0, 0)  # (M, C), of the kept images; nan where the class was not known yet

    def learn(self, domain: Domain) -> None:
        s, network = self.settings, self.grown(domain)
        replay = self.replayed(network, domain, draws=2)
        known = _widened(self._logits, self.network.head.classes, network.head.classes)
        others = [at for at, each in enumerate(self.memory.kept) if each.domain != domain.name]
        wanted = known[others].to(self.backbone.device)
        first, second = len(domain.classes), len(domain.classes) + len(others)

        def loss(network: Network, images: Tensor, labels: Tensor) -> Tensor:
            logits = network(images)
            task = self.named(logits, replay["rows"].to(labels.device)[labels])
            old = wanted[(labels - first).clamp(0, second - first - 1)]
            unknown = old.isnan()
            apart = torch.where(unknown, 0.0, logits - old).square().sum(dim=1) / (~unknown).sum(dim=1).clamp(min=1)
            again = torch.where(labels < second, s.alpha * apart, s.beta * task)
            return 3 * torch.where(labels < first, task, again)  # the mean over three draws of one size

        if replay:  # the loss looks up rows itself: it must know which image it is, too
            every = torch.arange(len(replay["rows"]))
            network = self.train(network, domain, loss, batches=replay["batches"], rows=every)
        else:
            network = self.train(network, domain)
        memory = self.remembered(network, domain)
        self._logits = self._kept(network, memory, known)
        self.network, self.memory = network, memory

    def _kept(self, network: Network, memory: Memory, before: Tensor) -> Tensor:
        """The logits of what is in `memory` now: those of before, and new ones for new images."""
        known = {id(each): row for each, row in zip(self.memory.kept, before, strict=True)}
        fresh = [at for at, each in enumerate(memory.kept) if id(each) not in known]
        new = dict(zip(fresh, passed(self, memory.images().subset(fresh), network).float().cpu(), strict=True))
        rows = [new[at] if at in new else known[id(each)] for at, each in enumerate(memory.kept)]
        return torch.stack(rows) if rows else torch.empty(0, 0)

    def state(self) -> State:
        whole = super().state()
        return self.make_state(shared={**whole.shared, "logits": self._logits}, facts=whole.facts)

    def restore(self, state: State) -> None:
        super().restore(state)
        self._logits = state.shared["logits"]
        if len(self.memory) and self._logits.shape != (len(self.memory), len(self.network.head.classes)):
            raise ValueError("logits of other images or classes")


def _widened(logits: Tensor, before: tuple[str, ...], after: tuple[str, ...]) -> Tensor:
    """Logits (M, C) of the classes `before` among those of `after`."""
    wide = torch.full((len(logits), len(after)), torch.nan)
    if len(logits):
        wide[:, [after.index(name) for name in before]] = logits
    return wide
