"""CORe50: 50 objects filmed in eleven sessions; eight are learned, three are one test set that belongs to no domain.

Lomonaco and Maltoni, "CORe50: a New Dataset and Benchmark for Continuous Object Recognition", 2017, arXiv 1705.03550.
The order of the sessions here is the natural one. The runs of the "new instances" scenario, in LUP.pkl, have others:
they are the orders ni-0 to ni-9, and most code bases use ni-0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bpg.data.benchmark import Benchmark, Download, known_of, published
from bpg.data.decode import decode
from bpg.data.files import read as read_file
from bpg.data.folder import Found, LeftOut, Sides
from bpg.data.images import ImageSet
from bpg.data.pickles import read_pickle
from bpg.data.places import Place
from bpg.errors import BPGError, ImageError, WrongUse

TRAIN = tuple(f"s{number}" for number in (1, 2, 4, 5, 6, 8, 9, 11))
TEST = tuple(f"s{number}" for number in (3, 7, 10))
TEST_NAME = "+".join(TEST)
CATEGORIES = (
    *("plug_adapter", "mobile_phone", "scissor", "light_bulb", "can"),
    *("glass", "ball", "marker", "cup", "remote_control"),
)
OBJECTS = tuple(f"{category}{number}" for category in CATEGORIES for number in range(1, 6))
FRAME = re.compile(r"C_(\d+)_(\d+)_\d+\.png", flags=re.IGNORECASE)
HOST = "http://bias.csr.unibo.it/maltoni/download/core50"


def read(place: Place, *, categories: bool = False) -> Found:
    """sSESSION/oOBJECT/C_*.png, in a folder core50_128x128 or not; LUP.pkl and paths.pkl, if there are any."""
    images = place.holding("s1") or place
    left_out = LeftOut()
    sessions = {name: found for name in (*TRAIN, *TEST) if (found := images.folder(name)) is not None}
    domains = {
        name: Sides(_session(sessions[name], categories=categories, left_out=left_out), None)
        for name in TRAIN
        if name in sessions
    }
    held_out = [_session(sessions[name], categories=categories, left_out=left_out) for name in TEST if name in sessions]
    if held_out:
        paths = tuple(path for each in held_out for path in each.paths)
        labels = tuple(label for each in held_out for label in each.labels)
        domains[TEST_NAME] = Sides(None, ImageSet(paths, labels, held_out[0].classes))
    return Found(images.path, "session/object", domains, left_out, "given", _size(domains), _orders(place, images))


def _size(domains: Mapping[str, Sides]) -> str | None:
    """Width and height of the first image that can be read: the frames are handed round in two sizes."""
    for sides in domains.values():
        for images in sides.named().values():
            with suppress(ImageError, IndexError):
                _, height, width = decode(images.encoded(0), where=str(images.paths[0])).shape
                return f"{width}x{height}"
    return None


def _session(session: Place, *, categories: bool, left_out: LeftOut) -> ImageSet:
    number = int(session.name[1:])
    paths: list[Path] = []
    labels: list[int] = []
    objects = {int(folder.name[1:]): folder for folder in session.folders() if re.fullmatch(r"o\d+", folder.name)}
    for each in sorted(objects):
        for file in objects[each].files():
            name = FRAME.fullmatch(file.name)
            if name is None:
                left_out.formats[file.suffix.lower() or "without a suffix"] += 1
                continue
            if (int(name[1]), int(name[2])) != (number, each) or each > len(OBJECTS):
                raise WrongUse(
                    f"{file} lies in the wrong folder",
                    wanted=f"frames of session {number}, object {each}",
                    came=f"one of session {int(name[1])}, object {int(name[2])}",
                    remedy="Unpack the images anew.",
                )
            paths.append(file)
            labels.append((each - 1) // 5 if categories else each - 1)
    return ImageSet(tuple(paths), tuple(labels), CATEGORIES if categories else OBJECTS)


def _orders(*places: Place) -> dict[str, tuple[str, ...]]:
    """The session orders of the runs, from LUP.pkl and paths.pkl, if they are there."""
    place = next((p for p in places if p.holds("LUP.pkl") and p.holds("paths.pkl")), None)
    if place is None:
        return {}
    try:
        return _runs(place, *(_pickle(place, name) for name in ("LUP.pkl", "paths.pkl", "labels.pkl")))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, BPGError):
            raise
        raise _odd(place, f"{type(error).__name__}: {error}") from error


def _runs(place: Place, lup: Any, paths: Any, labels: Any) -> dict[str, tuple[str, ...]]:
    parts = [str(path).split("/") for path in paths]  # sSESSION, oOBJECT, file
    session_of, object_of = np.array([p[0] for p in parts]), np.array([int(p[1][1:]) - 1 for p in parts])
    orders = {}
    for run, batches in enumerate(lup["ni"]):
        order: list[str] = []
        for number, batch in enumerate(batches):
            held = np.asarray(batch, dtype=np.int64)
            sessions = set(np.unique(session_of[held]).tolist())
            last = number == len(batches) - 1
            if sessions != set(TEST) if last else len(sessions) != 1 or not sessions <= set(TRAIN) - set(order):
                held_by = ", ".join(sorted(sessions)) or "no session"
                raise _odd(place, f"batch {number} of run {run} with images of {held_by}")
            if labels is not None and not np.array_equal(np.asarray(labels["ni"][run][number]), object_of[held]):
                raise _odd(place, f"batch {number} of run {run} with labels that are not the objects' numbers")
            order += [] if last else sessions
        orders[f"ni-{run}"] = tuple(order)
    return orders


def _pickle(place: Place, name: str) -> Any:
    return read_pickle(read_file(place.file(name)), where=str(place.file(name))) if place.holds(name) else None


def _odd(place: Place, came: str) -> WrongUse:
    return WrongUse(
        f"LUP.pkl in {place.path} is not CORe50's",
        wanted=f"in each batch one of {', '.join(TRAIN)}, and {', '.join(TEST)} in the last",
        came=came,
        remedy="Fetch LUP.pkl, paths.pkl and labels.pkl anew.",
    )


def _by_category() -> Mapping[str, Any]:
    sets = {}
    for name, known in known_of("core50")["sets"].items():
        counts = Counter[str]()
        for each, images in known["classes"].items():
            counts[CATEGORIES[OBJECTS.index(each) // 5]] += images
        sets[name] = {"images": known["images"], "classes": dict(counts)}
    return sets


CORE50 = Benchmark(
    name="core50",
    title="50 objects in eight sessions, tested on three others",
    licence="CC-BY-4.0",
    source="https://vlomonaco.github.io/core50",
    read=read,
    order=TRAIN,
    orders={"natural": TRAIN},
    variants=("128x128",),
    unseen=(TEST_NAME,),
    downloads=tuple(
        Download(f"{HOST}/{name}") for name in ("core50_128x128.zip", "paths.pkl", "LUP.pkl", "labels.pkl")
    ),
    gigabytes=4.2,
    published=published("core50"),
)
CORE50_CATEGORIES = replace(
    CORE50,
    name="core50-categories",
    title="CORe50 by ten categories of objects",
    read=partial(read, categories=True),
    published=_by_category,
)
