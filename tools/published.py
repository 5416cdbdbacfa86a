"""Writes src/bpg/data/published/*.json: what benchmarks must hold, from their official lists and tables.

    python -m tools.published LISTS

LISTS has the folders domainnet (the cleaned lists and class_index.txt), dn4il (its lists) and core50 (the archive
dataset_dims.zip of its repository). What is known from elsewhere stands here with its source.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

from bpg.data.benchmarks import cddb, core50, domainnet, pacs
from bpg.data.lists import list_digest, read_entries
from bpg.data.places import Place

OUT = Path(__file__).parent.parent / "src" / "bpg" / "data" / "published"
SIDES = ("train", "test")
# The two lists that LISTS may lack: sizes from TensorFlow Datasets' catalogue (domainnet 1.0.0, which has the cleaned
# lists); quickdraw has 350 training images of every class.
LACKING = {"quickdraw/train": 120_750, "real/train": 120_906}
# Comments in SOYO's loader (sums) and accuracies in DUCT's published log, which only these denominators make possible.
CDDB = {
    "gaugan": (6000, 2000),
    "biggan": (2400, 800),
    "wild": (6208, 2063),
    "whichfaceisreal": (1200, 400),
    "san": (260, 90),
}
# The data sets' papers and pages: images of each domain, both sides together where there is no official split.
PACS = {
    "photo": (189, 202, 182, 186, 199, 280, 432),
    "art_painting": (379, 255, 285, 184, 201, 295, 449),
    "cartoon": (389, 457, 346, 135, 324, 288, 405),
    "sketch": (772, 740, 753, 608, 816, 80, 160),
}
PACS_TEST = {"photo": 171, "art_painting": 208, "cartoon": 237, "sketch": 398}
WHOLE = {
    "office-home": {"Art": 2427, "Clipart": 4365, "Product": 4439, "Real_World": 4357},
    "office-31": {"amazon": 2817, "dslr": 498, "webcam": 795},
    "office-caltech10": {"amazon": 958, "caltech": 1123, "dslr": 157, "webcam": 295},
    "vlcs": {"Caltech101": 1415, "LabelMe": 2656, "SUN09": 3282, "VOC2007": 3376},
}


def listed(folder: Path, classes: list[str]) -> dict[str, Any]:
    """Images, classes and the digest of every list in `folder`."""
    sets: dict[str, Any] = {}
    for domain in domainnet.DOMAINS:
        for side in SIDES:
            name = f"{domain}_{side}.txt"
            if not (folder / name).is_file():
                continue
            counts = Counter(classes[label] for _, label in read_entries(folder / name))
            sets[f"{domain}/{side}"] = {
                "images": counts.total(),
                "classes": dict(sorted(counts.items())),
                "list": list_digest(Place(folder), name),
            }
    return sets


def write(name: str, document: dict[str, Any]) -> None:
    """A file of published numbers."""
    (OUT / f"{name}.json").write_text(
        json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n", encoding="utf-8"
    )


def main(lists: Path) -> None:
    """All of them."""
    names = [
        line.split(maxsplit=1)[1].strip() for line in (lists / "domainnet" / "class_index.txt").open(encoding="utf-8")
    ]
    sets = listed(lists / "domainnet", names)
    for name, images in LACKING.items():
        sets.setdefault(name, {"images": images})
    sets["quickdraw/train"]["classes"] = dict.fromkeys(sorted(names), 350)
    write("domainnet", {"classes": names, "sets": sets})

    labels = {
        label: path.split("/")[1]
        for domain in domainnet.DOMAINS
        for path, label in read_entries(lists / "dn4il" / f"{domain}_train.txt")
    }
    names = [labels[label] for label in range(len(labels))]
    write("dn4il", {"classes": names, "sets": listed(lists / "dn4il", names)})

    with zipfile.ZipFile(lists / "core50" / "dataset_dims.zip") as archive:
        rows = [line.split("\t") for line in archive.read("dataset_dims/Color128x128.tsv").decode().splitlines()]
    frames = {
        session: {name: int(row[at]) for name, row in zip(core50.OBJECTS, rows[1:51], strict=True)}
        for at, session in enumerate(rows[0][1:12], start=1)
    }
    together = sum((Counter(frames[session]) for session in core50.TEST), Counter[str]())
    sets = {f"{session}/train": frames[session] for session in core50.TRAIN} | {
        f"{core50.TEST_NAME}/test": dict(together)
    }
    write(
        "core50", {"sets": {name: {"images": sum(counts.values()), "classes": counts} for name, counts in sets.items()}}
    )

    sets = {}
    for domain, both in CDDB.items():
        for side, count in zip(SIDES, both, strict=True):
            even = {} if domain == "wild" else {"classes": dict.fromkeys(cddb.CLASSES, count // 2)}
            sets[f"{domain}/{side}"] = {"images": count} | even
    write("cddb", {"sets": sets})

    sets = {}
    for domain, counts in PACS.items():
        sets[f"{domain}/train"] = {"images": sum(counts) - PACS_TEST[domain]}
        sets[f"{domain}/test"] = {"images": PACS_TEST[domain]}
        sets[domain] = {"images": sum(counts), "classes": dict(zip(pacs.CLASSES, counts, strict=True))}
    write("pacs", {"sets": sets})

    for name, domains in WHOLE.items():
        write(name, {"sets": {domain: {"images": count} for domain, count in domains.items()}})
    write("imagenet-r", {"sets": {"all": {"images": 30_000}}})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
