"""Capacity: the adapter dimension r_t that a domain gets, from how separable its frozen features are."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

from bpg.errors import WrongUse

MAX_RANK = 1024  # the largest that the paper tried


def allocate(separability: float, *, lam: float, max_rank: int = MAX_RANK) -> int:
    """r_t = lambda / s_t with lambda = s_0 r_0 (eq:rt_rule); halves up, at least 1, at most `max_rank`.

    >>> [allocate(s, lam=0.756 * 64) for s in (0.221, 0.124, 0.293, 0.151, 0.530, 0.156)]  # DomainNet
    [219, 390, 165, 320, 91, 310]
    """
    if not (0 < lam < math.inf and separability >= 0 and max_rank >= 1):  # also NaN
        raise WrongUse(
            "no capacity follows from this",
            wanted="a positive lambda, a separability of 0 or more, a max_rank of 1 or more",
            came=f"lambda {lam}, separability {separability}, max_rank {max_rank}",
            remedy="Check s_0, r_0 and max_rank.",
        )
    exact = math.inf if separability == 0 else lam / separability
    if exact >= max_rank + 0.5:
        warnings.warn(f"the rule asks for {exact:.0f} hidden dimensions; {max_rank} are given (max_rank)", stacklevel=2)
        return max_rank
    # A quotient that is a half but for the last bit of the division counts as one.
    return max(1, math.floor(exact + 0.5 + 1e-9 * exact))


def solve_budget(
    separabilities: Sequence[float],
    *,
    cost: Callable[[int, int], float],
    total: float,
    max_rank: int = MAX_RANK,
) -> float:
    """The largest lambda whose ranks cost at most `total` together; `cost(rank, domain)` is in the unit of `total`.

    Solved once, before anything is trained, and stored: a domain's rank must not depend on what else was learned.
    """
    if not separabilities:
        raise WrongUse("no domains to share a budget", wanted="at least one", came="none", remedy="Survey them first.")

    def spent(lam: float) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ranks = [allocate(s, lam=lam, max_rank=max_rank) for s in separabilities]
        return sum(cost(rank, domain) for domain, rank in enumerate(ranks))

    positive = [s for s in separabilities if s > 0]
    low = 1e-9 * min(positive, default=1.0)
    if not spent(low) <= total:
        raise WrongUse(
            "the budget is too small",
            wanted=f"at least {spent(low):.6g}, which the smallest ranks cost",
            came=f"{total:.6g}",
            remedy="Raise the budget or learn fewer domains.",
        )
    high = (max_rank + 1) * max(positive, default=1.0)
    if spent(high) <= total:
        return high
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) <= total else (low, middle)
    return low
