"""Who does the jobs of a grid: this process, several on this machine, or the workers of a Ray cluster."""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from bpg.compute import available_cores, choose_device, set_threads
from bpg.errors import BPGError, WrongUse
from bpg.experiments.grid import Grid, Standing, whole_of
from bpg.experiments.scale import Job
from bpg.experiments.workshop import Workshop
from bpg.progress import progress_bar

Tell = Callable[[Standing], None]
RETRIES = 3  # of a Ray task whose worker died; each goes on where the last one was
PLACES = ("BPG_DATA", "BPG_WEIGHTS")  # that Ray's workers look in, too, unless they have their own
PATIENCE = 5.0  # seconds: for processes to end, for a cluster to answer


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
    arguments = (out, runs, list(jobs), replace(means, threads=share, quiet=True), session)
    context = multiprocessing.get_context("spawn")
    workers, heard = [], []
    try:
        with _deaf_to_interrupts():  # so are the processes that start here: the first is told, and ends the others
            for _ in range(means.processes):
                reader, writer = context.Pipe(duplex=False)
                workers.append(context.Process(target=_work, args=(*arguments, writer)))
                workers[-1].start()
                writer.close()  # theirs alone: it ends with them, however they end
                heard.append(reader)
        while heard:
            for ready in wait(heard):
                assert isinstance(ready, Connection)  # what was waited for
                try:
                    said = ready.recv()
                except EOFError:
                    heard.remove(ready)
                    continue
                if isinstance(said, Exception):
                    raise said
                tell(said)
    finally:
        _end_all(workers, at_once=bool(heard))
    gone = [worker for worker in workers if worker.exitcode]
    if gone:
        warnings.warn(f"{len(gone)} of {len(workers)} processes ended early", stacklevel=2)


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    resource_tracker.ensure_running()  # or the first process that starts would start it, and open the ears again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_all(workers: Sequence[Any], *, at_once: bool) -> None:
    if at_once:
        for worker in workers:
            worker.terminate()
    for worker in workers:
        worker.join(PATIENCE if at_once else None)
        if worker.is_alive():
            worker.kill()
            worker.join()


def _work(out: Path, runs: Path, jobs: Sequence[Job], means: Means, session: str, told: Connection) -> None:
    """What one of several processes does."""
    signal.signal(signal.SIGTERM, lambda *_: _end())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        Grid(out).work(jobs, means.workshop(runs).do, runs, session=session, tell=told.send)
    except (BPGError, OSError) as error:  # of the grid itself, not of a job
        told.send(error)


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
        _join_cluster(ray, means)
    try:
        _check_resources(ray, means)
        remote = ray.remote(num_cpus=means.cpus, num_gpus=means.gpus, max_retries=RETRIES)(_task)
        track = None if means.track is None else means.track.resolve()
        there = replace(means, threads=means.threads or max(1, int(means.cpus)), quiet=True, track=track)
        places = {name: os.environ[name] for name in PLACES if name in os.environ}
        common = (str(Path.cwd()), places, str(out.resolve()), str(runs.resolve()), there, session)
        grid = Grid(out)
        refs: dict[str, Any] = {}
        for job in sorted(jobs, key=lambda job: job.kind == "run"):  # a run waits for its parts
            if grid.result(job, runs) is None:
                after = [refs[part.key] for part in jobs if part.kind == "part" and part.key in refs and _is(part, job)]
                refs[job.key] = remote.options(name=job.title).remote(job, *common, *after)
        waiting = {ref: job for job in jobs if (ref := refs.get(job.key)) is not None}
        while waiting:
            (ready,), _ = ray.wait(list(waiting), num_returns=1)
            job = waiting.pop(ready)
            try:
                ray.get(ready)
            except ray.exceptions.RayError as error:
                if grid.result(job, runs) is None:
                    grid.fail(job, _reason(error), session=session)
            tell(grid.standing(job, runs))
    finally:
        if started:
            ray.shutdown()


def _join_cluster(ray: Any, means: Means) -> None:
    """Connect to $RAY_ADDRESS, or start what this machine can be."""
    address = os.environ.get("RAY_ADDRESS")
    logging.getLogger("ray").setLevel(logging.ERROR)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    own = {"num_cpus": max(1, math.ceil(means.processes * means.cpus)), "include_dashboard": False}
    try:
        host, _, port = (address or "").removeprefix("ray://").rpartition(":")
        if host and port.isdecimal():  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=PATIENCE).close()
        ray.init(address, log_to_driver=False, configure_logging=False, **({} if address else own))
    except (OSError, RuntimeError, ValueError) as error:
        raise BPGError(
            "the Ray cluster cannot be reached",
            wanted=f"one at $RAY_ADDRESS, {address}" if address else "one that starts on this machine",
            came=f"{type(error).__name__}: {error}",
            remedy="`ray status` says whether it runs; without $RAY_ADDRESS one starts on this machine.",
        ) from error


def _check_resources(ray: Any, means: Means) -> None:
    """Say it where no machine can do a job: Ray would wait without a word."""
    wanted = {"CPU": means.cpus, "GPU": means.gpus}
    machines = [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]
    if any(all(there.get(what, 0) >= much for what, much in wanted.items()) for there in machines):
        return
    most = {what: max((there.get(what, 0) for there in machines), default=0) for what in wanted}
    raise WrongUse(
        "no machine of the Ray cluster can do a job",
        wanted=f"one with {means.cpus:g} cores and {means.gpus:g} GPUs",
        came=f"at most {most['CPU']:g} cores and {most['GPU']:g} GPUs",
        remedy="Ask for less with --cpus and --gpus, or start workers that have as much.",
    )


def _reason(error: Exception) -> str:
    """Why a task has ended without a word of its own."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):  # it was raised there, such as where bpg is not installed
        return f"{type(cause).__name__}: {cause}"
    return f"its worker died {RETRIES + 1} times ({type(error).__name__})"


def _is(part: Job, job: Job) -> bool:
    return whole_of(part).key == job.key


_AT_HAND: dict[str, Workshop] = {}  # of a Ray worker, which does many tasks


def _task(
    job: Job, cwd: str, places: dict[str, str], out: str, runs: str, means: Means, session: str, *_after: object
) -> None:
    """One job on a Ray worker, which looks for data where the command would."""
    if Path(cwd).is_dir():
        os.chdir(cwd)
    for name, place in places.items():
        os.environ.setdefault(name, place)
    if runs not in _AT_HAND:
        _AT_HAND[runs] = means.workshop(Path(runs))
    Grid(Path(out)).work([job], _AT_HAND[runs].do, Path(runs), session=session)


ENGINES: dict[str, Callable[..., None]] = {"local": run_local, "ray": run_on_ray}


def check_failures(standings: Sequence[Standing]) -> None:
    """Raise what a user should know where jobs have failed, or whoever did them was killed."""
    left = [standing for standing in standings if standing.state != "done"]
    if left:
        failed = sum(standing.state == "failed" for standing in left)
        what = (
            f"{failed} of {len(standings)} jobs failed" if failed else f"{len(left)} of {len(standings)} are not done"
        )
        raise BPGError(
            what,
            wanted="all of them done",
            came="; ".join(f"{each.job.title}: {each.reason or each.state}" for each in left[:3]),
            remedy="`bpg status` has every reason. The same command tries them again; what is done stays.",
        )
