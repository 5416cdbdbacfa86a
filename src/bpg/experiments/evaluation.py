"""Testing a learner: integer counts for each test set, under each way of answering."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bpg.data.domain import TestSet
from bpg.methods.base import Learner, Routable, prepared, usual_of
from bpg.methods.parts.ways import MIXTURES, ORACLE, OWN, Way
from bpg.mixture import Fusion
from bpg.progress import Progress, counted
from bpg.ranks import gathered, rank_and_ranks, share
from bpg.types import Prediction

STANDARD = {"calibrated": MIXTURES["calibrated"], "soft": MIXTURES["paper"], "hard": Way("hard"), "oracle": Way(ORACLE)}


@dataclass(slots=True)
class Tally:
    """How one test set came out under one way of answering."""

    name: str
    domain: str | None
    total: int = 0
    correct: int = 0
    classes: dict[str, list[int]] = field(default_factory=dict)  # right, total
    chosen: Counter[str] = field(default_factory=Counter)  # the likeliest domain
    right_elsewhere: int = 0  # right although the likeliest domain is not the true one
    experts: Counter[int] = field(default_factory=Counter)  # how many spoke

    def add(self, answer: Prediction, truth: Sequence[str], classes: Sequence[str], domains: Sequence[str]) -> None:
        """Count a batch in."""
        labels = [classes[int(index)] for index in answer.log_probs.argmax(dim=1)]
        trust = answer.confidences
        likeliest = [domains[int(index)] for index in trust.argmax(dim=1)] if trust is not None else []
        for place, (label, true) in enumerate(zip(labels, truth, strict=True)):
            right = label == true
            self.total += 1
            self.correct += right
            cell = self.classes.setdefault(true, [0, 0])
            cell[0] += right
            cell[1] += 1
            if likeliest:
                self.chosen[likeliest[place]] += 1
                self.right_elsewhere += right and likeliest[place] != self.domain
        if trust is not None:
            self.experts.update(answer.experts.tolist())

    def include(self, other: Tally) -> None:
        """Count in what another rank counted of the same test set."""
        self.total += other.total
        self.correct += other.correct
        self.right_elsewhere += other.right_elsewhere
        for name, (right, total) in other.classes.items():
            cell = self.classes.setdefault(name, [0, 0])
            cell[0] += right
            cell[1] += total
        self.chosen.update(other.chosen)
        self.experts.update(other.experts)

    def as_dict(self) -> dict[str, Any]:
        """As JSON, the same whatever the order of counting."""
        return {
            "name": self.name,
            "domain": self.domain,
            "correct": self.correct,
            "total": self.total,
            "classes": dict(sorted(self.classes.items())),
            "chosen": dict(sorted(self.chosen.items())),
            "right_elsewhere": self.right_elsewhere,
            "experts": {str(count): images for count, images in sorted(self.experts.items())},
        }


def ways_of(model: Learner, more: Sequence[Fusion] = ()) -> dict[str, Way]:
    """The ways a model is measured in, its own first: where it has experts to choose from, all of STANDARD.

    `more` are fusions of all that the paper's router lets through, each under its own name.
    """
    if not isinstance(model, Routable):
        return {OWN: Way(OWN)}  # it has nothing to choose from
    same = [name for name, way in STANDARD.items() if way == model.way]
    first = {same[0] if same else str(model.way): model.way}
    own = {OWN: Way(OWN)} if usual_of(type(model)) == OWN else {}
    usual = {name: way for name, way in STANDARD.items() if name not in first}
    return first | own | usual | {name: Way("soft", name) for name in more}


def own_way(model: Learner) -> dict[str, Way]:
    """The way a model answers in by itself."""
    name, way = next(iter(ways_of(model).items()))
    return {name: way}


def evaluate(
    model: Learner,
    tests: Sequence[TestSet],
    *,
    ways: dict[str, Way] | None = None,
    batch_size: int = 32,
    shared: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> dict[str, list[Tally]]:
    """Of each way, a tally a test set. The oracle has none for a test set whose domain the model did not learn.

    With `shared`, all ranks call it, each tests its share of every set and all find the counts of the whole.
    """
    ways = ways_of(model) if ways is None else ways
    domains = model.domains if isinstance(model, Routable) else ()
    found: dict[str, list[Tally]] = {name: [] for name in ways}
    tell = counted(progress, "test") if progress is not None else None
    done, total = 0, sum(len(test.images) for test in tests)
    ranks = rank_and_ranks()[1] if shared else 1
    for test in tests:
        asked = {n: way for n, way in ways.items() if way.router != ORACLE or test.domain in domains}
        tallies = {name: Tally(test.name, test.domain) for name in asked}
        images = test.images.subset(share(len(test.images), batch_size)) if ranks > 1 else test.images
        truth = [images.classes[label] for label in images.labels]
        start = 0
        for batch in prepared(model.backbone, images, batch_size):
            if isinstance(model, Routable):
                answers = model.compare(batch, list(asked.values()), true=test.domain)
            else:
                answers = [model.forward(batch)]
            for tally, answer in zip(tallies.values(), answers, strict=True):
                tally.add(answer, truth[start : start + len(batch)], model.classes, domains)
            start += len(batch)
            done += ranks * len(batch)
            if tell is not None:
                tell(min(done, total), total)
        for name, tally in tallies.items():
            found[name].append(tally)
    return _summed(gathered(found)) if ranks > 1 else found


def _summed(shares: list[dict[str, list[Tally]]]) -> dict[str, list[Tally]]:
    whole, *others = shares
    for other in others:
        for name, tallies in whole.items():
            for tally, more in zip(tallies, other[name], strict=True):
                tally.include(more)
    return whole
