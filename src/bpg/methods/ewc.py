"""EWC: while the network learns a new domain, its parameters are held back, the more the old answers depend on them.
How much they do is told by the Fisher information, the mean squared gradient of single images' losses. A quadratic
penalty pulls every parameter back to where the last domain left it, by that weight.

Trained: the whole network and one head.
Stored: the network, and one number for each parameter.
Paper: Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", PNAS 2017, arXiv 1612.00796; in the
online form of Schwarz et al., 2018, arXiv 1805.06370.
Here: one information summed over domains, around the weights after the last one. It is the empirical one, by the true
label. An entry is cut where a step of gradient descent would overshoot.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from bpg.config import settings
from bpg.data.domain import Domain
from bpg.methods.parts.fisher import fisher_information, with_rows
from bpg.methods.parts.whole import Network, Whole, WholeSettings
from bpg.store import State

PREFIX = "fisher/"


@settings
class EWCSettings(WholeSettings):
    """How parameters are held."""

    strength: NonNegativeFloat = 1e4  # lambda
    decay: NonNegativeFloat = 1.0  # gamma, of the information of earlier domains when a new one is added
    images: PositiveInt = 2000  # of a domain that its information is estimated from, at most


class EWC(Whole):
    """Fine-tuning with a penalty on what old domains need."""

    method = "ewc"
    Settings = EWCSettings
    settings: EWCSettings

    def begin(self) -> None:
        super().begin()
        self._information: dict[str, Tensor] = {}

    def learn(self, domain: Domain) -> None:
        s, network = self.settings, self.grown(domain)
        anchor = deepcopy(network).requires_grad_(False)
        held = dict(anchor.named_parameters())
        before, after = self.network.head.classes, anchor.head.classes
        information = with_rows(self._information, before, after) if self._information else {}
        most = 1 / max(s.optimisation.lr * s.strength, 1e-12)  # beyond it a step of gradient descent overshoots
        weights = {name: found.clamp(max=most) for name, found in information.items()}

        def loss(network: Network, images: Tensor, rows: Tensor) -> Tensor:
            moved = [(weights[name] * (p - held[name]).square()).sum() for name, p in network.named_parameters()]
            return self.task(network, images, rows) + s.strength / 2 * torch.stack(moved).sum()

        network = self.train(network, domain, loss if information else None)
        found = fisher_information(
            network,
            domain,
            self.backbone.preprocessing,
            self.rows(network, domain),
            images=s.images,
            seed=s.seed,
            device=self.backbone.device,
        )
        self.network = network
        self._information = {n: s.decay * information[n] + new if information else new for n, new in found.items()}

    def state(self) -> State:
        whole = super().state()
        kept = {f"{PREFIX}{name}": tensor for name, tensor in self._information.items()}
        return self.make_state(shared={**whole.shared, **kept}, facts=whole.facts)

    def restore(self, state: State) -> None:
        super().restore(state)
        kept = {name: own.to(self.backbone.device) for name, own in state.below(PREFIX).items()}
        shapes = {name: parameter.shape for name, parameter in self.network.named_parameters()}
        if kept and {name: tensor.shape for name, tensor in kept.items()} != shapes:
            raise ValueError("an information of other shapes than the parameters")
        self._information = kept
