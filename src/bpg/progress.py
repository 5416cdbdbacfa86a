"""How far a piece of work is, and a bar that shows it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a survey or a training is."""

    step: int  # steps done
    steps: int
    images: int  # seen since the loop began or went on
    loss: float | None  # of this step, where there is one
    seconds: float  # since the loop began or went on
    activity: str = "training"


class Clock:
    """Since when something is done: by the wall, and in what this process has computed, whatever others did."""

    def __init__(self) -> None:
        self.wall, self.processor = time.monotonic(), time.process_time()

    def as_dict(self) -> dict[str, float]:
        """What has passed since then."""
        now = {"seconds": time.monotonic() - self.wall, "processor_seconds": time.process_time() - self.processor}
        return {what: round(spent, 4) for what, spent in now.items()}


def added(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """What two clocks tell, together."""
    return {what: round(spent + other.get(what, 0.0), 4) for what, spent in one.items()}


def counted(show: Callable[[Progress], None], activity: str) -> Callable[[int, int], None]:
    """`show` for work that only counts images: to be called with those done and their number."""
    began = time.monotonic()

    def tell(done: int, total: int) -> None:
        show(Progress(done, total, done, None, time.monotonic() - began, activity))

    return tell


@contextmanager
def progress_bar(title: str, *, quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """A bar on stderr with images a second, loss and time left, which starts anew with each activity.

    Nothing where stderr is no terminal.

    with progress_bar("photo") as show:
        BPG(backbone, progress=show).learn(photo)
    """
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn  # fmt: skip
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}  {task.fields[speed]}", markup=False),
        TimeRemainingColumn(),
    )
    hidden = quiet or not sys.stderr.isatty()
    # What is printed beside a bar stays on stdout: to redirect it would send it to the bar's own stream.
    console = Console(file=sys.stderr)
    with Bars(*columns, console=console, disable=hidden, transient=True, redirect_stdout=False) as bars:
        task = bars.add_task(title, total=None, speed="")
        activity = ""

        def show(now: Progress) -> None:
            nonlocal activity
            speed = f"{now.images / max(now.seconds, 1e-9):.0f} images/s"
            if now.loss is not None:
                speed += f"  loss {now.loss:.3f}"
            if now.activity != activity:
                activity = now.activity
                bars.reset(task, description=f"{title}: {activity}")
            bars.update(task, completed=now.step, total=now.steps, speed=speed)

        yield show
