"""What a domain's features look like, as a mixture of Gaussians: to be drawn from when the images are gone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bpg.prototypes import prototypes

STEPS, TOLERANCE = 100, 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class Gaussians:
    """A mixture of k Gaussians with full covariances."""

    shares: Tensor  # (k,) that sum to 1
    means: Tensor  # (k, d)
    covariances: Tensor  # (k, d, d)

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` features (count, d), float32."""
        which = torch.multinomial(self.shares.double(), count, replacement=True, generator=generator)
        noise = torch.randn(count, self.means.shape[1], dtype=torch.float64, generator=generator)
        roots = torch.linalg.cholesky(self.covariances.double())
        drawn = self.means.double()[which]
        for own, root in enumerate(roots):
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
