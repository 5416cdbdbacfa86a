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
MOVED = ", t-shirt moved to painting's training side"
HOST = "http://csr.bu.edu/ftp/visda/2019/multi-source"


def read_lists(lists: Place, images: Place, name: str) -> tuple[dict[str, Sides], bool]:
    """The domains that have lists, by the labels published for `name`; whether all are the official ones."""
    known = known_of(name)
    domains, same = {}, True
    for domain in DOMAINS:
        sides: dict[str, ImageSet] = {}
        for side in ("train", "test"):
            file, wanted = f"{domain}_{side}.txt", known["sets"][f"{domain}/{side}"]
            if lists.holds(file):
                found = read_official_list(lists, file, domain=domain, classes=known["classes"], images=images)
                digest = list_digest(lists, file)
                same = same and len(found) == wanted["images"] and wanted.get("list", digest) == digest
                sides[side] = found
        if sides:
            domains[domain] = Sides(sides.get("train"), sides.get("test"))
    return domains, same and bool(domains)


def read(place: Place, *, fixed: bool = False) -> Found:
    """DOMAIN/CLASS/*.jpg, and lists DOMAIN_{train,test}.txt beside the domains or in a folder there."""
    lists = place.holding(*(f"{domain}_{side}.txt" for domain in DOMAINS for side in ("train", "test"))) or place
    domains, cleaned = read_lists(lists, lists if lists.folder("clipart") is not None else place, "domainnet")
    counts = {domain: sum(map(len, sides.named().values())) for domain, sides in domains.items()}
    original = bool(counts) and all(counts[domain] == ORIGINAL[domain] for domain in counts)
    variant = "cleaned" if cleaned else "original" if original else "other lists"
    if fixed and "painting" in domains:
        before, domains["painting"] = domains["painting"], _fixed(domains["painting"])
        variant += MOVED if domains["painting"] is not before else ""
    return Found(place.path, "lists", domains, LeftOut(), "given", variant)


def _fixed(painting: Sides) -> Sides:
    """painting with its one misplaced image among those to learn from, as DUCT has it."""
    train, test = painting.train, painting.test
    if train is None or test is None:
        return painting
    at = next((i for i, path in enumerate(test.paths) if path.as_posix().endswith(MISPLACED)), None)
    if at is None:  # a part of the lists, or lists that have the fix already
        return painting
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
    variants=("cleaned",),
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
    variants=(f"cleaned{MOVED}",),
    published=_fixed_sets,
)
