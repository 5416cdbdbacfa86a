"""DN4IL: 100 classes of DomainNet in its six styles, made for domain-incremental learning.

Gowda et al., "Dual Cognitive Architecture: Incorporating Biases and Multi-Memory Systems for Lifelong Learning", 2023,
arXiv 2310.11341. The images are DomainNet's; the lists lie in a folder dn4il beside them, or in the place of its own.
"""

from __future__ import annotations

from bpg.data.benchmark import Benchmark, known_of, published
from bpg.data.benchmarks.domainnet import DOMAINNET, DOMAINS
from bpg.data.folder import Found, LeftOut, Sides
from bpg.data.lists import list_digest, read_official_list
from bpg.data.places import Place


def read(place: Place) -> Found:
    """DOMAIN/CLASS/*.jpg and dn4il/DOMAIN_{train,test}.txt."""
    lists = place.folder("dn4il") or place
    classes = known_of("dn4il")["classes"]
    names = [f"{domain}_{side}.txt" for domain in DOMAINS for side in ("train", "test")]
    domains = {}
    for domain in DOMAINS:
        train, test = (
            read_official_list(lists, f"{domain}_{side}.txt", domain=domain, classes=classes, images=place)
            if lists.holds(f"{domain}_{side}.txt")
            else None
            for side in ("train", "test")
        )
        if train is not None or test is not None:
            domains[domain] = Sides(train, test)
    known = DN4IL.expected
    held = {name: known[name.removesuffix(".txt").replace("_", "/")]["list"] for name in names if lists.holds(name)}
    same = bool(held) and all(list_digest(lists, name) == digest for name, digest in held.items())
    return Found(place.path, "lists", domains, LeftOut(), "given", "official" if same else "other lists")


DN4IL = Benchmark(
    name="dn4il",
    title="100 classes of DomainNet",
    licence="lists MIT; images as DomainNet",
    source="https://github.com/NeurAI-Lab/DN4IL-dataset",
    read=read,
    order=("real", "clipart", "infograph", "painting", "sketch", "quickdraw"),
    downloads=tuple(each for each in DOMAINNET.downloads if each.name.endswith(".zip")),
    gigabytes=17.7,
    published=published("dn4il"),
)
