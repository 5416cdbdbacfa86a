"""One network and one head for all domains, all of which is trained: what fine-tuning and its kin share."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from bpg.backbones.backbone import Backbone
from bpg.compute import as_float64
from bpg.config import settings
from bpg.data.batches import Batches
from bpg.data.domain import Domain
from bpg.data.transforms import Augmentation
from bpg.methods.base import Learner
from bpg.methods.parts.heads import GrowingHead
from bpg.methods.parts.identity import check_classes, tensors_digest
from bpg.store import State
from bpg.training import Optimisation, cross_entropy
from bpg.types import Prediction


@settings
class WholeSettings:
    """PILOT's setting for a pre-trained ViT."""

    seed: Annotated[int, Field(ge=0)] = 0
    optimisation: Optimisation = Optimisation(epochs=20, lr=1e-3, weight_decay=5e-4)
    augmentation: Augmentation = Augmentation()


class Network(nn.Module):
    """A backbone that is trained, and a head over all classes seen."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.net = deepcopy(backbone)
        self.head = GrowingHead(backbone.feature_width).to(backbone.device)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, C)."""
        logits: Tensor = self.head(self.net(images))
        return logits


# What is added to the loss of each image (B,), from the network in training, the images and their logits.
Extra = Callable[[Network, Tensor, Tensor], Tensor]


class Whole(Learner):
    """A network that goes on training on each new domain."""

    settings: WholeSettings
    network: Network

    def begin(self) -> None:
        self.network = Network(self.backbone)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.network.head.classes

    def train(self, domain: Domain, extra: Extra | None = None) -> None:
        """Go on training all of the network on `domain`, with something `extra` in the loss."""
        check_classes(self.classes, domain.classes, allowed=self.allow_new_classes)
        s, o = self.settings, self.settings.optimisation
        before = self.network  # an interrupted training leaves the model as it was
        network = deepcopy(before)
        network.head.grow(domain.classes, seed=s.seed)
        network.requires_grad_(True)
        places = network.head.places(domain.classes)

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            logits = network(images)
            task = cross_entropy(logits, places.to(labels.device)[labels], smoothing=o.label_smoothing)
            return task if extra is None else task + extra(network, images, logits)

        batches = Batches(domain, self.backbone.preprocessing, s.augmentation, s.seed, o.batch_size, o.epochs)
        self.fit(network, loss, batches, vit=network.net.vit, resume=self.resume(domain, tensors_digest(before)))
        self.network = network.requires_grad_(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Prediction:
        log_probs = torch.log_softmax(as_float64(self.network(images)), dim=1)
        return Prediction(log_probs, None, torch.ones(len(images), dtype=torch.long))

    def state(self) -> State:
        shared = {name.replace(".", "/", 1): tensor for name, tensor in self.network.state_dict().items()}
        return self.make_state(shared=shared, facts={"classes": list(self.classes)})

    def restore(self, state: State) -> None:
        self.network.head.grow(state.facts["classes"], seed=0)
        own = {name: tensor for name, tensor in state.shared.items() if name.startswith(("net/", "head/"))}
        self.network.load_state_dict({name.replace("/", ".", 1): tensor for name, tensor in own.items()})
