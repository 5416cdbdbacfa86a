"""What `bpg reproduce` and `bpg status` do and print."""

from __future__ import annotations

import os
import re
import shlex
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from bpg.bench.answering import latency
from bpg.bench.planning import Probe, million_passes
from bpg.cli.app import Common
from bpg.cli.images import check_place
from bpg.cli.tables import print_json, print_table
from bpg.errors import WrongUse, unknown_name
from bpg.experiments.cost import GPUS, UTILISATION, sizes_of
from bpg.experiments.engines import ENGINES, Means, check_failures
from bpg.experiments.grid import Grid, Standing, parts_of
from bpg.experiments.paper import ITEMS, Item, Setup, jobs_of, run, to_follow
from bpg.experiments.readiness import missing, result_like, to_fetch
from bpg.experiments.records import read_optional, write_json
from bpg.experiments.scale import SCALES, Job, read_scale, streams_of
from bpg.experiments.workshop import read_survey
from bpg.report.reproduction import Results, write_reproduction

ALL, LATENCY = "all", "latency.json"
NONE_HERE = "none at this scale"


def setup_of(scale: str, grid: Grid, runs: Path, *, planned: bool = False) -> Setup:
    """What items are made from, with what was surveyed so far; for a plan, also surveys that look the same."""
    found = read_scale(scale)

    def surveyed(job: Job) -> dict[str, Any] | None:
        folder = result_of(grid, job, runs) or (result_like(job, runs) if planned else None)
        return None if folder is None else read_survey(folder)

    return Setup(found, streams_of(found), surveyed)


def result_of(grid: Grid, job: Job, runs: Path) -> Path | None:
    """The folder with the result of a job; of one that cannot be asked for here, of what looks the same."""
    return grid.result(job, runs) or (result_like(job, runs) if missing(job) is not None else None)


def items_of(names: Sequence[str]) -> list[Item]:
    """The items that are asked for."""
    for name in names:
        if name != ALL and name not in ITEMS:
            raise unknown_name("table or figure", name, [*ITEMS, ALL])
    return [item for item in ITEMS.values() if ALL in names or item.name in names]


