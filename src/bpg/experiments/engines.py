"""Who does the jobs of a grid: this process, several on this machine, or the workers of a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bpg.compute import available_cores, choose_device, set_threads
from bpg.errors import BPGError, WrongUse
from bpg.experiments.grid import Grid, Standing, whole_of
from bpg.experiments.scale import Job
from bpg.experiments.workshop import Workshop
from bpg.progress import progress_bar

Engine = Literal["local", "ray"]
Tell = Callable[[Standing], None]
RETRIES = 3  # of a Ray task whose worker died; each goes on where the last one was


@dataclass(frozen=True)
class Means:
    """What jobs are done with."""

    device: str = "auto"
    threads: int | None = None  # of each process
    processes: int = 1  # at a time, on this machine
    cpus: float = 1.0  # of a Ray worker for a job
    gpus: float = 0.0  # likewise
    quiet: bool = True  # no bars
    track: Path | None = None  # where TensorBoard's logs go
    checkpoint_seconds: float = 10.0

    def workshop(self, runs: Path) -> Workshop:
        """A place to work at, in this process."""
        set_threads(self.threads)
        quiet = self.quiet

        def bar(title: str) -> Any:
            return progress_bar(title, quiet=quiet)

        return Workshop(
            runs,
            device=choose_device(self.device),
            bar=bar,
            track=self.track,
            checkpoint_seconds=self.checkpoint_seconds,
        )


def run_local(out: Path, runs: Path, jobs: Sequence[Job], means: Means, *, session: str, tell: Tell) -> None:
    """Do the jobs in this process, or in several, each with its share of the cores."""
    if means.processes == 1:
        workshop = means.workshop(runs)
        Grid(out).work(jobs, workshop.do, runs, session=session, tell=tell)
        return
    share = means.threads or max(1, available_cores() // means.processes)
    context = multiprocessing.get_context("spawn")
    told = context.SimpleQueue()
    arguments = (out, runs, list(jobs), replace(means, threads=share, quiet=True), session, told)
    workers = [context.Process(target=_work, args=arguments) for _ in range(means.processes)]
    try:
        for worker in workers:
            worker.start()
        left = len(workers)
        while left:  # a worker that is killed says nothing: look for it, too
            while told.empty() and any(worker.is_alive() for worker in workers):
                workers[0].join(timeout=0.1)
            if told.empty():
                break
            said = told.get()
            if said is None:
                left -= 1
            else:
                tell(said)
        for worker in workers:
            worker.join()
    except BaseException:
        for worker in workers:
            worker.terminate()
        raise
    gone = [worker for worker in workers if worker.exitcode]
    if gone:
        warnings.warn(
            f"{len(gone)} of {len(workers)} processes ended early; the same command goes on with what they left",
            stacklevel=2,
        )


def _work(out: Path, runs: Path, jobs: Sequence[Job], means: Means, session: str, told: Any) -> None:
    """What one of several processes does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process is told, and ends the others
    signal.signal(signal.SIGTERM, lambda *_: _end())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    Grid(out).work(jobs, means.workshop(runs).do, runs, session=session, tell=told.put)
    told.put(None)


def _end() -> None:
    raise SystemExit(143)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a child
    parent.join()
    os._exit(1)


def run_on_ray(out: Path, runs: Path, jobs: Sequence[Job], means: Means, *, session: str, tell: Tell) -> None:
    """Do the jobs as tasks of a Ray cluster: $RAY_ADDRESS, or else one of this machine. `out` and `runs` are on a disk
    that all workers see. A task whose worker dies is started again and goes on where it was.
    """
    try:
        import ray
    except ImportError as error:
        raise WrongUse(
            "Ray is not installed",
            wanted="the package ray",
            came="none",
            remedy="pip install 'bpg-dil[cluster]', or leave --engine out.",
        ) from error
    started = not ray.is_initialized()
    if started:
        address = os.environ.get("RAY_ADDRESS")
        ray.init(
            address=address,
            num_cpus=None if address else max(1, int(means.processes * means.cpus)),
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
        )
    remote = ray.remote(num_cpus=means.cpus, num_gpus=means.gpus, max_retries=RETRIES)(_task)
    grid = Grid(out)
    places = (str(out.resolve()), str(runs.resolve()))
    try:
        refs: dict[str, Any] = {}
        for job in sorted(jobs, key=lambda job: job.kind == "run"):  # a run waits for its parts
            if grid.result(job, runs) is None:
                after = [refs[part.key] for part in jobs if part.kind == "part" and part.key in refs and _is(part, job)]
                refs[job.key] = remote.options(name=job.title).remote(*places, job, means, session, *after)
        waiting = {ref: job for job in jobs if (ref := refs.get(job.key)) is not None}
        while waiting:
            (ready,), _ = ray.wait(list(waiting), num_returns=1)
            job = waiting.pop(ready)
            try:
                ray.get(ready)
            except ray.exceptions.RayError as error:
                grid.fail(job, f"its worker died {RETRIES + 1} times: {type(error).__name__}", session=session)
            tell(grid.standing(job, runs))
    finally:
        if started:
            ray.shutdown()


def _is(part: Job, job: Job) -> bool:
    return whole_of(part).key == job.key


_AT_HAND: dict[str, Workshop] = {}  # of a Ray worker, which does many tasks


def _task(out: str, runs: str, job: Job, means: Means, session: str, *_after: object) -> None:
    """One job on a Ray worker."""
    if runs not in _AT_HAND:
        _AT_HAND[runs] = means.workshop(Path(runs))
    Grid(Path(out)).work([job], _AT_HAND[runs].do, Path(runs), session=session)


ENGINES: dict[str, Callable[..., None]] = {"local": run_local, "ray": run_on_ray}


def check_failures(standings: Sequence[Standing]) -> None:
    """Raise what a user should know where jobs have failed."""
    failed = [standing for standing in standings if standing.state == "failed"]
    if failed:
        raise BPGError(
            f"{len(failed)} of {len(standings)} jobs failed",
            wanted="all of them done",
            came="; ".join(f"{each.job.title}: {each.reason}" for each in failed[:3]),
            remedy="`bpg status` has every reason. The same command tries them again; what is done stays.",
        )
