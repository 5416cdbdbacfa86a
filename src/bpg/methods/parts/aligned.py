"""An expert of prompt tokens and linear adapters behind the blocks (PINA, SOYO), and a classifier for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bpg.backbones.backbone import Backbone
from bpg.backbones.tuning import Tuning
from bpg.experts.adapter import LinearAdapter
from bpg.experts.head import LinearHead, TextHead

Where = Literal["deep", "shallow", "none"]  # behind every block, behind the last norm, nowhere
Kind = Literal["linear", "text"]  # a linear map, or CLIP's class names behind learned words


class Aligned(nn.Module):
    """What is learned for one domain, its `head` (features, backbone) -> logits included."""

    def __init__(
        self,
        backbone: Backbone,
        head: nn.Module,
        *,
        prompts: int,
        hidden: int,
        where: Where,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.prompt = nn.Parameter(0.02 * torch.randn(prompts, backbone.width, generator=generator))
        self.where = where
        count = {"deep": backbone.depth, "shallow": 1, "none": 0}[where]
        self.adapters = nn.ModuleList(LinearAdapter(backbone.width, hidden, generator=generator) for _ in range(count))
        self.head = head
        self.to(backbone.device)

    def tuning(self) -> Tuning:
        """What this expert does to the frozen ViT."""
        final = self.adapters[0] if self.where == "shallow" else None
        behind = enumerate(self.adapters) if self.where == "deep" else ()
        return Tuning(tokens=self.prompt, branch={block: {"block": part} for block, part in behind}, final=final)

    def forward(self, images: Tensor, backbone: Backbone) -> Tensor:
        """Logits (B, classes of this domain)."""
        return self.classify(backbone(images, self.tuning()), backbone)

    def classify(self, features: Tensor, backbone: Backbone) -> Tensor:
        """Logits (B, classes of this domain) of features under this expert's tuning."""
        logits: Tensor = self.head(features, backbone)
        return logits


def head_of(
    kind: Kind, backbone: Backbone, classes: Sequence[str], *, context: int, generator: torch.Generator
) -> LinearHead | TextHead:
    """A head over `classes`, of either kind."""
    if kind == "linear":
        return LinearHead(backbone.feature_width, len(classes), generator=generator)
    return TextHead(backbone, classes, context=context, template="{}", generator=generator)


class Unified(nn.Module):
    """A classifier that one domain learns and all others read."""

    def __init__(
        self, kind: Kind, backbone: Backbone, classes: Sequence[str], *, context: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.classes = tuple(classes)
        self.head = head_of(kind, backbone, classes, context=context, generator=generator)
        self.to(backbone.device)


class Reading(nn.Module):
    """How a domain reads the classifier of all: by its own classes, with rows of its own for those that are new."""

    def __init__(
        self, unified: Unified, backbone: Backbone, classes: Sequence[str], generator: torch.Generator
    ) -> None:
        super().__init__()
        own: Any = unified.head
        new = [name for name in classes if name not in unified.classes] if isinstance(own, LinearHead) else []
        self.more = LinearHead(backbone.feature_width, len(new), generator=generator) if new else None
        if isinstance(own, TextHead):  # the same words before other names
            own = TextHead(backbone, classes, context=0, template="{}", generator=generator)
            own.context = unified.head.context
            order = list(classes)
        else:
            order = [*unified.classes, *new]
        self.places = [order.index(name) for name in classes]
        self._shared = (own,)  # a tuple, so that it is no part of this domain

    def forward(self, features: Tensor, backbone: Backbone) -> Tensor:
        logits: Tensor = self._shared[0](features, backbone)
        if self.more is not None:
            logits = torch.cat([logits, self.more(features, backbone)], dim=1)
        return logits[:, self.places]
