"""Nearest class mean: an image is of the class whose mean frozen feature is nearest in angle. Features of all domains
add up to one mean a class, so that the order of domains does not matter. It is the yardstick for what frozen features
tell without any training.

Trained: nothing.
Stored: the sum of features and the number of images of each class.
Paper: none; as in the domain-incremental runs of RanPAC (McDonnell et al., NeurIPS 2023, arXiv 2307.02251).
Here: features have unit length before they are added up, where RanPAC adds them as they are, and again after. `labels =
"expanded"` keeps a mean for each domain that a class is in, of which the nearest answers for it.
"""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat
from torch import Tensor

from bpg.backbones.backbone import FINISHED
from bpg.compute import as_float64
from bpg.config import later, settings
from bpg.data.domain import Domain
from bpg.methods.base import Learner
from bpg.methods.parts.heads import OF, classes_of, per_class
from bpg.methods.parts.identity import check_classes, check_once
from bpg.methods.parts.single import Labels
from bpg.store import State
from bpg.types import Prediction


@settings
class NCMSettings:
    """How sure it sounds; what it says does not depend on it."""

    seed: Annotated[int, Field(ge=0)] = 0  # nothing is drawn: every method takes one
    temperature: PositiveFloat = 0.05  # of the softmax over cosines
    labels: Labels = later("shared")  # one mean for each class, or "expanded": one for each domain it is in


class NCM(Learner):
    """The mean frozen feature of each class over all domains; the nearest one answers."""

    method = "ncm"
    Settings = NCMSettings
    settings: NCMSettings

    def begin(self) -> None:
        self._sums: dict[str, Tensor] = {}  # of unit-length features, (d,) float64, by class, or by class and domain
        self._counts: dict[str, int] = {}
        self._domains: list[str] = []

    @property
    def classes(self) -> tuple[str, ...]:
        return classes_of(list(self._sums))

    def learn(self, domain: Domain) -> None:
        check_classes(self.classes, domain.classes, allowed=self.allow_new_classes)
        check_once(domain.name, self._domains)
        found = self.survey(domain)
        features = found.features[FINISHED].double()
        suffix = f"{OF}{domain.name}" if self.settings.labels == "expanded" else ""
        for label, name in enumerate(found.classes):
            own, row = features[found.labels == label], name + suffix
            if len(own):
                self._sums[row] = self._sums.get(row, torch.zeros_like(own[0])) + own.sum(dim=0)
                self._counts[row] = self._counts.get(row, 0) + len(own)
        self._domains = [*self._domains, domain.name]

    @torch.no_grad()
    def forward(self, images: Tensor) -> Prediction:
        rows = sorted(self._sums)
        means = F.normalize(torch.stack([self._sums[row] for row in rows]), dim=1)
        z = as_float64(self.backbone.embed(images))
        log_probs = per_class(z @ means.to(z).T / self.settings.temperature, rows)
        return Prediction.of_one(log_probs)

    def state(self) -> State:
        shared = {}
        rows = sorted(self._sums)
        if rows:
            shared["sums"] = torch.stack([self._sums[row] for row in rows])
            shared["counts"] = torch.tensor([self._counts[row] for row in rows])
        return self.make_state(shared=shared, facts={"classes": rows, "domains": self._domains})

    def restore(self, state: State) -> None:
        names, self._domains = state.facts["classes"], list(state.facts["domains"])
        if not names and not state.shared:
            return
        sums, counts = state.shared["sums"], state.shared["counts"]
        if sums.shape != (len(names), self.backbone.feature_width) or counts.shape != (len(names),):
            raise ValueError(f"sums {tuple(sums.shape)} and counts {tuple(counts.shape)} for {len(names)} classes")
        self._sums = dict(zip(names, sums, strict=True))
        self._counts = dict(zip(names, counts.tolist(), strict=True))
