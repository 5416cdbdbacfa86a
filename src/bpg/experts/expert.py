"""An expert: the prompt tokens, adapters or LoRA, and head of one domain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import NonNegativeInt
from torch import Tensor, nn

from bpg.backbones.backbone import Backbone
from bpg.backbones.tuning import Linear, Tuning
from bpg.config import settings
from bpg.data.domain import TEMPLATE
from bpg.errors import WrongUse
from bpg.experts.adapter import Adapter, LoRA
from bpg.experts.head import LinearHead, TextHead


@settings
class ExpertSettings:
    """What an expert is made of."""

    prompts: NonNegativeInt = 10  # M, tokens
    parts: Literal["adapter", "lora", "none"] = "adapter"
    lora_maps: tuple[Linear, ...] = ("q", "v")
    head: Literal["linear", "text"] = "linear"
    context: NonNegativeInt = 0  # learned context tokens of a text head

    def __post_init__(self) -> None:
        wrong = None
        if self.parts == "lora" and (not self.lora_maps or len(set(self.lora_maps)) != len(self.lora_maps)):
            wrong = f"lora_maps {self.lora_maps}"
        elif self.context and self.head != "text":
            wrong = f"context {self.context} with a {self.head} head"
        elif self.parts == "none" and not self.prompts and self.head == "text" and not self.context:
            wrong = "nothing that could be learned"
        if wrong:
            raise WrongUse(
                "no expert can be made of this",
                wanted="different maps for LoRA, context tokens for text heads only, and something to learn",
                came=wrong,
                remedy="Correct the settings of the expert.",
            )


class Expert(nn.Module):
    """What is learned for one domain. The backbone is passed in and never part of it."""

    def __init__(
        self,
        backbone: Backbone,
        classes: Sequence[str],
        *,
        rank: int,
        settings: ExpertSettings,
        generator: torch.Generator,
        template: str = TEMPLATE,
    ) -> None:
        super().__init__()
        d, hidden = backbone.width, backbone.vit.config.hidden
        self.prompt = nn.Parameter(0.02 * torch.randn(settings.prompts, d, generator=generator))
        self.adapters = nn.ModuleList()
        self.loras = nn.ModuleList()
        for _ in range(backbone.depth):
            if settings.parts == "adapter":
                self.adapters.append(Adapter(d, rank, generator=generator))
            elif settings.parts == "lora":
                sizes = {"fc1": (d, hidden), "fc2": (hidden, d)}
                pairs: dict[str, nn.Module] = {}
                for linear in settings.lora_maps:
                    pairs[linear] = LoRA(*sizes.get(linear, (d, d)), rank, generator=generator)
                self.loras.append(nn.ModuleDict(pairs))
        self.head: LinearHead | TextHead
        if settings.head == "linear":
            self.head = LinearHead(backbone.feature_width, len(classes), generator=generator)
        else:
            self.head = TextHead(backbone, classes, context=settings.context, template=template, generator=generator)
        self.to(backbone.device)

    def tuning(self) -> Tuning:
        """What this expert does to the frozen ViT."""
        return Tuning(
            tokens=self.prompt if len(self.prompt) else None,
            branch={block: {"mlp": adapter} for block, adapter in enumerate(self.adapters)},
            delta={block: dict(pairs.items()) for block, pairs in enumerate(self.loras)},  # type: ignore[operator]
        )

    def forward(self, images: Tensor, backbone: Backbone) -> Tensor:
        """Logits (B, classes of this domain)."""
        return self.classify(backbone(images, self.tuning()), backbone)

    def classify(self, features: Tensor, backbone: Backbone) -> Tensor:
        """Logits (B, classes of this domain) of what the backbone makes of images under this expert's tuning."""
        logits: Tensor = self.head(features, backbone)
        return logits


def parameter_count(backbone: Backbone, classes: int, *, rank: int, settings: ExpertSettings) -> int:
    """What an expert has: adapters 2Ldr + Ld + Lr, prompts Md, head Cd + C, as the paper counts them."""
    d, L, hidden = backbone.width, backbone.depth, backbone.vit.config.hidden
    parts = 0
    if settings.parts == "adapter":
        parts = 2 * L * d * rank + L * d + L * rank
    elif settings.parts == "lora":
        parts = L * rank * sum(d + (hidden if linear in ("fc1", "fc2") else d) for linear in settings.lora_maps)
    if settings.head == "linear":
        head = backbone.feature_width * classes + classes
    else:
        head = settings.context * (backbone.text.config.width if backbone.text else 0)
    return parts + settings.prompts * d + head
