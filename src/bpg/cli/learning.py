"""What `bpg learn` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from bpg.backbones.catalogue import catalogue
from bpg.backbones.weights import load_backbone, on_disk
from bpg.cli.app import Common
from bpg.cli.images import checked, open_folder
from bpg.cli.tables import print_json, print_pairs
from bpg.config import faults, faulty, flat, flat_dict
from bpg.data.domain import Domain, TestSet
from bpg.data.images import ImageSet
from bpg.errors import WrongUse
from bpg.experiments.evaluation import evaluate, own_way
from bpg.experiments.spec import apply_change
from bpg.methods.base import Learner, load
from bpg.registry import METHODS


def learn_domain(
    common: Common,
    folder: Path,
    images: Path,
    *,
    name: str | None,
    method: str | None,
    backbone: str | None,
    changes: Sequence[str],
    test_share: float,
    strict: bool,
    allow_new_classes: bool,
) -> None:
    """Teach the model in `folder`, or a new one, the domain of `images`."""
    device = common.use_machine()
    found = open_folder(common, images, name=name, test_share=test_share)
    domain_name, sides = found.only()
    if sides.train is None:
        raise WrongUse(
            f"{images} has no training images",
            wanted="images to learn from",
            came=f"none of {len(sides.test or ())} with a test share of {test_share}",
            remedy="Lower --test-share, or add images.",
        )
    if (folder / "model.json").exists():
        model = _existing(common, folder, backbone, device, method, changes)
    else:
        model = new_model(common, method or "bpg", backbone, device, changes)
    model.allow_new_classes = allow_new_classes
    model.scratch = folder / "scratch"
    train, unreadable = checked(common, sides.train, f"{domain_name}, to learn", strict=strict)
    test = None
    if sides.test is not None:
        test, more = checked(common, sides.test, f"{domain_name}, held out", strict=strict)
        unreadable += more
        untaught = sorted(_present(test) - _present(train))
        if untaught:
            common.say(f"note: no image to learn from, only held-out ones: {', '.join(untaught)}")
    with common.bar(domain_name) as show:
        model.progress = show
        try:
            model.learn(Domain(domain_name, train))
        except KeyboardInterrupt:
            common.say("The model is as it was; the same command goes on from here.")
            raise
    digest = model.save(folder, event=f"learned {domain_name}")
    if model.scratch.is_dir() and not any(model.scratch.iterdir()):
        model.scratch.rmdir()
    domains = model.state().domains
    facts = domains[domain_name].facts if domain_name in domains else {}
    result: dict[str, Any] = {
        "model": str(folder),
        "digest": digest,
        "domain": domain_name,
        "images": len(train),
        "classes": len(_present(train)),
        **{key: facts[key] for key in ("separability", "rank", "parameters") if key in facts},
    }
    if test is not None:
        with common.bar(domain_name) as show:
            ((tally,),) = evaluate(model, [TestSet(test, domain_name)], ways=own_way(model), progress=show).values()
        result |= {"held_out_images": tally.total, "held_out_accuracy": 100 * tally.correct / tally.total}
    if common.json:
        print_json(result | {"unreadable": [{"path": str(u.path), "reason": u.reason} for u in unreadable]})
    else:
        print_pairs(f"learned {domain_name}", {key: value for key, value in result.items() if key != "domain"})


def _present(images: ImageSet) -> set[str]:
    return {images.classes[label] for label in images.labels}


def new_model(
    common: Common, method: str, backbone: str | None, device: torch.device, changes: Sequence[str]
) -> Learner:
    """A model that has learned nothing yet, of these settings."""
    kind = METHODS[method]
    if backbone is None:
        here = [name for name, entry in catalogue().items() if on_disk(entry) is not None]
        raise WrongUse(
            "a new model needs a backbone",
            wanted="--backbone NAME or FILE",
            came="none",
            remedy=f"On this machine: {', '.join(here)}." if here else "`bpg backbones` lists those that are known.",
        )
    values: dict[str, Any] = {}
    for change in changes:
        apply_change(values, change)
    if common.seed is not None:
        values["seed"] = common.seed
    wrong = faults(kind.Settings, values)
    if wrong:
        known = ", ".join(field.name for field in fields(kind.Settings))
        raise faulty(f"wrong settings of {method}", wrong, wanted=known)
    frozen = load_backbone(backbone, device=device)
    entry = catalogue().get(frozen.name)
    by_rule = method == "bpg" and not {"s0", "lam", "rank", "estimator"} & set(values)
    if by_rule and entry is not None and entry.s_0 is not None and entry.s_0_estimator != "plain":
        values["estimator"] = entry.s_0_estimator
        common.say(f"note: s_0 of {frozen.name} is known for the {entry.s_0_estimator} estimator, which is used")
    made: Learner = kind(frozen, **values)
    return made


def _existing(
    common: Common, folder: Path, backbone: str | None, device: torch.device, method: str | None, changes: Sequence[str]
) -> Learner:
    model = load(folder, backbone=backbone, device=device)
    asked: dict[str, Any] = {}
    for change in changes:
        apply_change(asked, change)
    if common.seed is not None:
        asked["seed"] = common.seed
    wrong = faults(type(model).Settings, asked)
    if wrong:
        raise faulty(f"wrong settings of {model.method}", wrong, wanted="settings as the model has them")
    has = flat(model.settings)
    differ = [f"{key}: {has[key]}, not {value}" for key, value in flat_dict(asked).items() if has.get(key) != value]
    if method is not None and method != model.method:
        differ.append(f"method: {model.method}, not {method}")
    if differ:
        raise WrongUse(
            f"the model in {folder} keeps its settings for good",
            wanted="the same method, seed and settings for every domain",
            came="; ".join(differ),
            remedy="Leave them out, or begin another model.",
        )
    return model
