"""LwF: while the network learns a new domain, it is to answer its images as it did before.

Li and Hoiem, "Learning without Forgetting", 2016, arXiv 1606.09282. The classes of all domains are the same here, so
that teacher and student share one head. The teacher sees the same crop as the student; the distillation is a
cross-entropy at a temperature, without the factor of its square (as in PyCIL).
"""

from __future__ import annotations

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from bpg.config import settings
from bpg.data.domain import Domain
from bpg.methods.parts.whole import Network, Whole, WholeSettings


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
        teacher, known, s = self.network, self.classes, self.settings

        def keep(network: Network, images: Tensor, logits: Tensor) -> Tensor:
            with torch.no_grad():
                wanted = teacher(images)
            old = logits[:, network.head.places(known).to(logits.device)]
            return s.strength * distillation(old, wanted, temperature=s.temperature)

        self.train(domain, keep if known else None)


def distillation(logits: Tensor, wanted: Tensor, *, temperature: float) -> Tensor:
    """The cross-entropy (B,) of `logits` against the answers that the logits `wanted` give at a temperature."""
    return -(torch.softmax(wanted / temperature, dim=1) * torch.log_softmax(logits / temperature, dim=1)).sum(dim=1)
