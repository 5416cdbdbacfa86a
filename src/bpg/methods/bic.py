"""BiC: a network that learns from a new domain and few kept images prefers what is new. Some images of every domain are
held out of training, as many of each; from them a scale and a shift of the new domain's logits are learned. The rest is
rehearsal, with the corrected answers of the model before as a second target.

Trained: the whole network and one head; then two numbers.
Stored: the network, M images, and two numbers for each domain.
Paper: Wu et al., "Large Scale Incremental Learning", CVPR 2019, arXiv 1905.13260.
Here: every domain has rows of its own in the head, since one scale for all rows would change no answer. The
distillation weighs what the paper says, old rows over all; it is not multiplied by the squared temperature. Kept images
are herded. The two numbers are learned at a rate of 0.01, in fewer steps than mammoth's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from bpg.config import settings
from bpg.data.batches import FeatureBatches
from bpg.data.domain import Domain
from bpg.methods.base import prepared
from bpg.methods.er import ERSettings
from bpg.methods.parts.memory import MemorySettings
from bpg.methods.parts.single import OF
from bpg.methods.parts.teacher import distillation
from bpg.methods.parts.whole import Network, Whole
from bpg.randomness import generator_of
from bpg.store import State
from bpg.training import Optimisation


@settings
class BiCSettings(ERSettings):
    """How old answers are kept, and how the bias is found."""

    optimisation: Optimisation = Optimisation(epochs=15, lr=1e-3, weight_decay=5e-4)
    memory: MemorySettings = MemorySettings(choice="herding")
    temperature: PositiveFloat = 2.0  # tau of the distillation
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.1  # of the kept images, and as many new ones
    correction: Optimisation = Optimisation(
        epochs=250, lr=0.01, optimizer="adamw", weight_decay=0.0, schedule="constant"
    )


class Correction(nn.Module):
    """A scale and a shift of the logits of the newest rows."""

    def __init__(self, new: Tensor) -> None:
        super().__init__()
        self.new = new  # (rows,)
        self.scale, self.shift = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(()))

    def forward(self, logits: Tensor) -> Tensor:
        return torch.where(self.new, self.scale * logits + self.shift, logits)


class BiC(Whole):
    """Rehearsal with distillation, then a correction of the preference for the newest domain."""

    method = "bic"
    Settings = BiCSettings
    settings: BiCSettings
    expanded: ClassVar[bool] = True

    def begin(self) -> None:
        super().begin()
        self._scales: dict[str, tuple[float, float]] = {}  # alpha and beta, by domain

    def logits(self, network: Network, images: Tensor) -> Tensor:
        return self._corrected(network(images), network.head.classes)

    def _corrected(self, logits: Tensor, rows: Sequence[str]) -> Tensor:
        pairs = [self._scales.get(row.partition(OF)[2], (1.0, 0.0)) for row in rows]
        scale, shift = torch.tensor(pairs).to(logits).T
        corrected: Tensor = scale * logits + shift
        return corrected

    def learn(self, domain: Domain) -> None:
        assert self.memory is not None
        teacher, s, network = self.network, self.settings, self.grown(domain)
        known, rows = teacher.head.classes, network.head.classes
        together = self.memory.joined(domain, self.row)
        held = _held_out(together, known, share=s.held_out, seed=s.seed) if known else []
        rest = sorted(set(range(len(together.train))) - set(held))
        old = len(known) / len(rows)

        def loss(network: Network, images: Tensor, labels: Tensor) -> Tensor:
            logits = network(images)
            if not known:
                return self.named(logits, labels)
            with torch.no_grad():
                wanted = self.logits(teacher, images)
            mine = logits[:, network.head.places(known).to(logits.device)]
            kept = distillation(mine, wanted, temperature=s.temperature)
            return (1 - old) * self.named(logits, labels) + old * kept

        network = self.train(network, replace(together, train=together.train.subset(rest)), loss)
        scales = dict(self._scales)
        if held:
            scales[domain.name] = self._bias(network, replace(together, train=together.train.subset(held)), known)
        self.memory = self.remembered(network, domain)
        self.network, self._scales = network, scales

    @torch.no_grad()
    def _held_logits(self, network: Network, held: Domain) -> Tensor:
        found = [network(batch).cpu() for batch in prepared(self.backbone, held.train, 32)]
        return self._corrected(torch.cat(found), network.head.classes)

    def _bias(self, network: Network, held: Domain, known: Sequence[str]) -> tuple[float, float]:
        """alpha and beta of the rows that are not `known`, by cross-entropy on images that were held out."""
        s, c = self.settings, self.settings.correction
        names = [held.train.classes[label] for label in held.train.labels]
        logits, targets = self._held_logits(network, held), network.head.places(names)
        batches = FeatureBatches(logits, targets, held.name, s.seed, c.batch_size, c.epochs)
        found = Correction(torch.tensor([row not in known for row in network.head.classes])).to(self.backbone.device)
        found.new = found.new.to(self.backbone.device)
        self.fit(found, lambda x, y: self.named(found(x), y), batches, vit=None, resume=None, optimisation=c)
        return found.scale.item(), found.shift.item()

    def state(self) -> State:
        whole = super().state()
        facts: dict[str, Any] = {**whole.facts, "scales": {name: list(pair) for name, pair in self._scales.items()}}
        return self.make_state(shared=whole.shared, facts=facts)

    def restore(self, state: State) -> None:
        super().restore(state)
        self._scales = {name: (float(pair[0]), float(pair[1])) for name, pair in state.facts["scales"].items()}


def _held_out(together: Domain, known: Sequence[str], *, share: float, seed: int) -> list[int]:
    """Some images of every row: of old ones a share, of each new one as many as of the old one that gives most."""
    own = together.train
    cells: dict[str, list[int]] = {}
    for at, label in enumerate(own.labels):
        cells.setdefault(own.classes[label], []).append(at)
    counts = {row: max(1, int(share * len(cell))) for row, cell in cells.items() if row in known}
    most = max(counts.values(), default=0)
    held = []
    for row, cell in sorted(cells.items()):
        order = torch.randperm(len(cell), generator=generator_of(seed, together.name, "held", row)).tolist()
        held += [cell[place] for place in order[: min(counts.get(row, most), len(cell) - 1)]]
    return held
