"""Frozen graphs of passes over tokens: the same arithmetic without Python between one operation and the next."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

Found = TypeVar("Found", Tensor, tuple[Tensor, ...])


class Graphs:
    """The graphs of each owner's passes, made when they are first asked for: once, up to a second each.

    An owner is the backbone, or an expert that does not change any more. Its weights are the constants of its graphs,
    not copies of them, and when it goes, they go. A graph takes any number of images. Copies begin with no graph.
    """

    def __init__(self) -> None:
        self._graphs: WeakKeyDictionary[nn.Module, dict[Hashable, Any]] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[type[Graphs], tuple[()]]:
        return Graphs, ()

    def run(self, act: Callable[[Tensor], Found], tokens: Tensor, *, owner: nn.Module, key: Hashable = None) -> Found:
        """`act` on tokens (B, n, d), within rounding. Of an owner, `key` tells one pass from another.

        While the owner can still be trained, it is `act` itself.
        """
        own = self._graphs.setdefault(owner, {})
        if key not in own:
            if any(parameter.requires_grad for parameter in owner.parameters()):
                return act(tokens)
            own[key] = _frozen(act, tokens)
        found: Found = own[key](tokens)
        return found


class _Pass(nn.Module):
    def __init__(self, act: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.act = act

    def forward(self, tokens: Tensor) -> Any:
        return self.act(tokens)


def _frozen(act: Callable[[Tensor], Any], tokens: Tensor) -> Any:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch plans another way for these functions, and warns of the shape checks
        traced = torch.jit.trace(_Pass(act).eval(), tokens, check_trace=False)  # type: ignore[no-untyped-call]
        return torch.jit.freeze(traced)
