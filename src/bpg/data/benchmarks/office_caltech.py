"""Office-Caltech10: the ten classes that Office-31 and Caltech-256 share.

Gong et al., "Geodesic Flow Kernel for Unsupervised Domain Adaptation", 2012. Lists are used where they are, or else
30 % are held out by their names.
"""

from __future__ import annotations

from functools import partial

from bpg.data.benchmark import Benchmark, published
from bpg.data.folder import read_domains

NAMES = {"amazon": (), "caltech": ("caltech10",), "dslr": (), "webcam": ()}

OFFICE_CALTECH = Benchmark(
    name="office-caltech10",
    title="ten things of an office from four sources",
    licence="for research",
    source="https://faculty.cc.gatech.edu/~judy/domainadapt",
    read=partial(read_domains, names=NAMES, inner="images", test_share=0.3),
    order=tuple(NAMES),
    published=published("office-caltech10"),
)
