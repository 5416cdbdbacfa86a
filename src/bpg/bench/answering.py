"""Time to answer an image under hard selection, the paper's loop and the engine: the paper's latency, measured here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from bpg.backbones.backbone import Backbone
from bpg.bench.mixtures import Mixture
from bpg.bench.timing import Work, take_turns

BATCH = 8


def latency(backbone: Backbone, ranks: Sequence[int], *, experts: float, rounds: int = 5) -> dict[str, Any]:
    """Milliseconds an image for experts of these ranks, `experts` of which speak for an image on average."""
    mixture = Mixture.make(backbone, ranks)
    images = mixture.images(BATCH)
    alone, some = mixture.weights(BATCH, 1), mixture.weights(BATCH, experts)
    works: dict[str, Work] = {
        "one expert, without the pass that finds the domain": partial(mixture.unrouted, images, alone, batch=BATCH),
        "hard selection": partial(mixture.soft, images, alone, batch=BATCH),
        f"the mixture here, {experts:.2f} experts an image": partial(mixture.soft, images, some, batch=BATCH),
        f"the paper's loop over all {len(ranks)} experts": partial(mixture.loop, images, batch=BATCH),
    }
    taken = take_turns(works, rounds)
    one, hard, *_ = taken.values()
    rows = [
        {
            "name": name,
            "ms": 1000 * t.seconds / BATCH,
            "over_expert": t.over(one).median,
            "over_hard": t.over(hard).median,
        }
        for name, t in taken.items()
    ]
    about = (
        f"{backbone.name} on {backbone.device.type}, batches of {BATCH}, the median of {rounds} rounds in turn; random "
    )
    return {"rows": rows, "about": about + f"weights, ranks {', '.join(map(str, ranks))}."}
