"""Randomness from names: a stream for each purpose, none depending on what was drawn before it."""

from __future__ import annotations

import hashlib

import torch


def seed_of(*key: str | int | bytes) -> int:
    """A seed (63 bits) that is a pure function of `key`.

    >>> seed_of(0, "photo", "order", 3) == seed_of(0, "photo", "order", 3) != seed_of(0, "photo", "order", 4)
    True
    """
    digest = hashlib.sha256()
    for part in key:
        encoded = part if isinstance(part, bytes) else str(part).encode()
        digest.update(f"{type(part).__name__}:{len(encoded)}:".encode() + encoded)
    return int.from_bytes(digest.digest()[:8], "little") >> 1


def generator_of(*key: str | int | bytes) -> torch.Generator:
    """A generator on the CPU, seeded from `key`."""
    return torch.Generator().manual_seed(seed_of(*key))
