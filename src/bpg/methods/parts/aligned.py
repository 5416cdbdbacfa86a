"""An expert of prompt tokens and linear adapters behind the blocks (PINA, SOYO), and a classifier for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from bpg.backbones.backbone import Backbone
from bpg.backbones.tuning import Tuning
from bpg.config import settings
from bpg.data.transforms import Augmentation
from bpg.experts.adapter import LinearAdapter
from bpg.experts.head import LinearHead, TextHead
from bpg.training import Optimisation

Kind = Literal["linear", "text"]  # a linear map, or CLIP's class names behind learned words


@settings
class AlignedSettings:
    """What a domain's expert is, for DomainNet."""

    seed: Annotated[int, Field(ge=0)] = 0
    prompts: PositiveInt = 10  # tokens
    hidden: PositiveInt = 16  # h, rank of the adapters
    where: Literal["deep", "shallow"] = "deep"  # adapters behind every block, or one behind the last norm
    head: Kind = "linear"  # text: CLIP's class names behind learned words
    context: PositiveInt = 16  # words of a text head
    k: PositiveInt = 5  # prototypes a domain: PINA's centres, and where BPG-Inference looks
    optimisation: Optimisation = Optimisation()
    augmentation: Augmentation = Augmentation()


class Aligned(nn.Module):
    """What is learned for one domain, its `head` (features, backbone) -> logits included."""

    def __init__(
        self,
        backbone: Backbone,
        head: nn.Module,
        s: AlignedSettings,
        generator: torch.Generator,
        *,
        adapted: bool = True,
    ) -> None:
        super().__init__()
        self.prompt = nn.Parameter(0.02 * torch.randn(s.prompts, backbone.width, generator=generator))
        self.deep = s.where == "deep"
        count = (backbone.depth if self.deep else 1) if adapted else 0
        self.adapters = nn.ModuleList(
            LinearAdapter(backbone.width, s.hidden, generator=generator) for _ in range(count)
        )
        self.head = head
        self.to(backbone.device)

    def tuning(self) -> Tuning:
        """What this expert does to the frozen ViT."""
        if self.deep:
            return Tuning(
                tokens=self.prompt, branch={block: {"block": part} for block, part in enumerate(self.adapters)}
            )
        return Tuning(tokens=self.prompt, final=self.adapters[0] if len(self.adapters) else None)

    def forward(self, images: Tensor, backbone: Backbone) -> Tensor:
        """Logits (B, classes of this domain)."""
        return self.classify(backbone(images, self.tuning()), backbone)

    def classify(self, features: Tensor, backbone: Backbone) -> Tensor:
        """Logits (B, classes of this domain) of features under this expert's tuning."""
        logits: Tensor = self.head(features, backbone)
        return logits


def head_of(
    s: AlignedSettings, backbone: Backbone, classes: Sequence[str], generator: torch.Generator
) -> LinearHead | TextHead:
    """A head over `classes`, of the kind that is set."""
    if s.head == "linear":
        return LinearHead(backbone.feature_width, len(classes), generator=generator)
    return TextHead(backbone, classes, context=s.context, template="{}", generator=generator)


class Unified(nn.Module):
    """A classifier that one domain learns and all others read."""

    def __init__(
        self, backbone: Backbone, classes: Sequence[str], s: AlignedSettings, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.classes = tuple(classes)
        self.head = head_of(s, backbone, classes, generator)
        self.to(backbone.device)


class Reading(nn.Module):
    """How a domain reads the classifier of all: by its own classes, with rows of its own for those that are new."""

    def __init__(
        self, unified: Unified, backbone: Backbone, classes: Sequence[str], generator: torch.Generator
    ) -> None:
        super().__init__()
        shared, self.more = unified.head, None
        if isinstance(shared, TextHead):
            shared, order = shared.of(backbone, classes), list(classes)
        else:
            new = [name for name in classes if name not in unified.classes]
            order = [*unified.classes, *new]
            if new:
                self.more = LinearHead(backbone.feature_width, len(new), generator=generator)
        self.places = [order.index(name) for name in classes]
        self._shared = (shared,)  # a tuple, so that it is no part of this domain

    def forward(self, features: Tensor, backbone: Backbone) -> Tensor:
        logits: Tensor = self._shared[0](features, backbone)
        if self.more is not None:
            logits = torch.cat([logits, self.more(features, backbone)], dim=1)
        return logits[:, self.places]
