"""LwF: while the network learns a new domain, it is to answer the images of that domain as it did before. The answers
of the model before are a second target beside the labels. No old image is needed for it.

Trained: the whole network and one head.
Stored: the network.
Paper: Li and Hoiem, "Learning without Forgetting", ECCV 2016, arXiv 1606.09282.
Here: the classes of all domains are the same, so that teacher and student share one head. The teacher sees the same
crop as the student. The distillation is a cross-entropy at a temperature, without the factor of its square (PyCIL).
With `labels = "expanded"`, labels train the new domain's rows and the teacher the old ones; the new ones have no
training of their own before. One rate of 1e-3 trains backbone and head, as PILOT fine-tunes, where others give the head
1e-2.
"""

from __future__ import annotations

from pydantic import NonNegativeFloat, PositiveFloat

from bpg.config import settings
from bpg.data.domain import Domain
from bpg.methods.parts.teacher import held_to
from bpg.methods.parts.whole import Whole, WholeSettings


@settings
class LwFSettings(WholeSettings):
    """What is kept of the old answers."""

    strength: NonNegativeFloat = 1.0  # lambda, of the distillation beside the task
    temperature: PositiveFloat = 2.0  # tau


class LwF(Whole):
    """Fine-tuning with the model before it as a teacher, on the new domain's images."""

    method = "lwf"
    Settings = LwFSettings
    settings: LwFSettings

    def learn(self, domain: Domain) -> None:
        s, network = self.settings, self.grown(domain)
        new = self.rows(network, domain).sort().values if self.expanded else None  # an old row is the teacher's alone
        loss = held_to(self.network, self, network, strength=s.strength, temperature=s.temperature, among=new)
        self.network = self.train(network, domain, loss)
