"""Who may speak: from an image's distances to the domains to a weight for each of them. All in float64.

A router turns distances (B, T) into confidences (B, T) that sum to one; `survivors` then says which of them count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bpg.backbones.backbone import FINISHED, Probe
from bpg.compute import as_float64
from bpg.errors import WrongUse
from bpg.prototypes import Place

EARLY = ((1 / 4, "moments"), (5 / 12, "moments"), (2 / 3, "class"))  # share of the blocks, kind of feature
SHARPEST = 1e-6  # temperature; where distances do not vary, the nearest domain wins
# Distances (B, T), and by how much those of a domain's own images vary -> confidences (B, T).
Router = Callable[[Tensor, float], Tensor]


def stops(depth: int) -> tuple[Probe, ...]:
    """Where a ViT of `depth` blocks can be routed at: at its finished feature, and on the way there.

    The fixed set lets a model choose among them later, when the images are gone.
    """
    early: dict[int, Probe] = {}
    for share, kind in EARLY:
        blocks = max(1, int(share * depth + 0.5))
        if blocks < depth:
            early.setdefault(blocks, Probe(blocks, kind))  # type: ignore[arg-type]
    return FINISHED, *early.values()


class Places:
    """Where all domains lie, side by side: the distances to all their prototypes are one matrix product.

    `spread` is by how much the distances of a domain's own images vary, over the domains where they do.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        if not places:
            raise WrongUse("no domain is known", wanted="at least one", came="none", remedy="Learn a domain first.")
        self.domains = len(places)
        self._varies = torch.tensor([place.varies for place in places])  # (T,)
        varying = [place.variance for place in places if place.varies]
        self.spread = math.sqrt(max(0.0, sum(varying) / max(1, len(varying))))
        every = torch.cat([place.prototypes.double() for place in places])
        self._doubled, self._sizes = 2 * every.T, every.square().sum(dim=1)
        counts = torch.tensor([len(place.prototypes) for place in places])
        self._owners = torch.repeat_interleave(torch.arange(self.domains), counts)
        self._reach = torch.stack([place.reach.double() for place in places])  # (T, 21)

    def distances(self, features: Tensor) -> Tensor:
        """a_t = min_j |z - nu_tj| (eq:nearest_distance) of features (B, d) to each domain's prototypes, (B, T).

        All that follows from them is computed where they are: with the features, or on the CPU.
        """
        z = as_float64(features)
        own = z.square().sum(dim=1, keepdim=True)
        squared = (own - z @ self._doubled.to(z.device) + self._sizes.to(z.device)).clamp(min=0)  # (B, all k_t)
        owners = self._owners.to(z.device).expand(len(z), -1)
        farthest = z.new_full((len(z), self.domains), torch.inf)
        return farthest.scatter_reduce(1, owners, squared, "amin").sqrt()

    def unknown(self, distance: Tensor) -> Tensor:
        """How much each image looks like none of the domains, (B,) from 0 to 1: the share of a domain's own images
        that lie nearer to it than this one, for the domain that claims the image most.

        Honest: of images from known domains, not more than a share 1 - u gets a score above u. Not a number where the
        nearest domain was learned from so few images that nobody knows how far it reaches; nor has it a say elsewhere.
        """
        reach = self._reach.to(distance.device)
        a = distance.T.contiguous()  # (T, B)
        above = torch.searchsorted(reach, a, right=True).clamp(1, reach.shape[1] - 1)
        low, high = reach.gather(1, above - 1), reach.gather(1, above)
        part = ((a - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
        share = (above - 1 + part) / (reach.shape[1] - 1)  # (T, B)
        varies = self._varies.to(distance.device)
        least = share.masked_fill(~varies[:, None], 1.0).amin(dim=0)
        return least.masked_fill(~varies[distance.argmin(dim=1)], torch.nan)


def soft(distance: Tensor, spread: float = 1.0) -> Tensor:
    """w = softmax(-a) over the domains (eq:softmax_confidence), (B, T): the paper's."""
    del spread
    return torch.softmax(-distance.double(), dim=1)


def calibrated(distance: Tensor, spread: float) -> Tensor:
    """w = softmax(-a / sigma), (B, T): a domain that is nearer by what chance does to a distance is e times as likely.

    Leaves the paper, whose temperature of 1 is about the largest distance that unit-length features can have between
    domains; docs/mixture.md has the numbers.
    """
    return torch.softmax(-distance.double() / max(spread, SHARPEST), dim=1)


def hard(distance: Tensor, spread: float = 1.0) -> Tensor:
    """All weight on the nearest domain; of equally near ones, on the first by name."""
    del spread
    return torch.nn.functional.one_hot(distance.argmin(dim=1), distance.shape[1]).double()


def oracle(domain: Tensor, count: int) -> Tensor:
    """All weight on the true domain (B,), of `count`. The only router that is told; for measurements."""
    return torch.nn.functional.one_hot(domain, count).double()


def survivors(confidence: Tensor) -> Tensor:
    """Who is at least as likely as chance: w_t >= 1 / T, (B, T) bool. The likeliest always stays."""
    least = 1 / confidence.shape[1]
    # T equal confidences are each 1 / T but for rounding, and all stay.
    return (confidence >= least * (1 - 1e-12)) | (confidence == confidence.amax(dim=1, keepdim=True))
