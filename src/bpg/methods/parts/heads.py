"""Heads that all domains share, and that new classes may be added to.

A head has a row for each class, or for each class of each domain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bpg.experts.head import LinearHead
from bpg.randomness import generator_of

OF = "\u241f"  # between class and domain in the name of a row, where every domain has its own


def classes_of(rows: Sequence[str]) -> tuple[str, ...]:
    """The classes that these rows of a head are of, sorted."""
    return tuple(sorted({row.partition(OF)[0] for row in rows}))


def per_class(logits: Tensor, rows: Sequence[str]) -> Tensor:
    """Log-probabilities (B, C) from logits (B, rows): the best row of a class speaks for it."""
    classes = classes_of(rows)
    if classes != tuple(rows):
        places = [classes.index(row.partition(OF)[0]) for row in rows]
        owner = torch.tensor(places, device=logits.device).expand(len(logits), -1)
        empty = logits.new_full((len(logits), len(classes)), -torch.inf)
        logits = empty.scatter_reduce(1, owner, logits, "amax")
    return torch.log_softmax(logits, dim=1)


class GrowingHead(nn.Module):
    """One linear map over all classes seen, in the order of their names."""

    bias: nn.Parameter | None

    def __init__(self, width: int, *, zero: bool = False) -> None:
        super().__init__()
        self.width, self.zero = width, zero  # whether new rows begin as nothing
        self.classes: tuple[str, ...] = ()
        self.weight = nn.Parameter(torch.empty(0, width))
        self.bias = nn.Parameter(torch.empty(0))

    def grow(self, names: Sequence[str], *, seed: int) -> None:
        """Take in classes that are new; the weights of the others stay as they are."""
        classes = tuple(sorted({*self.classes, *names}))
        if classes == self.classes:
            return
        known = {name: place for place, name in enumerate(self.classes)}
        fresh = {}
        for name in set(classes) - set(known):
            linear = LinearHead(self.width, 1, generator=generator_of(seed, name, "head")).linear.to(self.weight)
            fresh[name] = {
                own: torch.zeros_like(row[0]) if self.zero else row[0] for own, row in linear.state_dict().items()
            }
        for own in ("weight", "bias"):
            old = getattr(self, own)
            if old is not None:
                rows = [old.detach()[known[name]] if name in known else fresh[name][own] for name in classes]
                setattr(self, own, nn.Parameter(torch.stack(rows)))
        self.classes = classes

    def places(self, names: Sequence[str]) -> Tensor:
        """Where these classes stand, (len(names),)."""
        return torch.tensor([self.classes.index(name) for name in names], dtype=torch.long)

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight, self.bias)


class CosineHead(GrowingHead):
    """The cosine of feature and row, times a scale that is learned."""

    def __init__(self, width: int, *, scale: float) -> None:
        super().__init__(width)
        self.bias = None
        self.scale = nn.Parameter(torch.tensor(float(scale)))

    @torch.no_grad()
    def imprint(self, means: Mapping[str, Tensor]) -> None:
        """Put rows to these mean features, as long as the other rows are on average."""
        others = [at for at, name in enumerate(self.classes) if name not in means]
        length = self.weight[others].norm(dim=1).mean() if others else torch.ones(())
        for name, mean in means.items():
            self.weight[self.classes.index(name)] = length.to(mean) * F.normalize(mean, dim=0)

    def cosines(self, features: Tensor, weight: Tensor | None = None) -> Tensor:
        """(B, rows), by other rows where a `weight` is given."""
        rows = self.weight if weight is None else weight
        return F.normalize(features, dim=-1) @ F.normalize(rows, dim=-1).T

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * self.cosines(features)


class AveragedHead(GrowingHead):
    """A head, and beside it what it was on average over training steps. The average is kept in buffers."""

    average_weight: Tensor
    average_bias: Tensor

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.register_buffer("average_weight", torch.empty(0, width))
        self.register_buffer("average_bias", torch.empty(0))

    def grow(self, names: Sequence[str], *, seed: int) -> None:
        """As the head: the average of new rows begins where they do."""
        before = self.classes
        super().grow(names, seed=seed)
        places = self.places(before)
        for own, now in dict(self.named_parameters()).items():
            wide = now.detach().clone()
            wide[places] = getattr(self, f"average_{own}")
            setattr(self, f"average_{own}", wide)

    @torch.no_grad()
    def follow(self, stay: Tensor | float) -> None:
        """Move the average to where the head is, by 1 - `stay`."""
        for own, now in dict(self.named_parameters()).items():
            average = getattr(self, f"average_{own}")
            average.copy_(stay * average + (1 - stay) * now)

    def steady(self, features: Tensor) -> Tensor:
        """Logits by the average."""
        return F.linear(features, self.average_weight, self.average_bias)
