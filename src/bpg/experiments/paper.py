"""Every table and figure of the paper: what it is called, and which runs it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bpg.experiments.scale import STREAMS, Job, Scale, Stream

# What a survey found, as `bpg.experiments.survey_stream` writes it; None before it is done.
Surveyed = Callable[[Job], Mapping[str, Any] | None]

Kind = Literal["table", "figure"]
PLUGGED = ("s_iprompts", "pina", "c_prompt", "ka_prompt")  # the paper's four with BPG-Inference
PROMPTS, LORA = "bpg-prompts", "bpg-lora"


@dataclass(frozen=True)
class Setup:
    """What items are made from at one scale."""

    scale: Scale
    streams: Mapping[str, Stream]
    surveyed: Surveyed

    def every(self, names: Iterable[str] = STREAMS) -> Iterator[tuple[Stream, int]]:
        """Each stream that stands ready, with each seed."""
        for name in names:
            if name in self.streams:
                yield from ((self.streams[name], seed) for seed in self.scale.seeds)

    @property
    def first(self) -> Stream:
        """DomainNet, or what stands in for it: most of the paper's analysis is on it."""
        return self.streams["domainnet"]


@dataclass(frozen=True)
class Item:
    """A table or a figure."""

    name: str
    kind: Kind
    title: str
    label: str  # in the paper's source
    jobs: Callable[[Setup], Iterable[Job]]
    analytic: bool = False  # follows from printed numbers alone
    stream: str | None = None  # that it is about, where it is about one


def _survey(name: str) -> Callable[[Setup], Iterable[Job]]:
    return lambda setup: [setup.streams[name].survey(seed) for seed in setup.scale.seeds[:1] if name in setup.streams]


def _main(name: str) -> Callable[[Setup], Iterable[Job]]:
    def jobs(setup: Setup) -> Iterator[Job]:
        for stream, seed in setup.every([name]):
            yield from (run(stream, label, seed) for label in stream.labels)

    return jobs


def run(stream: Stream, label: str, seed: int, *, maps: bool = False) -> Job:
    """A run of one of the stream's methods, or of the variants of BPG that the paper compares."""
    for base in ("bpg", "bpg-clip"):
        parts = {base.replace("bpg", PROMPTS): "none", base.replace("bpg", LORA): "lora"}
        if label in parts:
            return stream.run(label, seed, like=base, expert={"parts": parts[label]})
    return stream.run(label, seed, maps=maps)


def uniform(stream: Stream, rank: int, seed: int, *, maps: bool = False) -> Job:
    """BPG with one hidden dimension for every domain."""
    return stream.run(f"bpg-r{rank}", seed, like="bpg", maps=maps, rank=rank)


def adaptive(setup: Setup, r0: int, seed: int) -> Job:
    """BPG with r_t = s_0 r_0 / s_t; the stream's own r_0 is its BPG."""
    own = setup.first.document("bpg")["methods"]["bpg"].get("r0", 64)
    return run(setup.first, "bpg", seed) if r0 == own else setup.first.run(f"bpg-r0-{r0}", seed, like="bpg", r0=r0)


def equivalent(setup: Setup, r0: int) -> int | None:
    """The hidden dimension of a uniform model with as many parameters: the mean of r_t, once it is surveyed."""
    found = setup.surveyed(setup.first.survey(setup.scale.seeds[0], r0=r0))
    ranks = [domain["rank"] for domain in found["domains"]] if found else []
    return int(sum(ranks) / len(ranks) + 0.5) if ranks else None


def _components(setup: Setup) -> Iterator[Job]:
    for stream, seed in setup.every():
        for base in ("bpg", "bpg-clip"):
            if base in stream.labels:
                yield run(stream, base, seed)
                yield run(stream, base.replace("bpg", PROMPTS), seed)


def _generality(setup: Setup) -> Iterator[Job]:
    for stream, seed in setup.every():
        yield from (run(stream, label, seed) for label in PLUGGED if label in stream.labels)


def _tuning(setup: Setup) -> Iterator[Job]:
    for stream, seed in setup.every():
        yield from (run(stream, label, seed) for label in ("bpg", PROMPTS, LORA))


