"""Reading ahead: items are loaded in threads while the caller computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

K = TypeVar("K")
V = TypeVar("V")


def ahead(load: Callable[[K], V], keys: Iterable[K], *, window: int) -> Generator[V, None, None]:
    """`load` of each key, in order, with up to `window` of them under way."""
    with ThreadPoolExecutor(max_workers=torch.get_num_threads(), thread_name_prefix="bpg-read") as pool:
        futures: deque[Future[V]] = deque()
        try:
            for key in keys:
                futures.append(pool.submit(load, key))
                if len(futures) >= window:
                    yield futures.popleft().result()
            while futures:
                yield futures.popleft().result()
        finally:
            for future in futures:
                future.cancel()
