"""What `bpg plan` and `bpg reference` do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from bpg.backbones.survey import survey
from bpg.backbones.weights import load_backbone
from bpg.cli.app import Common
from bpg.cli.images import checked, open_folder
from bpg.cli.learning import new_model
from bpg.cli.tables import print_json, print_pairs, print_table
from bpg.data.domain import Domain
from bpg.errors import WrongUse
from bpg.experiments.plan import plan
from bpg.methods.bpg import BPG
from bpg.methods.parts.identity import as_json
from bpg.progress import counted
from bpg.separability import separability


def plan_domains(
    common: Common,
    images: Path,
    *,
    backbone: str | None,
    changes: Sequence[str],
    megabytes: float | None,
    test_share: float,
    strict: bool,
) -> None:
    """What each domain of `images` would get and cost."""
    device = common.use_machine()
    found = open_folder(common, images, name=None, test_share=test_share)
    given = [*changes, "lam=1.0"] if megabytes is not None else changes  # what the budget is to be solved for
    model = cast(BPG, new_model(common, "bpg", backbone, device, given))
    domains = [
        Domain(name, checked(common, sides.train, name, strict=strict).images)
        for name, sides in found.domains.items()
        if sides.train is not None
    ]
    if not domains:
        raise WrongUse(
            f"there is nothing to learn in {images}",
            wanted="training images",
            came=f"none with a test share of {test_share}",
            remedy="Lower --test-share.",
        )
    with common.bar("plan") as show:
        model.progress = show
        lam = None
        if megabytes is not None:
            lam = model.solve_capacity(domains, megabytes=megabytes)
            model = BPG(model.backbone, progress=show, **(as_json(model.settings) | {"lam": lam, "rank": None}))
        rows = [asdict(planned) for planned in plan(model, domains)]
    total = {key: sum(row[key] for row in rows) for key in ("images", "parameters", "megabytes", "seconds")}
    if common.json:
        print_json({"domains": rows, "total": total, "lam": lam, "backbone": model.backbone.name})
        return
    shown = [{**row, "minutes": row["seconds"] / 60} for row in rows]
    if len(rows) > 1:
        blank = dict.fromkeys(("classes", "separability", "rank"))
        shown.append({"domain": "all", **blank, **total, "minutes": total["seconds"] / 60})
    columns = ("domain", "classes", "images", "separability", "rank", "parameters", "megabytes", "minutes")
    print_table(shown, columns=columns)
    if lam is not None:
        common.say(f"To learn within this budget: bpg learn ... --set lam={lam!r}")
    common.say("Minutes are of training alone, from a few steps on this machine as it is now.")


def measure_reference(common: Common, images: Path, *, backbone: str, strict: bool) -> None:
    """s_0: the separability of the images that a backbone was trained on."""
    device = common.use_machine()
    name, sides = open_folder(common, images, name="reference", test_share=0.0).only()
    if sides.train is None:
        raise WrongUse(f"{images} is empty", wanted="images", came="none", remedy="Check the path.")
    train = checked(common, sides.train, name, strict=strict).images
    frozen = load_backbone(backbone, device=device)
    with common.bar(name) as show:
        found = survey(frozen, train, progress=counted(show, "survey"))
    counts = [count for count in found.counts.values() if count]
    document: dict[str, Any] = {
        "backbone": frozen.name,
        "sha256": frozen.digest(),
        "classes": len(counts),
        "images": sum(counts),
        "fewest_of_a_class": min(counts),
        "most_of_a_class": max(counts),
        "s_0_plain": separability(found.scatter, estimator="plain"),
        "s_0_corrected": separability(found.scatter, estimator="corrected") if max(counts) > 1 else None,
    }
    if common.json:
        print_json(document)
        return
    print_pairs(frozen.name, document)
    common.say("Take one: bpg learn ... --set s0=VALUE --set estimator=plain, or corrected where classes are small.")
