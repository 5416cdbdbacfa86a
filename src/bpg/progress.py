"""How far a training is, and a bar that shows it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a training is."""

    step: int  # steps done
    steps: int
    images: int  # in this step
    loss: float  # of this step
    seconds: float  # since the loop began or went on


@contextmanager
def training_bar(title: str) -> Iterator[Callable[[Progress], None]]:
    """A bar on stderr with images a second, loss and time left; nothing where stderr is no terminal.

    with training_bar("photo") as show:
        BPG(backbone, progress=show).learn(photo)
    """
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn  # fmt: skip
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[speed]:.0f} images/s  loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(file=sys.stderr), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task(title, total=None, speed=0.0, loss=float("nan"))
        images = 0

        def show(now: Progress) -> None:
            nonlocal images
            images += now.images
            speed = images / max(now.seconds, 1e-9)
            bar.update(task, completed=now.step, total=now.steps, speed=speed, loss=now.loss)

        yield show
