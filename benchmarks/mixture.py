"""Which mixture holds: accuracy and experts per image of several rules, over streams, seeds, orders and domains.

    python -m benchmarks.mixture WORK emoji-0 emoji-1 ...    learns a stream with a seed, and measures it
    python -m benchmarks.mixture WORK                        every cell that is not measured yet, then docs/mixture.md
    python -m benchmarks.mixture WORK --profile pacs-0       what each faster way to answer costs, for a learned cell

A cell's model is learned domain by domain in WORK, so that a stopped run goes on; its figures are a small file in
docs/results/mixture; after a change of STREAMS, take another WORK. Experts are isolated: those of one model serve every
order and every number of domains, and every rule is worked out from the same logits. PACS and DeiT-Tiny are looked for
in $BPG_DATA and $BPG_WEIGHTS.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.corruptions import CHANGES, changed
from bpg.backbones.backbone import FINISHED, Probe
from bpg.backbones.weights import load_backbone
from bpg.bench.suite import rounded
from bpg.data.benchmarks.emoji import EMOJI
from bpg.data.domain import Domain, TestSet
from bpg.data.folder import limited, read_folder
from bpg.data.images import ImageSet
from bpg.engine import run_experts
from bpg.experiments.profile import choices, profile
from bpg.experiments.spec import data_root
from bpg.methods.base import prepared
from bpg.methods.bpg import BPG
from bpg.mixture import Fusion, mix, mixture_weights
from bpg.prototypes import Place
from bpg.randomness import generator_of
from bpg.routing import TEMPERATURE, Places, calibrated, hard, soft, stops

DOCS = Path(__file__).parents[1] / "docs"
RESULTS, PAGE = DOCS / "results" / "mixture", DOCS / "mixture.md"
PROFILE = RESULTS / "profile.json"
SEEDS, ORDERS = (0, 1, 2), 5
OURS = "calibrated"


@dataclass(frozen=True)
class Stream:
    """Domains to learn, and what they are learned with."""

    backbone: str
    settings: Mapping[str, Any]
    per_class: int  # training images, at most


NANO = {"r0": 8, "estimator": "corrected", "optimisation": {"epochs": 5, "batch_size": 16, "lr": 0.04}}
STREAMS = {
    "emoji": Stream("bpg-vit-nano", NANO | {"augmentation": {"area": (0.8, 1.0)}}, 60),
    "pacs": Stream(
        "deit_tiny_patch16_224",
        {"r0": 16, "estimator": "corrected", "optimisation": {"epochs": 6, "batch_size": 32}},
        70,
    ),
    "long": Stream("bpg-vit-nano", NANO | {"augmentation": {"area": (0.5, 1.0)}}, 30),
}


@dataclass(frozen=True)
class Rule:
    """Confidences from distances, and how they are fused."""

    title: str
    times: float | None  # the temperature over the spread; None: the paper's temperature of 1
    fusion: Fusion
    threshold: Fusion = "threshold+l1"  # 1/T; "probabilities": a quarter of the likeliest
    nearest: bool = False

    def confidence(self, distance: Tensor, spread: float) -> Tensor:
        """w_t (B, T)."""
        if self.nearest:
            return hard(distance)
        return soft(distance) if self.times is None else calibrated(distance, self.times / TEMPERATURE * spread)


RULES = {
    "paper": Rule("the paper's: temperature 1, 1/T, logits", None, "threshold+l1"),
    "paper-p": Rule("temperature 1, 1/T, probabilities", None, "probabilities"),
    "hard": Rule("hard: the nearest domain alone", None, "threshold+l1", nearest=True),
    "1-l": Rule("temperature sigma, 1/T, logits", 1.0, "threshold+l1"),
    "1-p": Rule("temperature sigma, 1/T, probabilities", 1.0, "probabilities"),
    "half-l": Rule("temperature sigma / 2, 1/T, logits", 0.5, "threshold+l1"),
    "half-p": Rule("temperature sigma / 2, 1/T, probabilities", 0.5, "probabilities"),
    "near-l": Rule("temperature sigma / 2, a quarter, logits", 0.5, "threshold+l1", "probabilities"),
    OURS: Rule("temperature sigma / 2, a quarter, probabilities: calibrated", 0.5, "probabilities", "probabilities"),
    "third-p": Rule("temperature sigma / 3, a quarter, probabilities", 1 / 3, "probabilities", "probabilities"),
}


INTRODUCTION = """
# The mixture

