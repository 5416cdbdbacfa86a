"""LUCIR: classes are directions, and an image is of the class whose direction its feature is nearest to. While a new
domain is learned, features are held to the directions they had, and kept images to a margin from wrong classes. After
each domain the directions alone are trained once more, on as many images of each class and domain.

Trained: the whole network and a head of cosines.
Stored: the network and M images.
Paper: Hou et al., "Learning a Unified Classifier Incrementally via Rebalancing", CVPR 2019.
Here: every domain has directions of its own, as in its runs on CDDB; the margin leaves out those of the same class,
which the original would push apart. `labels = "shared"` gives each class one direction, and all images the margin. The
scale begins at 10, not 1, and the first domain's directions at its means, too. The last stage trains directions on the
features of kept images as evaluation sees them, without the margin, at a rate that falls by a cosine. One rate of 1e-3
trains backbone and head, as PILOT fine-tunes, where others give the head 1e-2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from bpg.config import settings
from bpg.data.batches import FeatureBatches
from bpg.data.domain import Domain
from bpg.methods.er import HerdedSettings
from bpg.methods.parts.heads import OF, CosineHead, GrowingHead
from bpg.methods.parts.memory import Memory
from bpg.methods.parts.single import Labels
from bpg.methods.parts.whole import Network, Whole
from bpg.training import Optimisation


@settings
class LUCIRSettings(HerdedSettings):
    """How features and directions are held."""

    labels: Labels = "expanded"
    scale: PositiveFloat = 10.0  # eta, where it begins
    keep: NonNegativeFloat = 5.0  # lambda_base, of the features' directions, times the root of the old domains' number
    margin: NonNegativeFloat = 0.5  # m, of cosines
    rivals: PositiveInt = 2  # K, wrong directions that the margin is kept from
    ranking: NonNegativeFloat = 1.0  # the margin's weight
    balancing: Optimisation = Optimisation(epochs=20, lr=0.01, weight_decay=0.0)  # of the last stage


class LUCIR(Whole):
    """Rehearsal with a head of cosines, features that keep their directions, and a margin for kept images."""

    method = "lucir"
    Settings = LUCIRSettings
    settings: LUCIRSettings

    def head(self) -> GrowingHead:
        return CosineHead(self.backbone.feature_width, scale=self.settings.scale)

    def learn(self, domain: Domain) -> None:
        teacher, s, network = self.network, self.settings, self.grown(domain)
        head: CosineHead = network.head
        before, rows = teacher.head.classes, head.classes
        new = {self.row(name, domain.name): name for name in domain.classes}
        head.imprint({row: own for row, own in self._means(network, domain, new).items() if row not in before})
        held = head.weight.detach().clone()
        fixed = torch.tensor([self.expanded and row not in new for row in rows], device=held.device)
        alike = _alike(rows).to(held.device)  # (rows, rows): of the same class
        together, old_domains = self.memory.joined(domain, self.row), self.memory.without(domain.name).seen
        keep = s.keep * math.sqrt(len(old_domains))
        # The margin is a mean over kept images; the loop divides by all.
        kept = len(together.train) - len(domain.train) if self.expanded else len(together.train)
        ranking = s.ranking * len(together.train) / max(1, kept)

        def loss(network: Network, images: Tensor, labels: Tensor) -> Tensor:
            features = network.net(images)
            cosines = head.cosines(features, torch.where(fixed[:, None], held, head.weight))  # old rows stay
            found = self.named(head.scale * cosines, labels)
            if not before:
                return found
            with torch.no_grad():
                old = teacher.net(images)
            found = found + keep * (1 - F.cosine_similarity(features, old))
            rivals = cosines.masked_fill(alike[labels] | fixed, -torch.inf).topk(min(s.rivals, len(rows)), dim=1).values
            short = torch.relu(s.margin - cosines.gather(1, labels[:, None]) + rivals)
            ranked = short.sum(dim=1) / rivals.isfinite().sum(dim=1).clamp(min=1)
            return found + ranking * (torch.where(fixed[labels], ranked, 0.0) if self.expanded else ranked)

        network = self.train(network, together, loss)
        with torch.no_grad():
            network.head.weight[fixed] = held[fixed]  # weight decay has shortened them
        memory = self.remembered(network, domain)
        if before and len(memory):
            self._balance(network, memory, domain)
        self.network, self.memory = network, memory

    def _means(self, network: Network, domain: Domain, rows: Mapping[str, str]) -> dict[str, Tensor]:
        """The mean feature of the images of each row's class."""
        found, own = self.features(network, domain.train), domain.train
        names = [own.classes[label] for label in own.labels]
        return {row: found[[name == its for its in names]].mean(dim=0) for row, name in rows.items()}

    def _balance(self, network: Network, memory: Memory, domain: Domain) -> None:
        """Train the directions alone on the kept images, old and new."""
        s, b = self.settings, self.settings.balancing
        targets = network.head.places([self.row(each.name, each.domain) for each in memory.kept])
        features = self.features(network, memory.images()).cpu()
        batches = FeatureBatches(features, targets, domain.name, s.seed, b.batch_size, b.epochs)
        network.head.weight.requires_grad_(True)
        self.fit_features(network.head, batches, optimisation=b, activity="balancing")
        network.head.requires_grad_(False)


def _alike(rows: tuple[str, ...]) -> Tensor:
    names = [row.partition(OF)[0] for row in rows]
    return torch.tensor([[one == other for other in names] for one in names])
