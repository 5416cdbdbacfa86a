"""DomainNet: 345 classes in six styles, about 590,000 images; the cleaned lists.

Peng et al., "Moment Matching for Multi-Source Domain Adaptation", 2019, arXiv 1812.01754. Labels come from the lists:
they are not the order of the folders. painting has no training image of t-shirt and no test image of syringe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from bpg.data.benchmark import Benchmark, Download, known_of, published
from bpg.data.folder import Found, LeftOut, Sides
from bpg.data.images import ImageSet
from bpg.data.lists import list_digest, read_official_list
from bpg.data.places import Place

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
OTHER_ORDER = ("real", "quickdraw", "painting", "sketch", "infograph", "clipart")
ORIGINAL = {  # images of each domain before the lists were cleaned
    "clipart": 48_837,
    "infograph": 53_201,
    "painting": 75_759,
    "quickdraw": 172_500,
    "real": 175_327,
    "sketch": 70_386,
}
MISPLACED = "painting/t-shirt/painting_328_000001.jpg"  # the one image that would fill t-shirt's empty training side
HOST = "http://csr.bu.edu/ftp/visda/2019/multi-source"


def read(place: Place, *, fixed: bool = False) -> Found:
    """DOMAIN/CLASS/*.jpg, and lists DOMAIN_{train,test}.txt beside the domains or in a folder there."""
    classes = known_of("domainnet")["classes"]
    lists = next((p for p in (place, *place.folders()) if any(p.holds(f"{d}_train.txt") for d in DOMAINS)), place)
    images = lists if lists.folder("clipart") is not None else place
    domains, digests, counts = {}, {}, {}
    for domain in DOMAINS:
        sides: list[ImageSet | None] = []
        for side in ("train", "test"):
            name = f"{domain}_{side}.txt"
            held = lists.holds(name)
            sides.append(
                read_official_list(lists, name, domain=domain, classes=classes, images=images) if held else None
            )
            if held:
                digests[f"{domain}/{side}"] = list_digest(lists, name)
        if any(side is not None for side in sides):
            domains[domain] = Sides(*sides)
            counts[domain] = sum(len(side) for side in sides if side is not None)
    variant = _variant(digests, counts)
    if fixed and "painting" in domains:
        domains["painting"] = _fixed(domains["painting"])
        variant += ", t-shirt moved to painting's training side"
    return Found(place.path, "lists", domains, LeftOut(), "given", variant)


def _variant(digests: dict[str, str], counts: dict[str, int]) -> str:
    known = known_of("domainnet")["sets"]
    if digests and all(digest == known[name].get("list", digest) for name, digest in digests.items()):
        return "cleaned"
    return "original" if counts and all(counts[d] == ORIGINAL[d] for d in counts) else "other lists"


def _fixed(painting: Sides) -> Sides:
    """painting with its one misplaced image among those to learn from, as DUCT has it."""
    train, test = painting.train, painting.test
    if train is None or test is None:
        return painting
    at = next((i for i, path in enumerate(test.paths) if path.as_posix().endswith(MISPLACED)), None)
    if at is None:
        raise ValueError(f"no {MISPLACED} among the test images of painting")
    moved = ImageSet((*train.paths, test.paths[at]), (*train.labels, test.labels[at]), train.classes)
    return Sides(moved, test.subset(i for i in range(len(test)) if i != at))


def _fixed_sets() -> Mapping[str, Any]:
    sets = {name: dict(known) for name, known in known_of("domainnet")["sets"].items()}
    for name, change in (("painting/train", 1), ("painting/test", -1)):
        known = sets[name]
        known["images"] += change
        known["classes"] = known["classes"] | {"t-shirt": known["classes"].get("t-shirt", 0) + change}
    return sets


DOMAINNET = Benchmark(
    name="domainnet",
    title="345 things in six styles, cleaned lists",
    licence="fair use (research)",
    source="http://ai.bu.edu/M3SDA",
    read=read,
    order=DOMAINS,
    orders={"ranpac": OTHER_ORDER},
    downloads=(
        *(Download(f"{HOST}/groundtruth/{name}.zip") for name in ("clipart", "painting")),
        *(Download(f"{HOST}/{name}.zip") for name in ("infograph", "quickdraw", "real", "sketch")),
        *(Download(f"{HOST}/domainnet/txt/{name}_{side}.txt") for name in DOMAINS for side in ("train", "test")),
    ),
    gigabytes=17.7,
    published=published("domainnet"),
)
FIXED = replace(
    DOMAINNET,
    name="domainnet-fixed",
    title="DomainNet with painting's t-shirt moved to its training side",
    read=partial(read, fixed=True),
    published=_fixed_sets,
)