<!-- Written by `python -m benchmarks.mixture`; the text stands there. -->

An image's distance to a domain is that of its frozen feature to the nearest of the domain's prototypes. The paper makes
weights of distances by softmax(-a). Features have length 1, so that distances of different domains differ by a tenth or
so: the weights are nearly flat, a survivor of the wrong domain votes almost as loud as the right one, and about half of
all domains survive the threshold of 1/T whatever T is.

What a difference of distances means depends on how much distances vary by chance. Every domain therefore leaves behind,
beside its prototypes, 21 quantiles of its own training images' distances, each to prototypes fitted without the image
(five folds). Sigma is the standard deviation that follows from them, pooled over the domains the model knows; those of
one or two images, whose distances cannot differ, do not count. The calibrated mixture, the default for models that
people train, is

    w = softmax(-2a / sigma), w' = w where w >= max w / 4, to the sum of 1, p = sum_t w'_t softmax(y_t)

Half of sigma, because an image that is far from one domain is far from the others, too: differences of distances vary
less than distances. A quarter of the likeliest instead of 1/T: how many domains are near an image does not depend on
how many there are. Probabilities instead of logits: an expert that answers about a domain it never saw is often loud,
and a probability has no loudness. No old image is needed, nothing depends on the order of learning, `forget` and
`merge` stay exact. `mixture = "paper"` is the paper's rule; experiments (`bpg run`) use it unless they say otherwise.

## How it compares

Each stream is learned by BPG once a seed; every rule is worked out from the same experts. Accuracy in percent, mean and
standard deviation over seeds; *over the paper's* is the mean of the differences within a seed. *Surprise* is the mean
of -log w_t for the true domain t: the lower, the better w says what the domain is.
"""
EARLY_TEXT = """
## Where to route

The same experts, routed by the finished feature and on the way to it (`route_depth`): what a domain is shows early, and
a pass that may stop there costs less.
"""
GROWTH_TEXT = """
## As domains are added

Accuracy and experts per image of models that know the first T domains of an order, on the test images of these; mean
over seeds and five orders each.
"""
PROFILE_TEXT = """
## Faster than exact

What `bpg evaluate --profile` says of one of the models: accuracy, how many images get the answer that the exact mixture
gives, experts per image, and time as a share of the exact mixture's, measured in turns on the same batches.
"""
UNKNOWN_TEXT = """
## Images of no known domain

`unknown` is the share of a domain's own images that lie nearer to it than the image at hand, for the domain that claims
the image most: at most 5 % of the images of known domains should score above 0.95. Measured by leaving out each domain
in turn: *area* is the chance that an image of the domain left out scores higher than one of the others (in percent, 50
is guessing), *least* that of the domain that is told apart worst.
"""


def domains_of(name: str, work: Path) -> list[tuple[Domain, ImageSet]]:
    """The domains of a stream with their test images."""
    stream = STREAMS[name]
    if name == "emoji":
        sides = EMOJI.find(None).domains
    elif name == "pacs":
        sides = read_folder(data_root("pacs")).domains
    else:
        return [
            (Domain(kind, changed(work, kind, limited(photos.train, stream.per_class), "train")),
             changed(work, kind, photos.test, "test"))
            for photos in [read_folder(data_root("pacs")).domains["photo"]]
            for kind in CHANGES
        ]  # fmt: skip
    return [(Domain(name, limited(both.train, stream.per_class)), both.test) for name, both in sides.items()]


@dataclass(frozen=True, eq=False)
class Measured:
    """Of a learned model: where its domains lie, and of every test image its features and all experts' logits."""

    places: dict[Probe, list[Place]]
    features: dict[str, dict[Probe, Tensor]]  # of each test set
    logits: dict[str, Tensor]  # (n, T, C)
    labels: dict[str, Tensor]

    @property
    def domains(self) -> list[str]:
        return list(self.logits)


