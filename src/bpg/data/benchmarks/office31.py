"""Office-31: 31 things of an office from a web shop, a good camera and a web camera.

Saenko et al., "Adapting Visual Category Models to New Domains", 2010. There is no official split for learning one
domain after another: lists are used where they are, or else 30 % are held out by their names.
"""

from __future__ import annotations

from functools import partial

from bpg.data.benchmark import Benchmark, published
from bpg.data.folder import read_domains

NAMES = {"amazon": (), "dslr": (), "webcam": ()}

OFFICE31 = Benchmark(
    name="office-31",
    title="31 things of an office from three sources",
    licence="for research",
    source="https://faculty.cc.gatech.edu/~judy/domainadapt",
    read=partial(read_domains, names=NAMES, inner="images", test_share=0.3),
    order=tuple(NAMES),
    published=published("office-31"),
)
