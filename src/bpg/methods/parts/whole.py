"""One network and one head for all domains, all of which is trained: what fine-tuning and its kin share."""

from __future__ import annotations

from copy import deepcopy
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from bpg.backbones.backbone import Backbone
from bpg.backbones.vit import ViT
from bpg.config import later, settings
from bpg.data.images import ImageSet
from bpg.data.transforms import Augmentation
from bpg.methods.base import passed
from bpg.methods.parts.heads import GrowingHead
from bpg.methods.parts.single import Labels, Single
from bpg.training import Optimisation


@settings
class WholeSettings:
    """PILOT's setting for a pre-trained ViT on its first domain, kept for all."""

    seed: Annotated[int, Field(ge=0)] = 0
    optimisation: Optimisation = Optimisation(epochs=20, lr=1e-3, weight_decay=5e-4)
    augmentation: Augmentation = Augmentation()
    labels: Labels = later("shared")  # one row of the head for each class, or "expanded": one for each domain it is in


class Network(nn.Module):
    """A backbone that is trained, and a head over all classes seen."""

    def __init__(self, backbone: Backbone, head: GrowingHead) -> None:
        super().__init__()
        self.net = deepcopy(backbone)
        self.net.text = None  # no image passes through it: it is neither trained nor stored
        self.head = head.to(backbone.device)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, C)."""
        logits: Tensor = self.head(self.net(images))
        return logits


class Whole(Single):
    """A network of which all is trained on each new domain."""

    settings: WholeSettings
    network: Network

    def build(self) -> Network:
        return Network(self.backbone, self.head())

    def head(self) -> GrowingHead:
        """A head without rows."""
        return GrowingHead(self.backbone.feature_width)

    def vit(self, network: Network) -> ViT:
        return network.net.vit

    @torch.no_grad()
    def features(self, network: Network, images: ImageSet) -> Tensor:
        """Unit-length features (n, d) of images as evaluation sees them."""
        return passed(self, images, lambda batch: F.normalize(network.net(batch), dim=-1))
