"""Several processes that torchrun started for one piece of work: who is who, and what they tell each other.

What is said to be for all ranks must be called by all of them, in the same order: one that is left out leaves the
others waiting.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, cast

import torch
import torch.distributed as dist

from bpg.errors import RanksError

T = TypeVar("T")


def rank_and_ranks() -> tuple[int, int]:
    """This process's rank and their number; joins the others when started by torchrun."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ and not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        atexit.register(dist.destroy_process_group)  # its threads must not outlive the interpreter
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def gathered(value: T) -> list[T]:
    """The `value` of each rank, in their order; for all ranks. Tensors must be on the CPU and own their memory."""
    ranks = rank_and_ranks()[1]
    if ranks == 1:
        return [value]
    found: list[T] = [value] * ranks
    dist.all_gather_object(found, value)  # over gloo, also where there are GPUs
    return found


def once(work: Callable[[], T]) -> T:
    """`work` on the first rank alone; what it returned, on all. The others wait for it; for all ranks."""
    done = work() if rank_and_ranks()[0] == 0 else None
    return cast(T, gathered(done)[0])


def agree(what: str, value: object) -> None:
    """Wait for all ranks, and refuse to go on where one sees another `value`: it would take other steps."""
    seen = gathered(value)
    if any(other != seen[0] for other in seen):
        raise RanksError(
            f"the ranks do not see the same: {what}",
            wanted=f"{seen[0]}, as the first has it",
            came="; ".join(f"{other} on rank {rank}" for rank, other in enumerate(seen) if other != seen[0]),
            remedy="Give all machines the same images and config, and an --out on a disk that they share.",
        )


def share(count: int, size: int) -> list[int]:
    """Which of `count` items are this rank's, dealt out in batches of `size`.

    Whole batches: each is the one that a single process makes, so that what is computed from it is the same bytes.
    """
    rank, ranks = rank_and_ranks()
    starts = range(rank * size, count, ranks * size)
    return [index for start in starts for index in range(start, min(start + size, count))]


def in_order(own: Iterable[T]) -> Iterator[T]:
    """What all ranks make of their shares, batch by batch, in the order before they were dealt out; for all ranks."""
    ranks = rank_and_ranks()[1]
    if ranks == 1:
        yield from own
        return
    mine = iter(own)
    while True:
        found = [each for each in gathered(next(mine, None)) if each is not None]
        yield from found
        if len(found) < ranks:
            return
