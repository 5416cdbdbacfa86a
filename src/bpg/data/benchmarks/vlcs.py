"""VLCS: five classes from four older data sets.

Fang et al., "Unbiased Metric Learning: On the Utilization of Multiple Datasets and Web Images for Softening Bias",
2013. Lists are used where they are, or else 30 % are held out by their names.
"""

from __future__ import annotations

from functools import partial

from bpg.data.benchmark import Benchmark, published
from bpg.data.folder import read_domains

NAMES = {"Caltech101": ("CALTECH",), "LabelMe": ("LABELME",), "SUN09": ("SUN",), "VOC2007": ("PASCAL",)}

VLCS = Benchmark(
    name="vlcs",
    title="five classes from four older data sets",
    licence="as its sources, for research",
    source="https://github.com/facebookresearch/DomainBed (its download script)",
    read=partial(read_domains, names=NAMES, test_share=0.3),
    order=tuple(NAMES),
    published=published("vlcs"),
)
