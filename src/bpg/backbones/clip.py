"""CLIP's text tower: class names in, unit-length text features out.

Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", 2021, arXiv 2103.00020. The
image tower is the one ViT (`vit.py`) with a norm before block 0 and a projection.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from bpg.backbones.tokenizer import CONTEXT_LENGTH, END, tokenize
from bpg.backbones.vit import Activation, Block
from bpg.config import settings
from bpg.errors import WrongUse


@settings
class TextConfig:
    """The shape of a text tower; the defaults are those of CLIP ViT-B."""

    width: PositiveInt = 512
    depth: PositiveInt = 12
    heads: PositiveInt = 8
    hidden: PositiveInt = 2048
    projection: PositiveInt = 512  # the space shared with images
    vocabulary: PositiveInt = END + 1
    context_length: PositiveInt = CONTEXT_LENGTH
    activation: Activation = "quick_gelu"
    norm_epsilon: PositiveFloat = 1e-5


def words(name: str) -> str:
    """A class name as CLIP reads it: underscores are spaces, and a number that only sorts folders is left out.

    >>> words("aircraft_carrier"), words("001.ak47"), words("0_real"), words("t-shirt"), words("7")
    ('aircraft carrier', 'ak47', 'real', 't-shirt', '7')
    """
    return " ".join(re.sub(r"^\d+[._ ]+(?=\D)", "", name).replace("_", " ").split()) or name


class TextTower(nn.Module):
    """A causal transformer whose output at a text's end mark is the text's feature."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = c = config
        self.embedding = nn.Embedding(c.vocabulary, c.width)
        self.position = nn.Parameter(torch.zeros(c.context_length, c.width))
        self.blocks = nn.ModuleList(
            Block(c.width, c.heads, c.hidden, activation=c.activation, epsilon=c.norm_epsilon) for _ in range(c.depth)
        )
        self.norm = nn.LayerNorm(c.width, eps=c.norm_epsilon)
        self.projection = nn.Parameter(torch.zeros(c.width, c.projection))

    def forward(self, ids: Tensor, *, context: Tensor | None = None) -> Tensor:
        """Features (n, E) of token ids (n, length), not yet of unit length.

        `context` (M, d), or (n, M, d) with one per text, stands between a text's opening mark and its words: learned
        tokens, as in S-liPrompts.
        """
        z = self.embedding(ids)
        ends = ids.argmax(dim=1)  # the end mark has the highest id
        if context is not None:
            self._check_context(context, len(ids))
            z = torch.cat([z[:, :1], context.expand(len(ids), -1, -1).to(z.dtype), z[:, 1:]], dim=1)
            z, ends = z[:, : self.config.context_length], ends + context.shape[-2]
        z = z + self.position[: z.shape[1]]
        for block in self.blocks:
            z = block(z, causal=True)
        at_end: Tensor = self.norm(z[torch.arange(len(z), device=z.device), ends])
        return at_end @ self.projection

    def class_features(
        self, names: Sequence[str], *, template: str = "a photo of a {}.", context: Tensor | None = None
    ) -> Tensor:
        """Unit-length features (C, E) of class names, in words.

        With `context`, the learned tokens stand in place of the template's words, and a full stop closes the text.
        """
        template = template if context is None else "{}."
        texts = [template.format(words(name)) for name in names]
        ids = tokenize(texts, context_length=self.config.context_length)
        if context is not None:
            self._check_context(context, len(ids))
            self._check_room(ids, context.shape[-2])
        return F.normalize(self(ids.to(self.position.device), context=context).float(), dim=-1)

    def _check_context(self, context: Tensor, texts: int) -> None:
        width = self.config.width
        if context.ndim not in (2, 3) or context.shape[-1] != width or (context.ndim == 3 and len(context) != texts):
            raise WrongUse(
                "the context tokens do not fit",
                wanted=f"shape (length, {width}) or ({texts}, length, {width})",
                came=str(tuple(context.shape)),
                remedy="The last side is the width of the text tower.",
            )

    def _check_room(self, ids: Tensor, context: int) -> None:
        needed = int(ids.argmax(dim=1).max()) + 1 + context
        if needed > self.config.context_length:
            raise WrongUse(
                "a class name and its context tokens are too long",
                wanted=f"{self.config.context_length} tokens at most",
                came=f"{needed}",
                remedy="Use fewer context tokens or shorter class names.",
            )