def _bpg(setup: Setup) -> Iterator[Job]:
    yield from (run(setup.first, "bpg", seed) for seed in setup.scale.seeds)


def _drawn(setup: Setup) -> Iterator[Job]:
    seed = setup.scale.seeds[0]
    yield setup.first.survey(seed)  # the titles have s_t
    yield from (uniform(setup.first, rank, seed, maps=True) for rank in setup.scale.drawn)


def _ranks(setup: Setup) -> Iterator[Job]:
    yield setup.first.survey(setup.scale.seeds[0])
    for r0 in setup.scale.r0s:
        yield setup.first.survey(setup.scale.seeds[0], r0=r0)
    for seed in setup.scale.seeds:
        yield from (uniform(setup.first, rank, seed) for rank in setup.scale.ranks)
        for r0 in setup.scale.r0s:
            yield adaptive(setup, r0, seed)
            same = equivalent(setup, r0)
            if same is not None:
                yield uniform(setup.first, same, seed)


def _once(setup: Setup) -> Iterator[Job]:
    yield setup.first.survey(setup.scale.seeds[0])
    yield run(setup.first, "bpg", setup.scale.seeds[0])


def _overhead(setup: Setup) -> Iterator[Job]:
    yield from _once(setup)
    yield from (uniform(setup.first, rank, setup.scale.seeds[0]) for rank in (64, 256))


def _motivation(setup: Setup) -> Iterator[Job]:
    yield run(setup.first, "bpg", setup.scale.seeds[0], maps=True)
    yield from _drawn(setup)


# The paper's analysis, on DomainNet alone.
ON_THE_FIRST: tuple[tuple[str, Kind, str, str, Callable[[Setup], Iterable[Job]]], ...] = (
    ("matrices", "table", "Accuracy matrices, hard and full", "tab:detail_bpg_inference", _bpg),
    ("weighting", "table", "Ablation of the weights", "tab:ab_bpg_inference_weight", _bpg),
    ("parameters", "table", "Parameter budget", "tab:efficiency_params", _survey("domainnet")),
    ("overhead", "table", "Training time", "tab:efficiency_train", _overhead),
    ("latency", "table", "Time to answer", "sec:efficiency", _once),
    ("motivation", "figure", "Motivation", "fig:intro_fig", _motivation),
    ("ranks", "figure", "Hidden dimension r, uniform and adaptive", "fig:ab_r", _ranks),
    ("tsne", "figure", "t-SNE of domain features by r", "fig:tsne", _drawn),
)

ITEMS = {
    item.name: item
    for item in (
        *(
            Item(
                f"separability-{name}",
                "table",
                f"Feature separability on {title}",
                f"tab:separability_{name}",
                _survey(name),
                stream=name,
            )
            for name, title in STREAMS.items()
        ),
        *(
            Item(f"main-{name}", "table", f"Results on {title}", f"tab:{name}", _main(name), stream=name)
            for name, title in STREAMS.items()
        ),
        Item("components", "table", "Ablation of BPG's components", "tab:ab_component", _components),
        Item("generality", "table", "BPG-Inference in other methods", "tab:ab_other_method", _generality),
        Item("tuning", "table", "Adapter against LoRA", "tab:tuning", _tuning),
        *(
            Item(name, kind, title, label, jobs, analytic=name == "parameters", stream="domainnet")
            for name, kind, title, label, jobs in ON_THE_FIRST
        ),
    )
}


def jobs_of(items: Iterable[Item], setup: Setup) -> list[Job]:
    """Every run that the items are made of, once; surveys first. More may follow from what surveys find."""
    found: dict[str, Job] = {}
    for item in items:
        for job in item.jobs(setup):
            if job.key not in found or job.maps:
                found[job.key] = job
    return sorted(found.values(), key=lambda job: (job.kind != "survey", job.seed))


def to_follow(items: Iterable[Item], setup: Setup) -> int:
    """How many runs the items will ask for besides, when surveys that are not done have told the mean of r_t."""
    asked = any(item.name == "ranks" for item in items)
    unknown = [r0 for r0 in setup.scale.r0s if equivalent(setup, r0) is None]
    return len(unknown) * len(setup.scale.seeds) if asked else 0
