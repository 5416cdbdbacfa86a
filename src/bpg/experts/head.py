"""Heads: from a feature to logits over a domain's classes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bpg.backbones.backbone import Backbone
from bpg.backbones.clip import TextTower
from bpg.errors import WrongUse


class LinearHead(nn.Module):
    """y_t = W_t h_t + b_t (eq:domain_logits)."""

    def __init__(self, width: int, classes: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = nn.Linear(width, classes)
        bound = 1 / math.sqrt(width)
        for tensor in (self.linear.weight, self.linear.bias):
            nn.init.uniform_(tensor, -bound, bound, generator=generator)

    def forward(self, features: Tensor, backbone: Backbone) -> Tensor:
        del backbone
        logits: Tensor = self.linear(features)
        return logits


class TextHead(nn.Module):
    """Similarity to CLIP's features of the class names, times the logit scale; `context` tokens are learned."""

    def __init__(
        self, backbone: Backbone, names: Sequence[str], *, context: int, template: str, generator: torch.Generator
    ) -> None:
        super().__init__()
        text = check_text(backbone)
        self.names, self.template = tuple(names), template
        width = text.config.width
        self.context = nn.Parameter(0.02 * torch.randn(context, width, generator=generator)) if context else None
        self._fixed: dict[tuple[str, str], Tensor] = {}  # by device and precision, of a context seen without gradient

    def of(self, backbone: Backbone, names: Sequence[str]) -> TextHead:
        """The same words before other names."""
        other = TextHead(backbone, names, context=0, template=self.template, generator=torch.Generator())
        other.context = self.context
        return other

    def forward(self, features: Tensor, backbone: Backbone) -> Tensor:
        return backbone.logit_scale * F.normalize(features, dim=-1) @ self._text(backbone).T  # type: ignore[operator]

    def train(self, mode: bool = True) -> TextHead:
        self._fixed.clear()
        return super().train(mode)

    def _text(self, backbone: Backbone) -> Tensor:
        """Text features (C, E): computed once, unless the context is being learned."""
        if self.context is not None and self.context.requires_grad and torch.is_grad_enabled():
            return backbone.class_features(self.names, context=self.context)
        key = str(backbone.device), backbone.precision
        if key not in self._fixed:
            with torch.no_grad():
                self._fixed[key] = backbone.class_features(self.names, template=self.template, context=self.context)
        return self._fixed[key]


def check_text(backbone: Backbone) -> TextTower:
    """The text tower of a backbone, or WrongUse."""
    if backbone.text is None or backbone.logit_scale is None:
        raise WrongUse(
            f"{backbone.name} cannot compare images with class names",
            wanted="a CLIP backbone for a text head",
            came="a ViT without a text tower",
            remedy="Use head='linear', or a CLIP backbone.",
        )
    return backbone.text