def measure(cell: str, work: Path) -> Measured:
    """Learn the cell's stream, or take up what is learned, and ask every expert about every test image."""
    name, _, seed = cell.rpartition("-")
    folder = work / cell
    kept = folder / "measured.pt"
    if kept.is_file():
        places, features, logits, labels = torch.load(kept, weights_only=False)
        return Measured(places, features, logits, labels)
    stream, domains = STREAMS[name], sorted(domains_of(name, work), key=lambda pair: pair[0].name)
    backbone = load_backbone(stream.backbone)
    model = BPG(backbone, seed=int(seed), scratch=folder / "scratch", **stream.settings)
    if (folder / "model.json").is_file():
        model.load_state(BPG.load(folder, backbone=backbone).state())
    for domain, _ in domains:
        if domain.name not in model.domains:
            model.learn(domain)
            model.save(folder)
            print(f"{cell}: {domain.name} learned", flush=True)
    probes = stops(backbone.depth)
    features: dict[str, dict[Probe, Tensor]] = {}
    logits: dict[str, Tensor] = {}
    labels: dict[str, Tensor] = {}
    members, classes = model.pool.members, model.classes
    columns, _ = model.pool.vocabulary()
    for domain, test in domains:
        seen: list[list[Tensor]] = []
        said: list[Tensor] = []
        for batch in prepared(backbone, test, 32):
            with torch.no_grad():
                tokens = backbone.start(batch)
                seen.append([F.normalize(found, dim=1) for found in backbone.probed(tokens, probes)])
                everybody = torch.ones(len(batch), len(members))
                experts = [member.expert for member in members]
                said.append(run_experts(backbone, tokens, everybody, experts, columns=columns, classes=len(classes)))
        features[domain.name] = {probe: torch.cat([row[at] for row in seen]) for at, probe in enumerate(probes)}
        logits[domain.name] = torch.cat(said)
        labels[domain.name] = torch.tensor([classes.index(test.classes[label]) for label in test.labels])
        print(f"{cell}: {domain.name} tested", flush=True)
    places = {probe: [m.places[probe] for m in members] for probe in probes}
    torch.save((places, features, logits, labels), kept)
    return Measured(places, features, logits, labels)


def profiled(cell: str, work: Path) -> list[dict[str, Any]]:
    """What `bpg evaluate --profile` says of the cell's model."""
    name = cell.rpartition("-")[0]
    model = BPG.load(work / cell, backbone=load_backbone(STREAMS[name].backbone))
    tests = [TestSet(test, domain.name) for domain, test in domains_of(name, work)]
    return [row.as_dict() for row in profile(model, tests, choices(model))]


def figures(found: Measured, seed: int) -> dict[str, Any]:
    """What docs/mixture.md tells of a cell, as JSON."""
    everyone = list(range(len(found.domains)))
    orders = [
        torch.randperm(len(everyone), generator=generator_of(seed, "order", order)).tolist() for order in range(ORDERS)
    ]
    numbers = sorted({2, 4, 8, 12, len(everyone)} & set(range(2, len(everyone) + 1)))
    return {
        "domains": found.domains,
        "images": sum(map(len, found.labels.values())),
        "oracle": oracle(found, everyone),
        "rules": {
            str(probe): {name: asdict(under(found, rule, everyone, probe)) for name, rule in RULES.items()}
            for probe in found.places
        },
        "growth": {
            name: {
                str(count): [asdict(under(found, RULES[name], order[:count], FINISHED)) for order in orders]
                for count in numbers
            }
            for name in ("paper", "hard", OURS)
        },
        "growth_oracle": {str(count): [oracle(found, order[:count]) for order in orders] for count in numbers},
        "unknown": {str(probe): strangers(found, probe) for probe in found.places},
    }


@dataclass(frozen=True)
class Outcome:
    """How a rule did on the test images of some domains, of which alone the model knows."""

    correct: int
    total: int
    experts: float  # per image
    found: float  # share of images whose likeliest domain is the true one
    surprise: float  # mean of -log w_t for the true domain t, before the threshold


