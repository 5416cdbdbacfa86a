"""A grid of jobs: who does which, what came of it, and how long the rest may take.

OUT/
  jobs.json        the jobs of the grid, in their order
  jobs/KEY.json    what became of one: done and where, or failed and why
  jobs/KEY.lock    held by the process that does it; a killed process holds nothing

Whoever wants to work takes the next job that nobody holds: processes on one machine, or on several that share a disk.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bpg.errors import BPGError, ModelError
from bpg.experiments.records import read_run, write_json
from bpg.experiments.scale import Job
from bpg.experiments.workshop import read_survey
from bpg.progress import Clock
from bpg.registry import METHODS

LIST, JOBS = "jobs.json", "jobs"
WAIT = 0.5  # seconds between two looks at jobs that others hold
State = Literal["done", "failed", "running", "stopped", "waiting"]
TOLD = {"done": "run", "failed": "reason"}  # what a note says besides
KINDS = {"seconds": int | float, "began": int | float, "process": int}  # of what a note says; all else is text


@dataclass(frozen=True)
class Standing:
    """How a job stands."""

    job: Job
    state: State
    run: Path | None = None  # the folder with its result
    reason: str = ""  # why it failed
    seconds: float = 0.0  # it took, over all its attempts


class Grid:
    """The jobs of one place, and what became of them."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def write(self, jobs: Sequence[Job]) -> None:
        """Make these the jobs of the grid."""
        (self.out / JOBS).mkdir(parents=True, exist_ok=True)
        write_json(self.out / LIST, [job.as_dict() for job in jobs])

    def jobs(self) -> list[Job]:
        """The jobs of the grid."""
        try:
            jobs = [Job(**entry) for entry in json.loads((self.out / LIST).read_text(encoding="utf-8"))]
            for job in jobs:
                job.spec()
            return jobs
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError, AttributeError, BPGError) as error:
            raise ModelError(
                f"{self.out / LIST} cannot be read",
                wanted="the jobs as `bpg reproduce` writes them",
                came=f"{type(error).__name__}: {error}",
                remedy="Start `bpg reproduce` again: it writes them anew, and finished runs stay.",
            ) from error

    def note(self, job: Job) -> dict[str, Any]:
        """What is written of a job; nothing, if nobody began it, or if that is damaged."""
        try:
            found = json.loads(self._file(job, "json").read_text(encoding="utf-8"))
            whole = all(isinstance(value, KINDS.get(name, str)) for name, value in found.items())
            return found if whole and TOLD.get(found["state"], "title") in found else {}
        except (FileNotFoundError, ValueError, KeyError, AttributeError):
            return {}

    def result(self, job: Job, runs: Path) -> Path | None:
        """The folder with the result of a job that is done, if it is still there; of a part, that of the run which
        has taken it in.
        """
        note = self.note(job)
        if note.get("state") == "done" and _is_whole(job, runs / str(note["run"])):
            return runs / str(note["run"])
        return self.result(whole_of(job), runs) if job.kind == "part" else None

    def standing(self, job: Job, runs: Path) -> Standing:
        """How a job stands now."""
        held = self._held(job)  # before the note is read: whoever lets it go has written it
        note, result = self.note(job), self.result(job, runs)
        seconds = float(note.get("seconds", 0.0))
        if result is not None:
            return Standing(job, "done", result, seconds=seconds)
        if held:
            now = time.time() - float(note.get("began", time.time()))
            return Standing(job, "running", seconds=seconds + max(0.0, now))
        if note.get("state") == "failed":
            return Standing(job, "failed", reason=note["reason"], seconds=seconds)
        return Standing(job, "stopped" if note else "waiting", seconds=seconds)

    def work(
        self,
        jobs: Sequence[Job],
        do: Callable[[Job], Path],
        runs: Path,
        *,
        session: str,
        tell: Callable[[Standing], None] = lambda _: None,
    ) -> None:
        """Do what nobody else does, until all is done or has failed in this `session`.

        A job that failed before is tried again; one that needs parts waits until nobody works at them.
        """
        while True:
            open_jobs = [job for job in jobs if self._is_open(job, runs, session)]
            if not open_jobs:
                return
            idle = True
            for job in open_jobs:
                if any(part.kind == "part" and whole_of(part).key == job.key for part in open_jobs):
                    continue
                with self.claim(job) as mine:
                    if mine and self._is_open(job, runs, session):
                        idle = False
                        tell(self.attempt(job, do, runs, session=session))
            if idle:
                time.sleep(WAIT)

    def attempt(self, job: Job, do: Callable[[Job], Path], runs: Path, *, session: str) -> Standing:
        """Do a job that is held, and write what became of it."""
        began, before = Clock(), float(self.note(job).get("seconds", 0.0))
        where = {"host": socket.gethostname(), "process": os.getpid(), "session": session}
        self._write(job, {"state": "begun", "seconds": before, "began": time.time(), **where})

        def passed() -> dict[str, float]:
            return {"seconds": before + began.as_dict()["seconds"]}

        try:
            folder = do(job)
        except (KeyboardInterrupt, SystemExit):
            self._write(job, {"state": "begun", **passed(), **where})
            raise
        except Exception as error:  # of one job; the others can be done
            reason = str(error) if isinstance(error, BPGError) else f"{type(error).__name__}: {error}"
            trace = "" if isinstance(error, BPGError) else traceback.format_exc()
            self._write(job, {"state": "failed", "reason": reason, "trace": trace, **passed(), **where})
            return Standing(job, "failed", reason=reason, seconds=passed()["seconds"])
        self._write(job, {"state": "done", "run": folder.relative_to(runs).as_posix(), **passed(), **where})
        return Standing(job, "done", folder, seconds=passed()["seconds"])

    def fail(self, job: Job, reason: str, *, session: str) -> None:
        """Write that a job failed, of a worker that could not do so itself."""
        self._write(
            job,
            {"state": "failed", "reason": reason, "session": session, "seconds": self.note(job).get("seconds", 0.0)},
        )

    @contextmanager
    def claim(self, job: Job) -> Iterator[bool]:
        """Hold a job, if nobody else does."""
        file = self._file(job, "lock")
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def _held(self, job: Job) -> bool:
        try:
            with self._file(job, "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # which those who only look do not deny each other
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def _is_open(self, job: Job, runs: Path, session: str) -> bool:
        note = self.note(job)
        if note.get("state") in ("done", "failed") and note.get("session") == session:
            return False  # whatever became of it since: nothing is tried for ever
        return self.result(job, runs) is None

    def _file(self, job: Job, kind: str) -> Path:
        return self.out / JOBS / f"{job.key}.{kind}"

    def _write(self, job: Job, note: Mapping[str, Any]) -> None:
        write_json(self._file(job, "json"), {"title": job.title, **note})


def _is_whole(job: Job, folder: Path) -> bool:
    """Whether a folder has what the job was to leave there. A model may be cleared away, and drawings be missing."""
    if job.kind == "survey":
        return read_survey(folder) is not None
    if job.kind == "part":
        return (folder / "model" / "model.json").is_file()
    try:
        return read_run(folder).finished
    except ModelError:
        return False


def parts_of(job: Job, stages: int) -> list[Job]:
    """The domains of a run as jobs of their own, to be learned side by side; none where they depend on each other."""
    _, cell = job.spec()
    apart = job.kind == "run" and hasattr(METHODS[cell.method], "merge")
    return [Job("part", job.document, stage=stage) for stage in range(1, stages + 1)] if apart else []


def whole_of(part: Job) -> Job:
    """The run that a part belongs to."""
    return Job("run", part.document)
