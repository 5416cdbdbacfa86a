"""The code bases that ours is compared with. Tests import them through here and nowhere else."""

from __future__ import annotations

from bpg.bench.peers import imported as oracle

__all__ = ["oracle"]
