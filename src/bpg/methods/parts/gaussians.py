"""What a domain's features look like, as a mixture of Gaussians: to be drawn from when the images are gone."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bpg.data.batches import FeatureBatches
from bpg.prototypes import prototypes
from bpg.randomness import generator_of

STEPS, TOLERANCE = 100, 1e-3


class Gaussians(nn.Module):
    """A mixture of k Gaussians with full covariances: shares (k,), means (k, d), covariances (k, d, d)."""

    shares: Tensor
    means: Tensor
    covariances: Tensor

    def __init__(self, shares: Tensor, means: Tensor, covariances: Tensor) -> None:
        super().__init__()
        for name, own in (("shares", shares), ("means", means), ("covariances", covariances)):
            self.register_buffer(name, own)

    @classmethod
    def empty(cls, k: int, width: int) -> Gaussians:
        """One that is yet to be filled."""
        return cls(torch.empty(k), torch.empty(k, width), torch.empty(k, width, width))

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` features (count, d), float32, on the CPU."""
        shares, means = self.shares.cpu().double(), self.means.cpu().double()
        which = torch.multinomial(shares, count, replacement=True, generator=generator)
        noise = torch.randn(count, means.shape[1], dtype=torch.float64, generator=generator)
        drawn = means[which]
        for own, root in enumerate(torch.linalg.cholesky(self.covariances.cpu().double())):
            drawn[which == own] += noise[which == own] @ root.T
        return drawn.float()


def fitted(features: Tensor, *, k: int, seed: int, floor: float = 1e-4) -> Gaussians:
    """The mixture of k Gaussians that explains `features` (n, d) best, by expectation and maximisation from k-means.

    `floor` is added to every variance: a domain of few images has no covariance of full rank.
    """
    x = features.cpu().double()
    centres = prototypes(x, k=k, seed=seed)
    k = len(centres)
    belongs = torch.nn.functional.one_hot(torch.cdist(x, centres).argmin(dim=1), k).double()  # (n, k)
    before = -math.inf
    for _ in range(STEPS):
        found = _maximised(x, belongs, floor)
        log_likelihood = torch.stack([_log_density(x, found, own) for own in range(k)], dim=1)  # (n, k)
        whole = log_likelihood.logsumexp(dim=1)
        belongs = (log_likelihood - whole[:, None]).exp()
        now = float(whole.mean())
        if abs(now - before) < TOLERANCE:
            break
        before = now
    return Gaussians(found.shares.float(), found.means.float(), found.covariances.float())


def _maximised(x: Tensor, belongs: Tensor, floor: float) -> Gaussians:
    sizes = belongs.sum(dim=0).clamp(min=1e-10)
    means = belongs.T @ x / sizes[:, None]
    covariances = []
    for own in range(belongs.shape[1]):
        apart = x - means[own]
        spread = (belongs[:, own, None] * apart).T @ apart / sizes[own]
        covariances.append(spread + floor * torch.eye(x.shape[1], dtype=x.dtype))
    return Gaussians(sizes / sizes.sum(), means, torch.stack(covariances))


def _log_density(x: Tensor, mixture: Gaussians, own: int) -> Tensor:
    """log of share times density of one Gaussian, (n,)."""
    root = torch.linalg.cholesky(mixture.covariances[own])
    white = torch.linalg.solve_triangular(root, (x - mixture.means[own]).T, upper=False)
    log_det = 2 * root.diagonal().log().sum()
    log_share = mixture.shares[own].clamp(min=1e-300).log()
    density: Tensor = log_share - 0.5 * (white.square().sum(dim=0) + log_det + x.shape[1] * math.log(2 * math.pi))
    return density


@dataclass(frozen=True, eq=False)
class Replay:
    """Batches in which every label has the same share: new features, and drawn ones of the other labels."""

    own: FeatureBatches
    features: Tensor  # drawn, (m, d)
    labels: Tensor  # (m,)

    @property
    def steps(self) -> int:
        return self.own.steps

    def stream(self, first: int, *, rank: int = 0, ranks: int = 1) -> Generator[tuple[Tensor, Tensor, int], None, None]:
        """(features, labels, size of the whole batch) of each step from `first` on."""
        labels = len(set(self.labels.tolist())) + 1
        for step, (x, y, _) in enumerate(self.own.stream(first), start=first):
            kept = max(1, len(x) // labels)
            generator = generator_of(self.own.seed, self.own.domain, "drawn", step)
            drawn = torch.randint(len(self.features), (max(1, len(x) - kept),), generator=generator)
            whole = torch.cat([x[:kept], self.features[drawn]])
            of = torch.cat([y[:kept], self.labels[drawn]])
            yield whole[rank::ranks], of[rank::ranks], len(whole)
