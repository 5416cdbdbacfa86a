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
from bpg.cli.images import check_place, checked, open_folder, unreadable
from bpg.cli.tables import print_json, print_pairs
from bpg.config import faults, faulty, flat, flat_dict
from bpg.data.domain import Domain, TestSet
from bpg.errors import WrongUse
from bpg.experiments.evaluation import evaluate, own_way
from bpg.experiments.spec import apply_change
from bpg.methods.base import Learner, load
from bpg.registry import METHODS
from bpg.store import digest_of


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
    again: bool,
) -> None:
    """Teach the model in `folder`, or a new one, the domain of `images`."""
    check_place(folder, "a model")
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
    train = checked(common, sides.train, f"{domain_name}, to learn", strict=strict)
    test = checked(common, sides.test, f"{domain_name}, held out", strict=strict) if sides.test is not None else None
    if again or not _is_learned(common, model, folder, domain_name, train.sha256):
        _learn(common, model, folder, Domain(domain_name, train.images))
    domains = model.state().domains
    facts = domains[domain_name].facts if domain_name in domains else {}
    result: dict[str, Any] = {
        "model": str(folder),
        "digest": digest_of(folder),
        "domain": domain_name,
        "images": len(train.images),
        "classes": len(set(train.images.labels)),
        **{key: facts[key] for key in ("separability", "rank", "parameters") if key in facts},
    }
    if test is not None:
        with common.bar(domain_name) as show:
            ((tally,),) = evaluate(
                model, [TestSet(test.images, domain_name)], ways=own_way(model), progress=show
            ).values()
        result |= {"held_out_images": tally.total, "held_out_accuracy": 100 * tally.correct / tally.total}
    if common.json:
        print_json(result | {"unreadable": unreadable(train, test)})
    else:
        print_pairs(f"learned {domain_name}", {key: value for key, value in result.items() if key != "domain"})


def _learn(common: Common, model: Learner, folder: Path, domain: Domain) -> None:
    """Learn `domain` and put the model into its place; checkpoints lie beside it until then."""
    model.scratch = folder / "scratch"
    with common.bar(domain.name) as show:
        model.progress = show
        try:
            model.learn(domain)
        except KeyboardInterrupt:
            common.say("The model is as it was; the same command goes on from here.")
            raise
    model.save(folder, event=f"learned {domain.name}")
    if model.scratch.is_dir() and not any(model.scratch.iterdir()):
        model.scratch.rmdir()


def _is_learned(common: Common, model: Learner, folder: Path, domain: str, images: str) -> bool:
    """Whether the model knows the domain from these images; from others, it is not to be lost by a slip."""
    state = model.state()
    known = {name: kept.facts.get("images_sha256") for name, kept in state.domains.items()}
    known |= state.facts.get("images_sha256", {})  # of methods whose domains share a network
    if domain not in known:
        return False
    if known[domain] == images:
        common.say(f"note: {domain} is learned already, from these very images")
        return True
    raise WrongUse(
        f"the model in {folder} knows a domain {domain} already, from other images",
        wanted="a domain of another name",
        came=domain,
        remedy="Give it a name with --name, or learn it anew from these images alone with --again.",
    )


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
    values = _asked(common, kind, changes)
    frozen = load_backbone(backbone, device=device)
    entry = catalogue().get(frozen.name)
    by_rule = method == "bpg" and not {"s0", "lam", "rank", "estimator"} & set(values)
    if by_rule and entry is not None and entry.s_0 is not None and entry.s_0_estimator != "plain":
        values["estimator"] = entry.s_0_estimator
        common.say(f"note: s_0 of {frozen.name} is known for the {entry.s_0_estimator} estimator, which is used")
    made: Learner = kind(frozen, **values)
    return made


def _asked(common: Common, method: type[Learner], changes: Sequence[str]) -> dict[str, Any]:
    """The settings that --set and --seed ask for."""
    values: dict[str, Any] = {}
    for change in changes:
        apply_change(values, change)
    if common.seed is not None:
        values["seed"] = common.seed
    wrong = faults(method.Settings, values)
    if wrong:
        known = ", ".join(field.name for field in fields(method.Settings))
        raise faulty(f"wrong settings of {method.method}", wrong, wanted=known)
    return values


def _existing(
    common: Common, folder: Path, backbone: str | None, device: torch.device, method: str | None, changes: Sequence[str]
) -> Learner:
    model = load(folder, backbone=backbone, device=device)
    asked = _asked(common, type(model), changes)
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
