"""Sequential fine-tuning: the whole network goes on training on each new domain, and nothing protects the old ones.

The lower yardstick of the field: what a method must beat to be worth its name.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

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
class FineTuneSettings:
    """PILOT's setting for a pre-trained ViT."""

    seed: Annotated[int, Field(ge=0)] = 0
    optimisation: Optimisation = Optimisation(epochs=20, lr=1e-3, weight_decay=5e-4)
    augmentation: Augmentation = Augmentation()


class FineTune(Learner):
    """One network and one head for all domains, trained on each in turn."""

    method = "finetune"
    Settings = FineTuneSettings
    settings: FineTuneSettings

    def begin(self) -> None:
        self._net = deepcopy(self.backbone)
        self._head = GrowingHead(self.backbone.feature_width).to(self.backbone.device)

    @property
    def classes(self) -> tuple[str, ...]:
        return self._head.classes

    def learn(self, domain: Domain) -> None:
        check_classes(self.classes, domain.classes, allowed=self.allow_new_classes)
        s, o = self.settings, self.settings.optimisation
        net, head = deepcopy(self._net), deepcopy(self._head)  # an interrupted training leaves the model as it was
        head.grow(domain.classes, seed=s.seed)
        trained = nn.ModuleDict({"net": net.requires_grad_(True), "head": head.requires_grad_(True)})
        places = head.places(domain.classes)

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return cross_entropy(head(net(images)), places.to(labels.device)[labels], smoothing=o.label_smoothing)

        batches = Batches(domain, self.backbone.preprocessing, s.augmentation, s.seed, o.batch_size, o.epochs)
        before = self.resume(domain, tensors_digest(net), tensors_digest(head))
        self.fit(trained, loss, batches, vit=net.vit, resume=before)
        trained.requires_grad_(False)
        self._net, self._head = net, head

    @torch.no_grad()
    def forward(self, images: Tensor) -> Prediction:
        logits = self._head(self._net(images))
        return Prediction(torch.log_softmax(as_float64(logits), dim=1), None, torch.ones(len(images), dtype=torch.long))

    def state(self) -> State:
        shared = {f"net/{name}": tensor for name, tensor in self._net.state_dict().items()}
        shared |= {f"head/{name}": tensor for name, tensor in self._head.state_dict().items()}
        return self.make_state(shared=shared, facts={"classes": list(self.classes)})

    def restore(self, state: State) -> None:
        self._head.grow(state.facts["classes"], seed=0)
        for prefix, module in (("net/", self._net), ("head/", self._head)):
            own = {key.removeprefix(prefix): tensor for key, tensor in state.shared.items() if key.startswith(prefix)}
            module.load_state_dict(own)