def under(found: Measured, rule: Rule, chosen: Sequence[int], probe: Probe) -> Outcome:
    """The outcome of a rule for a model of the `chosen` domains."""
    names = [found.domains[domain] for domain in chosen]
    places = Places([found.places[probe][domain] for domain in chosen])
    known = torch.ones(len(chosen), next(iter(found.logits.values())).shape[2], dtype=torch.bool)
    correct = total = right_domain = 0
    spoke = surprise = 0.0
    for place, name in enumerate(names):
        distance = places.distances(found.features[name][probe])
        trust = rule.confidence(distance, places.spread)
        weights = mixture_weights(trust, rule.threshold)
        answer = mix(found.logits[name][:, list(chosen)], weights, known, rule.fusion).argmax(dim=1)
        correct += int((answer == found.labels[name]).sum())
        total += len(answer)
        spoke += float((weights > 0).sum())
        right_domain += int((weights.argmax(dim=1) == place).sum())
        surprise -= float(trust[:, place].clamp(min=1e-9).log().sum())
    return Outcome(correct, total, spoke / total, right_domain / total, surprise / total)


def oracle(found: Measured, chosen: Sequence[int]) -> float:
    """Percent right when the true domain's expert speaks."""
    names = [found.domains[domain] for domain in chosen]
    right = [
        found.logits[name][:, t].argmax(dim=1) == found.labels[name] for t, name in zip(chosen, names, strict=True)
    ]
    return 100 * float(torch.cat(right).double().mean())


def strangers(found: Measured, probe: Probe) -> dict[str, float]:
    """How well `unknown` tells images of a domain that was left out from those of the others, and how honest it is."""
    everyone = range(len(found.domains))
    areas, alarms, caught = [], [], []
    for left in everyone:
        places = Places([found.places[probe][domain] for domain in everyone if domain != left])
        score = {name: places.unknown(places.distances(found.features[name][probe])) for name in found.domains}
        strange = score.pop(found.domains[left])
        familiar = torch.cat(list(score.values()))
        above = (strange[:, None] > familiar).double() + 0.5 * (strange[:, None] == familiar).double()
        areas.append(float(above.mean()))
        alarms.append(float((familiar > 0.95).double().mean()))
        caught.append(float((strange > 0.95).double().mean()))
    return {
        "area": statistics.mean(areas),
        "least_area": min(areas),
        "false_alarms": statistics.mean(alarms),
        "caught": statistics.mean(caught),
    }


TITLES = {
    "emoji": "six styles of emoji, bpg-vit-nano",
    "pacs": "PACS, DeiT-Tiny",
    "long": f"{len(CHANGES)} changes of PACS's photographs, bpg-vit-nano",
}


