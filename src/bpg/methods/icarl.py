"""iCaRL: a network learns from the new domain and from kept images, and is held to the answers that it gave before. The
kept images are chosen so that their mean feature is that of their class. An image is of the class whose mean of kept
images is nearest.

Trained: the whole network and one head.
Stored: the network, M images, and a mean feature for each row of the head.
Paper: Rebuffi et al., "iCaRL: Incremental Classifier and Representation Learning", CVPR 2017, arXiv 1611.07725.
Here: every domain has rows and means of its own, as in its runs on CDDB; `labels = "shared"` gives each class one row,
and the mean of its domains' means. The loss is that of PILOT, cross-entropy and distillation, in the place of the
original's sigmoids, with one weight decay for all domains. No mean over mirrored images.
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from bpg.compute import as_float64
from bpg.config import settings
from bpg.data.domain import Domain
from bpg.errors import WrongUse
from bpg.methods.er import HerdedSettings
from bpg.methods.parts.heads import per_class
from bpg.methods.parts.memory import Memory
from bpg.methods.parts.single import Labels
from bpg.methods.parts.teacher import held_to
from bpg.methods.parts.whole import Network, Whole
from bpg.store import State
from bpg.types import Prediction

FAR = 1e4  # of a row without a kept image


@settings
class ICaRLSettings(HerdedSettings):
    """How old answers are kept, and how sure the means sound."""

    labels: Labels = "expanded"
    strength: NonNegativeFloat = 1.0  # of the distillation
    temperature: PositiveFloat = 2.0  # tau of the distillation
    sharpness: PositiveFloat = 20.0  # of the softmax over squared distances from the means


class ICaRL(Whole):
    """Rehearsal with distillation; the nearest mean of kept images answers."""

    method = "icarl"
    Settings = ICaRLSettings
    settings: ICaRLSettings

    def begin(self) -> None:
        super().begin()
        self._means = torch.empty(0, self.backbone.feature_width)  # (rows, d), unit length; 0 without a kept image

    def learn(self, domain: Domain) -> None:
        if not self.settings.memory.images:
            raise WrongUse("iCaRL keeps no images", wanted="memory.images above 0", came="0", remedy="Raise it.")
        s, network = self.settings, self.grown(domain)
        loss = held_to(self.network, self, network, strength=s.strength, temperature=s.temperature)
        network = self.train(network, self.memory.joined(domain, self.row), loss)
        memory = self.remembered(network, domain)
        self._means = self._means_of(network, memory)
        self.network, self.memory = network, memory
        kept = {each.name for each in memory.kept}
        if missing := [name for name in self.classes if name not in kept]:
            some = ", ".join(missing[:3]) + (" and others" if len(missing) > 3 else "")
            told = f"no image is kept of {len(missing)} of {len(self.classes)} classes, which it cannot answer: {some}"
            warnings.warn(f"{told}. Raise memory.images.", stacklevel=2)

    def _means_of(self, network: Network, memory: Memory) -> Tensor:
        """The mean of each row's kept images, its domains weighing the same."""
        found = self.features(network, memory.images())
        cells: dict[tuple[str, str], list[int]] = {}
        for at, each in enumerate(memory.kept):
            cells.setdefault((each.name, each.domain), []).append(at)
        means = torch.zeros(len(network.head.classes), self.backbone.feature_width, device=self.backbone.device)
        for (name, domain), members in cells.items():
            row = network.head.classes.index(self.row(name, domain))
            means[row] += F.normalize(found[members].mean(dim=0), dim=0)
        return F.normalize(means, dim=1)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Prediction:
        features, means = as_float64(F.normalize(self.network.net(images), dim=-1)), as_float64(self._means)
        distance = torch.cdist(features, means).square().masked_fill(~means.any(dim=1), FAR)
        log_probs = per_class(-self.settings.sharpness * distance, self.network.head.classes)
        return Prediction.of_one(log_probs)

    def state(self) -> State:
        whole = super().state()
        return self.make_state(shared={**whole.shared, "means": self._means}, facts=whole.facts)

    def restore(self, state: State) -> None:
        super().restore(state)
        if len(state.shared["means"]) != len(self.network.head.classes):
            raise ValueError("means of other rows than the head's")
        self._means = state.shared["means"].to(self.backbone.device)
