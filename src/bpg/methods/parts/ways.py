"""How a model with experts answers: who speaks, how loud, and what is saved on the way; no part of what it learns."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from bpg.backbones.faster import ARITHMETICS, Arithmetic
from bpg.errors import PluginError, WrongUse, unknown_name
from bpg.mixture import Fusion, check_fusion
from bpg.registry import ROUTERS
from bpg.routing import Router

ORACLE = "oracle"
OWN = "own"  # a method's own inference, where it has one
WAY_OPTIONS = ("mixture", "router", "fusion", "route_depth", "max_experts", "arithmetic")


@dataclass(frozen=True, slots=True)
class Way:
    """Who speaks at test time, and how they are fused. The oracle, which is told the domain, and a method's own
    inference are no registered routers.
    """

    router: str = "soft"
    fusion: Fusion = "threshold+l1"
    route_depth: int = 0  # blocks after which images are routed; 0: after the last
    max_experts: int | None = None  # that may speak on an image; the likeliest
    arithmetic: Arithmetic = "exact"  # of the frozen backbone

    def __str__(self) -> str:
        early = f"routed after block {self.route_depth}" if self.route_depth else ""
        most = f"at most {self.max_experts} experts" if self.max_experts is not None else ""
        rough = self.arithmetic if self.arithmetic != "exact" else ""
        fusion = self.fusion if self.router != OWN else ""
        return ", ".join(part for part in (self.router, fusion, early, most, rough) if part)


MIXTURES = {"calibrated": Way("calibrated", "probabilities"), "paper": Way("soft", "threshold+l1")}


def way_of(
    mixture: str = "calibrated",
    *,
    router: str | None = None,
    fusion: Fusion | None = None,
    route_depth: int = 0,
    max_experts: int | None = None,
    arithmetic: Arithmetic = "exact",
) -> Way:
    """The way that options ask for: a known mixture, or a router and a fusion in the place of its own.

    A router that is not the mixture's own comes with the paper's fusion unless another is given.
    """
    if mixture not in MIXTURES:
        raise unknown_name("mixture", mixture, MIXTURES)
    known = MIXTURES[mixture]
    if arithmetic not in ARITHMETICS:
        raise unknown_name("arithmetic", arithmetic, ARITHMETICS)
    if router == OWN:
        if fusion is not None or route_depth or max_experts is not None:
            raise WrongUse(
                "a method's own inference is not fused, routed early or capped",
                wanted="a router beside fusion, route_depth and max_experts",
                came="none, or own",
                remedy="Name a router, such as soft.",
            )
        return Way(OWN, arithmetic=arithmetic)
    if router is not None and router != known.router:
        router_of(router)  # a typo is told before anything is learned
        known = Way(router)
    if max_experts is not None and (not isinstance(max_experts, int) or max_experts < 1):
        raise WrongUse(
            "nobody may speak", wanted="max_experts of 1 or more", came=repr(max_experts), remedy="Raise it."
        )
    found = Way(known.router, fusion or known.fusion, route_depth, max_experts, arithmetic)
    check_fusion(found.fusion)
    return found


def router_of(name: str) -> Router:
    """The router of that name, which can be called as one."""
    router: Router = ROUTERS[name]
    try:
        inspect.signature(router).bind("distance", "spread")
    except (TypeError, ValueError) as error:  # ValueError: it has no signature to look at
        raise PluginError(
            f"the router {name} cannot be called",
            wanted="a function of (distance, spread)",
            came=str(error),
            remedy="Update or remove the package that brings it; a router may leave the spread unused.",
        ) from error
    return router
