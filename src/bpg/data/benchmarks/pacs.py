"""PACS: seven classes as photos, art paintings, cartoons and sketches.

Li et al., "Deeper, Broader and Artier Domain Generalization", 2017, arXiv 1710.03077. The official split is that of the
kfold lists: `train` to learn from, `crossval` to test on (their `test` is the two together). Their labels start at 1.
"""

from __future__ import annotations

from bpg.data.benchmark import Benchmark, published
from bpg.data.folder import Found, LeftOut, Sides, read_domains
from bpg.data.images import ImageSet
from bpg.data.lists import read_entries
from bpg.data.places import Place
from bpg.errors import WrongUse

DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
TEST_SHARE = 0.1  # as large as the official one


def read(place: Place) -> Found:
    """DOMAIN/CLASS/*, perhaps in a folder kfold, and DOMAIN_{train,crossval}_kfold.txt in any folder beside it."""
    lists = place.holding("photo_train_kfold.txt")
    images = place.holding("art_painting") or place
    if lists is None:
        return read_domains(images, dict.fromkeys(DOMAINS, ()), test_share=TEST_SHARE)
    sides = {name: Sides(*(_listed(lists, name, side, images) for side in ("train", "crossval"))) for name in DOMAINS}
    return Found(place.path, "lists", sides, LeftOut(), "given")


def _listed(lists: Place, domain: str, side: str, images: Place) -> ImageSet | None:
    name = f"{domain}_{side}_kfold.txt"
    if not lists.holds(name):
        return None
    entries = read_entries(lists.file(name))
    start = 0 if any(label == 0 for _, label in entries) else 1  # 1 in the official lists, 0 in copies of them
    for path, label in entries:
        first, folder, _ = ("", "", *path.split("/"))[-3:]
        if first != domain or folder not in CLASSES or label != CLASSES.index(folder) + start:
            raise WrongUse(
                f"{lists.file(name)} is not the official list",
                wanted=f"images of the domain it is named after, labels in the order {', '.join(CLASSES)}",
                came=f"{path} {label}",
                remedy="Fetch it anew.",
            )
    labels = tuple(label - start for _, label in entries)
    return ImageSet(tuple(images.file(path) for path, _ in entries), labels, CLASSES)


PACS = Benchmark(
    name="pacs",
    title="seven things in four styles",
    licence="none stated",
    source="https://sketchx.eecs.qmul.ac.uk/downloads",
    read=read,
    order=DOMAINS,
    orders={"alphabetical": tuple(sorted(DOMAINS))},
    published=published("pacs"),
)
