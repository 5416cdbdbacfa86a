"""BiC: a network that learns from a new domain and few kept images prefers what is new. Some images of every domain are
held out of training, as many of each; from them a scale and a shift of the new domain's logits are learned. The rest is
rehearsal, with the corrected answers of the model before as a second target.

Trained: the whole network and one head; then two numbers.
Stored: the network, M images, and two numbers for each domain.
Paper: Wu et al., "Large Scale Incremental Learning", CVPR 2019, arXiv 1905.13260.
Here: every domain has rows of its own in the head, since one scale for all rows would change no answer. The
distillation weighs what the paper says, old rows over all; it is not multiplied by the squared temperature. Kept images
are herded. The two numbers are learned in mammoth's 250 passes, at a rate of 0.1, which falls, not 0.001: larger
batches make fewer steps of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from bpg.config import later, settings
from bpg.data.batches import FeatureBatches
from bpg.data.domain import Domain
from bpg.methods.base import prepared
from bpg.methods.er import HerdedSettings
from bpg.methods.parts.bias import Correction, corrected, held_out
from bpg.methods.parts.heads import OF
from bpg.methods.parts.teacher import distillation
from bpg.methods.parts.whole import Network, Whole
from bpg.store import State
from bpg.training import Optimisation


@settings
class BiCSettings(HerdedSettings):
    """How old answers are kept, and how the bias is found."""

    labels: Literal["expanded"] = later("expanded")  # a row of the head for each class of each domain
    temperature: PositiveFloat = 2.0  # tau of the distillation
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.1  # of the kept images, and as many new ones
    correction: Optimisation = Optimisation(epochs=250, lr=0.1, optimizer="adamw", weight_decay=0.0)


class BiC(Whole):
    """Rehearsal with distillation, then a correction of the preference for the newest domain."""

    method = "bic"
    Settings = BiCSettings
    settings: BiCSettings

    def begin(self) -> None:
        super().begin()
        self._scales: dict[str, tuple[float, float]] = {}  # alpha and beta, by domain

    def logits(self, network: Network, images: Tensor) -> Tensor:
        return corrected(network(images), network.head.classes, self._scales)

    def learn(self, domain: Domain) -> None:
        teacher, s, network = self.network, self.settings, self.grown(domain)
        known = [row for row in teacher.head.classes if row.partition(OF)[2] != domain.name]
        scales = {name: pair for name, pair in self._scales.items() if name != domain.name}
        before, mine = teacher.head.places(known), network.head.places(known)
        together = self.memory.joined(domain, self.row)
        held = held_out(together, known, share=s.held_out, seed=s.seed) if known else []
        rest = sorted(set(range(len(together.train))) - set(held))
        old = len(known) / len(network.head.classes)

        def loss(network: Network, images: Tensor, labels: Tensor) -> Tensor:
            logits = corrected(network(images), network.head.classes, scales)
            if not known:
                return self.named(logits, labels)
            with torch.no_grad():
                wanted = corrected(teacher(images)[:, before.to(images.device)], known, scales)
            kept = distillation(logits[:, mine.to(images.device)], wanted, temperature=s.temperature)
            return (1 - old) * self.named(logits, labels) + old * kept

        network = self.train(network, replace(together, train=together.train.subset(rest)), loss)
        if held:
            few = replace(together, train=together.train.subset(held))
            scales = scales | {domain.name: self._bias(network, few, known)}
        self.memory = self.remembered(network, domain)
        self.network, self._scales = network, scales

    @torch.no_grad()
    def _held_logits(self, network: Network, held: Domain) -> Tensor:
        found = torch.cat([network(batch).cpu() for batch in prepared(self.backbone, held.train, 32)])
        others = {name: pair for name, pair in self._scales.items() if name != held.name}
        return corrected(found, network.head.classes, others)

    def _bias(self, network: Network, held: Domain, known: Sequence[str]) -> tuple[float, float]:
        """alpha and beta of the rows that are not `known`, by cross-entropy on images that were held out."""
        s, c = self.settings, self.settings.correction
        names = [held.train.classes[label] for label in held.train.labels]
        logits, targets = self._held_logits(network, held), network.head.places(names)
        batches = FeatureBatches(logits, targets, held.name, s.seed, c.batch_size, c.epochs)
        found = Correction(torch.tensor([row not in known for row in network.head.classes])).to(self.backbone.device)
        self.fit_features(found, batches, optimisation=c, activity="correction")
        return found.scale.item(), found.shift.item()

    def state(self) -> State:
        whole = super().state()
        facts: dict[str, Any] = {**whole.facts, "scales": {name: list(pair) for name, pair in self._scales.items()}}
        return self.make_state(shared=whole.shared, facts=facts)

    def restore(self, state: State) -> None:
        super().restore(state)
        self._scales = {name: (float(pair[0]), float(pair[1])) for name, pair in state.facts["scales"].items()}
