"""What `bpg predict` and `bpg evaluate` do."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bpg.cli.app import Common
from bpg.cli.images import checked, files_in, open_folder, unreadable
from bpg.cli.tables import print_json, print_table
from bpg.data.check import Checked
from bpg.data.domain import TestSet
from bpg.data.folder import Found
from bpg.data.images import ImageSet
from bpg.errors import WrongUse
from bpg.experiments.evaluation import evaluate, own_way, ways_of
from bpg.experiments.profile import choices, profile, recommended
from bpg.methods.base import Learner, Routable, is_routable, load, prepared
from bpg.progress import counted
from bpg.registry import METHODS
from bpg.store import answering, method_of, set_answering


def predict_files(
    common: Common,
    folder: Path,
    places: Sequence[Path],
    *,
    backbone: str | None,
    options: Mapping[str, Any],
    as_csv: bool,
    strict: bool,
    batch_size: int,
) -> None:
    """The label of each image, how sure it is, and which experts spoke."""
    if as_csv and common.json:
        raise WrongUse("two formats", wanted="--csv or --json", came="both", remedy="Leave one of them out.")
    device = common.use_machine()
    files = files_in(common, places)
    model = open_model(folder, backbone, device, options)
    unlabelled = ImageSet(tuple(files), (0,) * len(files), ("unlabelled",))
    found = checked(common, unlabelled, "the files", strict=strict)
    images = found.images
    domains = model.domains if isinstance(model, Routable) else ()
    rows: list[dict[str, Any]] = []
    with common.bar("predict") as show, torch.no_grad():
        tell = counted(show, "predict")
        for batch in prepared(model.backbone, images, batch_size):
            answer = model.forward(batch)
            best = answer.log_probs.max(dim=1)
            for place in range(len(batch)):
                row: dict[str, Any] = {
                    "file": str(images.paths[len(rows)]),
                    "label": model.classes[int(best.indices[place])],
                    "probability": round(float(best.values[place].exp()), 4),
                }
                if answer.domain_weights is not None:
                    weights = zip(domains, answer.domain_weights[place].tolist(), strict=True)
                    row["domain_weights"] = {name: round(weight, 4) for name, weight in weights}
                    row["experts"] = int(answer.experts[place])
                    unknown = float(answer.unknown[place]) if answer.unknown is not None else math.nan
                    row["unknown"] = None if math.isnan(unknown) else round(unknown, 4)
                rows.append(row)
            tell(len(rows), len(images))
    if common.json:
        print_json({"predictions": rows, "unreadable": unreadable(found)})
    elif as_csv:
        out = csv.writer(sys.stdout, lineterminator="\n")
        tail = [*(f"weight:{name}" for name in domains), "experts", "unknown"] if domains else []
        out.writerow(["file", "label", "probability", *tail])
        for row in rows:
            told = [*row["domain_weights"].values(), row["experts"], row["unknown"]] if domains else []
            out.writerow([row["file"], row["label"], row["probability"], *told])
    else:
        columns = ["file", "label", "probability", *(["domains", "experts", "unknown"] if domains else [])]
        print_table([row | {"domains": _spoke(row)} for row in rows], columns=columns)


def evaluate_model(
    common: Common,
    folder: Path,
    images: Path,
    *,
    name: str | None,
    backbone: str | None,
    options: Mapping[str, Any],
    compare: bool,
    profiled: bool,
    test_share: float,
    strict: bool,
    batch_size: int,
) -> None:
    """How much of each test set the model gets right."""
    if compare and profiled:
        raise WrongUse("two tables", wanted="--compare or --profile", came="both", remedy="Leave one of them out.")
    given = [name for name in ("route_depth", "max_experts", "arithmetic") if options.get(name) is not None]
    if profiled and given:
        raise WrongUse(
            "--profile goes through the choices itself",
            wanted="none of --route-depth, --max-experts, --arithmetic",
            came=", ".join(f"--{name.replace('_', '-')}" for name in given),
            remedy="Leave them out, or leave --profile out.",
        )
    device = common.use_machine()
    found = open_folder(common, images, name=name, test_share=test_share)
    model = open_model(folder, backbone, device, options)
    tests, sides_read = _tests(common, found, images, test_share, strict)
    _say_unknown(common, model, tests)
    if profiled:
        _print_profile(common, model, tests, sides_read, batch_size)
        return
    ways = ways_of(model) if compare else own_way(model)
    strange = [test.name for test in tests if test.domain not in _domains(model)]
    if strange and "oracle" in ways:
        common.say(f"note: the model has no expert for {', '.join(strange)}: the oracle is left out there and over all")
    with common.bar("evaluate") as show:
        tallies = evaluate(model, tests, ways=ways, batch_size=batch_size, progress=show)
    rows = []
    for way, of_way in tallies.items():
        for tally in of_way:
            spoke = sum(int(n) * count for n, count in tally.experts.items())
            chosen = tally.chosen.get(tally.domain or "", 0) / tally.total if tally.chosen else None
            rows.append(
                {
                    "way": way,
                    "test": tally.name,
                    "correct": tally.correct,
                    "total": tally.total,
                    "accuracy": 100 * tally.correct / tally.total,
                    "domain_found": 100 * chosen if chosen is not None and tally.domain in _domains(model) else None,
                    "experts": spoke / tally.total if tally.experts else None,
                    "classes": {key: {"correct": a, "total": b} for key, (a, b) in sorted(tally.classes.items())},
                }
            )
        correct, total = sum(t.correct for t in of_way), sum(t.total for t in of_way)
        if 1 < len(of_way) == len(tests):  # the oracle's, over some of them, would not compare
            pooled = {"way": way, "test": "all", "correct": correct, "total": total, "accuracy": 100 * correct / total}
            rows.append(pooled | {"domain_found": None, "experts": None, "classes": {}})
    if common.json:
        print_json({"tests": rows, "unreadable": unreadable(*sides_read)})
    else:
        columns = ["test", "accuracy", "correct", "total"]
        columns = ["way", *columns] if compare and len(tallies) > 1 else columns
        print_table(rows, columns=columns + (["domain_found", "experts"] if _domains(model) else []))


def tune_routing(
    common: Common,
    folder: Path,
    images: Path,
    *,
    name: str | None,
    backbone: str | None,
    test_share: float,
    strict: bool,
    batch_size: int,
    save: bool,
) -> None:
    """Measure every depth that the model can route at, and say which is worth taking."""
    device = common.use_machine()
    found = open_folder(common, images, name=name, test_share=test_share)
    model = open_model(folder, backbone, device, {})
    tests, sides_read = _tests(common, found, images, test_share, strict)
    routed = _routable(model)
    if save and not _shown_classes(tests) & set(model.classes):
        raise WrongUse(
            "what would be kept with the model is chosen by images that nobody can get right",
            wanted=f"images of {', '.join(model.classes)}",
            came=f"images of {', '.join(sorted(_shown_classes(tests)))}",
            remedy="Name the folders after the model's classes, or leave --save out.",
        )
    _say_unknown(common, model, tests)
    missing = sorted(set(routed.domains) - {test.domain for test in tests})
    if missing and save:
        raise WrongUse(
            "what would be kept with the model is chosen blindly for some of its domains",
            wanted=f"images of {', '.join(routed.domains)}, in folders of these names",
            came=f"none of {', '.join(missing)}",
            remedy="Add them to --data, or leave --save out.",
        )
    if missing:
        common.say(f"note: there are no images of {', '.join(missing)}: what follows says nothing of them")
    exact = choices(routed)["exact"]
    depths = {
        name: way for name, way in choices(routed).items() if replace(way, route_depth=exact.route_depth) == exact
    }
    with common.bar("tune-routing") as show:
        rows = profile(routed, tests, depths, batch_size=batch_size, progress=show)
    best = recommended(rows)
    depth = depths[best.choice].route_depth
    if save:
        set_answering(folder, answering(folder) | {"route_depth": depth})
    if common.json:
        told = {"choices": [row.as_dict() for row in rows], "route_depth": depth, "saved": save}
        print_json(told | {"unreadable": unreadable(*sides_read)})
        return
    print_table([row.as_dict() for row in rows], columns=list(rows[0].as_dict()))
    if save:
        print(f"From now on {folder} routes at route_depth {depth}.")
    else:
        print(f"Worth taking: route_depth {depth} (--route-depth {depth}; --save keeps it with the model).")


def open_model(folder: Path, backbone: str | None, device: torch.device, options: Mapping[str, Any]) -> Learner:
    """The model in `folder`, answering in the way that those of the `options` ask for which are given."""
    given = {key: value for key, value in options.items() if value is not None}
    method = method_of(folder)
    if given and not is_routable(METHODS[method]):
        raise WrongUse(
            f"a model of {method} has no experts to choose from",
            wanted="no option about them",
            came=" and ".join(f"--{key.replace('_', '-')}" for key in given),
            remedy="Leave them out.",
        )
    model = load(folder, backbone=backbone, device=device, **given)
    if not model.classes:
        raise WrongUse(
            f"the model in {folder} has learned nothing",
            wanted="a learned domain",
            came="none",
            remedy="`bpg learn` one first.",
        )
    return model


def _tests(
    common: Common, found: Found, images: Path, test_share: float, strict: bool
) -> tuple[list[TestSet], list[Checked]]:
    """The test sets among what was found, and what could be read of them."""
    tests: list[TestSet] = []
    sides_read: list[Checked] = []
    for domain, sides in found.domains.items():
        test = sides.train if found.split == "none" else sides.test
        if test is None:
            common.say(f"note: {domain} has no test images and is left out")
            continue
        read = checked(common, test, domain, strict=strict)
        sides_read.append(read)
        tests.append(TestSet(read.images, domain))
    if not tests:
        raise WrongUse(
            f"there is nothing to test in {images}",
            wanted="test images",
            came=f"{found.layout}, with a test share of {test_share}",
            remedy="--test-share 1 tests on all images." if found.split == "made" else "Add images to test on.",
        )
    if found.split == "made" and test_share < 1:
        common.say(f"note: tested on the {test_share:.0%} of images that `bpg learn` holds out by name")
    return tests, sides_read


def _print_profile(
    common: Common, model: Learner, tests: Sequence[TestSet], sides_read: Sequence[Checked], batch_size: int
) -> None:
    routed = _routable(model)
    with common.bar("profile") as show:
        rows = profile(routed, tests, choices(routed), batch_size=batch_size, progress=show)
    if common.json:
        print_json({"choices": [row.as_dict() for row in rows], "unreadable": unreadable(*sides_read)})
    else:
        print_table([row.as_dict() for row in rows], columns=list(rows[0].as_dict()))


def _routable(model: Learner) -> Routable:
    if not isinstance(model, Routable):
        raise WrongUse(
            f"a model of {model.method} has no experts to choose from",
            wanted="a model that routes",
            came=model.method,
            remedy="`bpg evaluate` says how good it is.",
        )
    return model


def _domains(model: Learner) -> tuple[str, ...]:
    return model.domains if isinstance(model, Routable) else ()


def _say_unknown(common: Common, model: Learner, tests: Sequence[TestSet]) -> None:
    strange = sorted(_shown_classes(tests) - set(model.classes))
    if strange:
        more = " and more" if len(strange) > 5 else ""
        common.say(f"note: the model does not know {', '.join(strange[:5])}{more}: images of these cannot be right")


def _shown_classes(tests: Sequence[TestSet]) -> set[str]:
    return {test.images.classes[label] for test in tests for label in test.images.labels}


def _spoke(row: Mapping[str, Any]) -> str:
    weights = row.get("domain_weights", {})
    heard = sorted(((weight, name) for name, weight in weights.items() if weight > 0), reverse=True)
    return ", ".join(f"{name} {weight:.2f}" for weight, name in heard)
