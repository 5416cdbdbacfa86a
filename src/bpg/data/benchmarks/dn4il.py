"""DN4IL: 100 classes of DomainNet in its six styles, made for domain-incremental learning.

Gowda et al., "Dual Cognitive Architecture: Incorporating Biases and Multi-Memory Systems for Lifelong Learning", 2023,
arXiv 2310.11341. The images are DomainNet's; the lists lie in a folder dn4il beside them, or in the place of its own.
"""

from __future__ import annotations

from bpg.data.benchmark import Benchmark, Download, published
from bpg.data.benchmarks.domainnet import DOMAINNET, DOMAINS, read_lists
from bpg.data.folder import Found, LeftOut
from bpg.data.places import Place

LISTS = "https://raw.githubusercontent.com/NeurAI-Lab/DN4IL-dataset/9227378338caf080eff2e5a87f2bca4bea12b98a"


def read(place: Place) -> Found:
    """DOMAIN/CLASS/*.jpg and dn4il/DOMAIN_{train,test}.txt."""
    images = place.holding("dn4il/clipart_train.txt") or place.holding("clipart_train.txt") or place
    beside = images.holds("dn4il/clipart_train.txt")
    domains, official = read_lists((beside and images.folder("dn4il")) or images, images, "dn4il")
    return Found(images.path, "lists", domains, LeftOut(), "given", "official" if official else "other lists")


DN4IL = Benchmark(
    name="dn4il",
    title="100 classes of DomainNet",
    licence="lists MIT; images as DomainNet",
    source="https://github.com/NeurAI-Lab/DN4IL-dataset",
    read=read,
    order=("real", "clipart", "infograph", "painting", "sketch", "quickdraw"),
    variants=("official",),
    downloads=(
        *(each for each in DOMAINNET.downloads if each.name.endswith(".zip")),
        *(Download(f"{LISTS}/{d}_{side}.txt", folder="dn4il") for d in DOMAINS for side in ("train", "test")),
    ),
    gigabytes=17.7,
    published=published("dn4il"),
)