def chosen(jobs: Sequence[Job], only: str | None, limit: int | None) -> list[Job]:
    """Surveys, and the runs whose title `only` fits, at most `limit` of them, evenly over the grid."""
    try:
        fits = re.compile(only or "", re.IGNORECASE)
    except re.error as error:
        raise WrongUse(
            "--only cannot be understood",
            wanted="a regular expression, such as 'lora|r64'",
            came=f"{only!r}: {error}",
            remedy="Put a backslash before signs that stand for themselves.",
        ) from error
    left = [job for job in jobs if job.kind == "survey" or fits.search(job.title)]
    runs = [job for job in left if job.kind == "run"]
    if limit is not None and len(runs) > limit:
        taken = {runs[index * len(runs) // limit].key for index in range(limit)}
        left = [job for job in left if job.kind != "run" or job.key in taken]
    return left


def reproduce_verb(
    common: Common,
    names: Sequence[str],
    *,
    scale: str,
    out: Path | None,
    runs: Path,
    plan: bool,
    only: str | None,
    limit: int | None,
    engine: str,
    split: bool,
    **means: Any,
) -> None:
    """List, plan or make the items."""
    read_scale(scale)  # a typo is told before anything else
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    own = Path(scale)  # a file of one's own that is called as a scale that ships does not share its place
    place = out or Path("reproduced") / (own.name if own.stem in SCALES else own.stem)
    if common.seed is not None:
        raise WrongUse(
            "a scale has its own seeds",
            wanted="no --seed",
            came=str(common.seed),
            remedy=f"--only 'seed {common.seed}' takes the jobs of one.",
        )
    if "list" in names and (len(names) > 1 or plan or only is not None or limit is not None):
        flags = {"--plan": plan, "--only": only is not None, "--limit": limit is not None}
        came = " ".join([*names, *(flag for flag, given in flags.items() if given)])
        raise WrongUse("list stands alone", wanted="list, or items", came=came, remedy="Leave one out.")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise WrongUse(
            "ranks do not share out a grid",
            wanted="one process of `bpg reproduce`, which starts others by --processes or --engine ray",
            came=f"torchrun with {os.environ['WORLD_SIZE']} ranks",
            remedy="`torchrun -m bpg run` shares out one run.",
        )
    if list(names) == ["list"]:
        list_items(common, scale, place, runs)
    elif plan:
        plan_items(common, names, scale=scale, out=place, runs=runs, only=only, limit=limit)
    else:
        with_all = Means(device=common.device, threads=common.threads, quiet=common.quiet, **means)
        reproduce_items(
            common,
            names,
            scale=scale,
            out=place,
            runs=runs,
            engine=engine,
            means=with_all,
            only=only,
            limit=limit,
            split=split,
        )


def reproduce_items(
    common: Common,
    names: Sequence[str],
    *,
    scale: str,
    out: Path,
    runs: Path,
    engine: str,
    means: Means,
    only: str | None,
    limit: int | None,
    split: bool,
) -> None:
    """Do the runs that the items need, as far as they are not done, and write the tables and figures."""
    items = items_of(names)
    for place, what in ((runs, "runs"), (out, "tables and figures")):
        check_place(place, what)
    grid, session, began = Grid(out), uuid.uuid4().hex, time.monotonic()
    told: list[str] = []
    jobs: list[Job] = []
    while True:  # what surveys find may ask for more
        setup = setup_of(scale, grid, runs)
        wanted = jobs_of(items, setup)
        if not jobs or limit is None:
            jobs = chosen(wanted, only, limit)
        lacking = {job.key: reason for job in jobs if (reason := missing(job)) is not None}
        for reason in dict.fromkeys(lacking.values()):
            if reason not in told:
                told.append(reason)
                these = [job for job in jobs if lacking.get(job.key) == reason]
                there = [job for job in these if result_of(grid, job, runs) is not None]
                if there:
                    common.say(f"note: {reason}: {len(there)} finished jobs are known by their settings alone")
                if out_of_reach := [job for job in these if job not in there]:
                    common.say(f"note: {reason}: {_some(out_of_reach)} left out")
        ready = [job for job in jobs if job.key not in lacking]
        if split:
            runs_left = [job for job in ready if grid.result(job, runs) is None]
            ready += [part for job in runs_left for part in parts_of(job, len(sizes_of(job.spec()[0]).train))]
        new = [job for job in ready if grid.result(job, runs) is None]
        failed = {job.key for job in new if grid.note(job).get("session") == session}
        grid.write(ready)
        if not [job for job in new if job.key not in failed]:
            break
        done = sum(_is_done(grid, job, runs) for job in ready)
        watch = shlex.join(["bpg", "status", str(out), "--runs", str(runs)])
        common.say(f"{done} of {len(ready)} jobs are done; `{watch}` watches the rest.")
        try:
            ENGINES[engine](out, runs, ready, means, session=session, tell=lambda now: _say(common, now))
        except KeyboardInterrupt:
            common.say("The same command goes on from here.")
            raise
        if not any(job.kind == "survey" for job in new):
            break
    _say_unfit(common, wanted, jobs)
    standings = [grid.standing(job, runs) for job in ready]
    setup = setup_of(scale, grid, runs)
    every = jobs_of(items, setup)  # also what was not asked for this time
    folders = {job.key: folder for job in every if (folder := result_of(grid, job, runs)) is not None}
    results = Results(
        setup,
        folders,
        {job.key: reason for job in every if job.key not in folders and (reason := missing(job)) is not None}
        | {s.job.key: f"failed: {s.reason}" for s in standings if s.state == "failed"},
        whole=scale == "paper",
    )
    if any(item.name == "latency" for item in items):
        results.latency = latency_of(results, means, out)
    files = write_reproduction(items, scale, results, out)
    if common.json:
        print_json({"files": [str(file) for file in files], "jobs": dict(Counter(s.state for s in standings))})
    else:
        for file in files:
            print(file)
    common.say(f"{len(items)} tables and figures from {len(folders)} jobs in {_long(time.monotonic() - began)}.")
    check_failures(standings)


def latency_of(results: Results, means: Means, out: Path) -> dict[str, Any] | None:
    """How long answers take with experts of the stream's ranks; measured once for each backbone, device and ranks."""
    job = results.setup.first.survey(results.setup.scale.seeds[0])
    found = results.survey(job)
    group = results.group([run(results.setup.first, "bpg", job.seed)])
    if found is None or group is None:
        return None
    ranks = [domain["rank"] for domain in found["domains"]]
    experts = round(experts_per_image(group.first.last("soft")), 2)
    asked = {"backbone": found["backbone"], "device": means.device, "ranks": ranks, "experts": experts}
    kept = read_optional(out / LATENCY, lambda known: known["of"])
    if kept is not None and kept["of"] == asked:
        return kept
    if missing(job) is not None:
        return None
    made = latency(means.workshop(out).backbone(job.spec()[0]), ranks, experts=experts) | {"of": asked}
    write_json(out / LATENCY, made)
    return made


def experts_per_image(tests: Sequence[Mapping[str, Any]]) -> float:
    """How many spoke for a test image on average."""
    counts = [(int(number), images) for test in tests for number, images in test["experts"].items()]
    said, asked = sum(number * images for number, images in counts), sum(images for _, images in counts)
    return float(said / max(1, asked))


def list_items(common: Common, scale: str, out: Path, runs: Path) -> None:
    """Each item with what it needs and what of it is there."""
    grid = Grid(out)
    setup = setup_of(scale, grid, runs, planned=True)
    device = common.use_machine()
    probes: dict[tuple[str, int | None], Probe] = {}
    rows: list[dict[str, Any]] = []
    for item in ITEMS.values():
        jobs = jobs_of([item], setup) if not item.analytic else []
        for job in jobs:
            if _shape(job) not in probes:
                probes[_shape(job)] = Probe.of(job, device)
        needs = dict.fromkeys(f"{_data_name(job)} + {job.document['backbone']['source']}" for job in jobs)
        rows.append(
            {
                "item": item.name,
                "kind": item.kind,
                "title": item.title,
                "data": ", ".join(dict.fromkeys(map(_data_name, jobs))) or ("none" if item.analytic else NONE_HERE),
                "backbone": ", ".join(
                    dict.fromkeys(job.document["backbone"]["source"].partition(".")[0] for job in jobs)
                ),
                "needs": "nothing" if item.analytic else "; ".join(needs) or "nothing at this scale",
                "jobs": len(jobs),
                "done": sum(_is_done(grid, job, runs) for job in jobs),
                "million passes": million_passes(jobs),
                "hours here": _total(probes, jobs, "hours here"),
                "GB to train": _total(probes, jobs, "GB to train"),
                "lacks": _lacks(jobs),
            }
        )
    if common.json:
        print_json(rows)
        return
    shown = [row | {"lacks": _briefly(row["lacks"]) if row["needs"] != "nothing" else ""} for row in rows]
    print_table(shown, columns=("item", "jobs", "done", "hours here", "GB to train", "data", "backbone", "lacks"))
    _say_lacks(common, rows)
    common.say(f"Scale {scale}: {setup.scale.note}")
    common.say(
        "Hours: of all its jobs, with all cores, from forward passes timed now; --plan has GPUs and what is left."
    )


def _is_done(grid: Grid, job: Job, runs: Path) -> bool:
    return grid.result(job, runs) is not None or result_like(job, runs) is not None


def _shape(job: Job) -> tuple[str, int | None]:
    """The backbone of a job, and the size of its images."""
    return job.document["backbone"]["source"], job.document["backbone"].get("image_size")


def _total(probes: Mapping[tuple[str, int | None], Probe], jobs: Sequence[Job], what: str) -> float | None:
    """Hours add up over backbones, of memory the most counts."""
    alike: dict[tuple[str, int | None], list[Job]] = {}
    for job in jobs:
        alike.setdefault(_shape(job), []).append(job)
    found = [probes[shape].planned(own, own)[what] for shape, own in alike.items()]
    if not found or None in found:
        return None
    return float(sum(found) if what == "hours here" else max(found))


def _data_name(job: Job) -> str:
    data = job.document["data"]
    return str(data.get("benchmark") or data.get("root"))


def _lacks(jobs: Sequence[Job]) -> list[str]:
    return list(dict.fromkeys(reason for job in jobs for reason in (missing(job), to_fetch(job)) if reason is not None))


def _briefly(lacks: Sequence[str]) -> str:
    return ", ".join(what for what in ("weights", "data") if any(f"the {what} of" in reason for reason in lacks))


def _say_lacks(common: Common, rows: Sequence[Mapping[str, Any]]) -> None:
    for part in dict.fromkeys(part for row in rows for reason in row["lacks"] for part in reason.split(" and the ")):
        common.say(f"note: the {part.removeprefix('the ')}")


def plan_items(
    common: Common, names: Sequence[str], *, scale: str, out: Path, runs: Path, only: str | None, limit: int | None
) -> None:
    """What the items would take on this machine and on some GPUs; nothing is run but a few forward passes."""
    grid = Grid(out)
    setup = setup_of(scale, grid, runs, planned=True)
    wanted = jobs_of(items_of(names), setup)
    jobs = chosen(wanted, only, limit)
    _say_unfit(common, wanted, jobs)
    later = to_follow(items_of(names), setup) if limit is None else 0
    device = common.use_machine()
    groups: dict[tuple[str, int | None], dict[str, list[Job]]] = {}
    for job in jobs:
        groups.setdefault(_shape(job), {}).setdefault(_data_name(job), []).append(job)
    rows = []
    for (source, _), streams in groups.items():
        probe = Probe.of(next(iter(streams.values()))[0], device)
        for data, members in streams.items():
            open_jobs = [job for job in members if not _is_done(grid, job, runs)]
            row = {"data": data, "backbone": source, "lacks": _lacks(members)}
            rows.append(row | probe.planned(members, open_jobs))
    if common.json:
        print_json({"scale": scale, "streams": rows, "utilisation": UTILISATION, "to_follow": later})
        return
    gpus = {f"h {gpu.name}": gpu.name for gpu in GPUS[:3]}
    shown = [
        row
        | {
            "backbone": row["backbone"].partition(".")[0],
            "M passes": row["million passes"],
            "h here": row["hours here"],
        }
        | {column: row["gpu_hours"][gpu] for column, gpu in gpus.items()}
        | {"lacks": _briefly(row["lacks"]), "fits": _fitting(row["fits"])}
        for row in rows
    ]
    print_table(shown, columns=("data", "backbone", "jobs", "done", "M passes", "h here", *gpus))
    print()
    memory = ("MB an image", "batch", "GB to train", "fits", "GB on disk")
    print_table(shown, columns=("data", "backbone", *memory, "lacks"))
    _say_lacks(common, rows)
    hours = sum(row["hours here"] or 0.0 for row in rows)
    common.say(f"In all about {_hours(hours)} h here with all cores, from forward passes timed now.")
    common.say(f"GPUs: operations over {UTILISATION:.0%} of the data sheet's float32, not measured.")
    if later:
        most = "up to " if only else ""
        common.say(
            f"Not counted: {most}{later} runs with a uniform r of equal size, which follows from surveys to come."
        )


def _fitting(names: Sequence[str]) -> str:
    """The GPUs whose memory takes a step as it is; on others the loop takes a batch in smaller parts."""
    return "every GPU" if len(names) == len(GPUS) else ", ".join(names) or "no GPU whole"


def _hours(hours: float | None) -> str:
    return "-" if hours is None else f"{hours:,.0f}" if hours >= 100 else f"{hours:.2g}"


def show_status(common: Common, out: Path, runs: Path, *, processes: int | None) -> None:
    """How the jobs of a grid stand, and how long the rest may take."""
    grid = Grid(out)
    standings = [grid.standing(job, runs) for job in grid.jobs()]
    if not standings:
        raise WrongUse(
            f"there are no jobs at {out}",
            wanted="a folder that `bpg reproduce` writes to, with jobs that can be done here",
            came="none",
            remedy="Name the folder that was given as --out; `bpg reproduce` says what the jobs lack.",
        )
    counts: Counter[str] = Counter(standing.state for standing in standings)
    left = seconds_left(standings, processes or max(1, counts["running"]))
    if common.json:
        rows = [
            {"job": s.job.title, "state": s.state, "seconds": s.seconds, "reason": s.reason, "run": str(s.run or "")}
            for s in standings
        ]
        print_json({"counts": dict(counts), "seconds_left": left, "jobs": rows})
        return
    open_jobs = [s for s in standings if s.state in ("running", "failed", "stopped")]
    if open_jobs:
        rows = [{"job": s.job.title, "state": s.state, "minutes": s.seconds / 60, "why": s.reason} for s in open_jobs]
        print_table(rows, columns=("job", "state", "minutes", "why"))
    order = ("done", "running", "failed", "stopped", "waiting")
    print(", ".join(f"{counts[state]} {state}" for state in order if counts[state]))
    if left:
        common.say(f"about {_long(left)} left, from what the finished jobs took")


def seconds_left(standings: Sequence[Standing], processes: int) -> float | None:
    """From what finished jobs took: another takes as long as the mean of its method, or of its kind.

    None where none of a kind is finished: what surveys took tells nothing of runs.
    """
    taken: dict[tuple[str, ...], list[float]] = {}
    for standing in standings:
        if standing.state == "done" and standing.seconds > 1:  # less takes who finds it done
            job = standing.job
            for group in ((job.kind, job.label), (job.kind,)):
                taken.setdefault(group, []).append(standing.seconds)
    rest = [0.0]
    for standing in standings:
        if standing.state not in ("done", "failed"):
            job = standing.job
            usual = taken.get((job.kind, job.label)) or taken.get((job.kind,))
            if usual is None:
                return None
            rest.append(max(0.0, fmean(usual) - standing.seconds))
    return max(sum(rest) / processes, *rest)


def _say(common: Common, now: Standing) -> None:
    where = f": {now.run}" if now.run is not None else f": {now.reason}" if now.reason else ""
    common.say(f"{now.state} in {_long(now.seconds)}, {now.job.title}{where}")


def _say_unfit(common: Common, wanted: Sequence[Job], jobs: Sequence[Job]) -> None:
    titles = [job.title for job in wanted if job.kind == "run"]
    if titles and not any(job.kind == "run" for job in jobs):
        common.say(f"note: --only fits none of the {len(titles)} runs; they are called as '{titles[0]}'")


def _some(jobs: Sequence[Job]) -> str:
    names = list(dict.fromkeys(f"{job.document['name']} {job.label}" for job in jobs))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _long(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