def page() -> str:
    """docs/mixture.md, from the cells that are measured."""
    cells = {name: _cells(name) for name in STREAMS}
    measured = {name: found for name, found in cells.items() if found}
    parts = [INTRODUCTION.strip()]
    for name, found in measured.items():
        finished = [cell["rules"][str(FINISHED)] for cell in found]
        images, oracles = found[0]["images"], [cell["oracle"] for cell in found]
        rows = [
            [
                RULES[rule].title,
                _over([_accuracy(cell[rule]) for cell in finished]),
                _over([_accuracy(cell[rule]) - _accuracy(cell["paper"]) for cell in finished], sign=True),
                f"{statistics.mean(cell[rule]['experts'] for cell in finished):.2f}",
                f"{100 * statistics.mean(cell[rule]['found'] for cell in finished):.1f}",
                f"{statistics.mean(cell[rule]['surprise'] for cell in finished):.3f}",
            ]
            for rule in RULES
        ]
        parts.append(
            f"### {_headline(name)}\n\n"
            f"{images} test images, {_seeds(len(found))}; the oracle reaches {_over(oracles)}.\n\n"
            + _table(["rule", "accuracy", "over the paper's", "experts", "domain found", "surprise"], rows)
        )
    parts.append(EARLY_TEXT.strip())
    for name, found in measured.items():
        rows = [
            [
                probe,
                *(_over([_accuracy(cell["rules"][probe][rule]) for cell in found]) for rule in ("hard", "paper", OURS)),
                f"{100 * statistics.mean(cell['rules'][probe][OURS]['found'] for cell in found):.1f}",
                f"{statistics.mean(cell['rules'][probe][OURS]['experts'] for cell in found):.2f}",
            ]
            for probe in found[0]["rules"]
        ]
        columns = ["routed at", "hard", "the paper's", "calibrated", "domain found", "experts"]
        parts.append(f"{_headline(name)}:\n\n" + _table(columns, rows))
    parts.append(GROWTH_TEXT.strip())
    for name, found in measured.items():
        growth = found[0]["growth"]
        rows = []
        for count in growth["paper"]:
            row = [count]
            for rule in ("paper", OURS):
                outcomes = [outcome for cell in found for outcome in cell["growth"][rule][count]]
                row += [
                    f"{statistics.mean(map(_accuracy, outcomes)):.1f}",
                    f"{statistics.mean(outcome['experts'] for outcome in outcomes):.2f}",
                ]
            row.append(f"{statistics.mean(_accuracy(o) for cell in found for o in cell['growth']['hard'][count]):.1f}")
            row.append(f"{statistics.mean(o for cell in found for o in cell['growth_oracle'][count]):.1f}")
            rows.append(row)
        columns = ["T", "the paper's", "experts", "calibrated", "experts", "hard", "oracle"]
        parts.append(f"{_headline(name)}:\n\n" + _table(columns, rows))
    if PROFILE.is_file():
        parts += [PROFILE_TEXT.strip(), _profile_table()]
    parts.append(UNKNOWN_TEXT.strip())
    rows = [
        [
            TITLES[name],
            probe,
            *(
                f"{100 * statistics.mean(cell['unknown'][probe][key] for cell in found):.1f}"
                for key in ("area", "least_area", "false_alarms", "caught")
            ),
        ]
        for name, found in measured.items()
        for probe in found[0]["unknown"]
    ]
    columns = ["stream", "seen at", "area", "least", "known, above 0.95", "unknown, above 0.95"]
    parts.append(_table(columns, rows))
    return "\n\n".join(parts) + "\n"


def _profile_table() -> str:
    found = json.loads(PROFILE.read_text(encoding="utf-8"))
    rows = [
        [
            row["choice"],
            f"{row['accuracy']:.1f}",
            f"{row['agreement']:.1f}",
            f"{row['domain_found']:.1f}",
            f"{row['experts']:.2f}",
            f"{row['time']:.2f}",
        ]
        for row in found["choices"]
    ]
    name, _, seed = found["cell"].rpartition("-")
    told = f"{_headline(name)}, seed {seed}, {found['choices'][0]['images']} test images:"
    return told + "\n\n" + _table(["choice", "accuracy", "same answer", "domain found", "experts", "time"], rows)


def _cells(name: str) -> list[dict[str, Any]]:
    files = [RESULTS / f"{name}-{seed}.json" for seed in SEEDS]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]


def _accuracy(outcome: Mapping[str, Any]) -> float:
    return 100 * float(outcome["correct"]) / float(outcome["total"])


def _over(values: Sequence[float], *, sign: bool = False) -> str:
    """Mean and standard deviation over seeds."""
    mean = f"{statistics.mean(values):+.2f}" if sign else f"{statistics.mean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def _headline(name: str) -> str:
    return TITLES[name][0].upper() + TITLES[name][1:]


def _seeds(count: int) -> str:
    return f"{count} seeds" if count > 1 else "one seed"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [columns, ["---"] * len(columns), *rows])


def main() -> None:
    """Measure the cells asked for; with none named, all that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("cells", nargs="*")
    parser.add_argument("--profile", metavar="CELL")
    given = parser.parse_args()
    every = [f"{name}-{seed}" for seed in SEEDS for name in STREAMS]
    unknown = sorted({*given.cells, *([given.profile] if given.profile else [])} - set(every))
    if unknown:
        parser.error(f"no such cell: {', '.join(unknown)}; there are {', '.join(every)}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    if given.profile:
        _keep(PROFILE, {"cell": given.profile, "choices": profiled(given.profile, given.work)})
    for cell in given.cells or (every if not given.profile else ()):
        file = RESULTS / f"{cell}.json"
        if not file.is_file() or given.cells:
            _keep(file, figures(measure(cell, given.work), int(cell.rpartition("-")[2])))
    PAGE.write_text(page(), encoding="utf-8")


def _keep(file: Path, found: Any) -> None:
    file.write_text(json.dumps(rounded(found), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
