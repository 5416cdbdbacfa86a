"""Office-Home: 65 things of office and home as art, clip art, product pictures and photos.

Venkateswara et al., "Deep Hashing Network for Unsupervised Domain Adaptation", 2017, arXiv 1706.07522. There is no
official split: lists DOMAIN_{train,test}.txt are used where they are, or else 30 % are held out by their names.
"""

from __future__ import annotations

from functools import partial

from bpg.data.benchmark import Benchmark, published
from bpg.data.folder import read_domains

NAMES = {"Art": (), "Clipart": (), "Product": (), "Real_World": ("Real World", "RealWorld")}

OFFICE_HOME = Benchmark(
    name="office-home",
    title="65 things of office and home in four styles",
    licence="for research, not commercial",
    source="https://www.hemanthdv.org/officeHomeDataset.html",
    read=partial(read_domains, names=NAMES, test_share=0.3),
    order=tuple(NAMES),
    orders={"duct": ("Product", "Clipart", "Real_World", "Art")},
    published=published("office-home"),
)
