"""Image lists as DomainNet has them: a line `path label` an image, labels from 0."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from bpg.data.files import read
from bpg.data.images import ImageSet
from bpg.data.places import Place
from bpg.errors import WrongUse

LONGEST_LABEL = 6  # digits


def read_list(
    file: str | Path, *, root: str | Path | Place | None = None, classes: Sequence[str] | None = None
) -> ImageSet:
    """The images of a list. Paths are taken from `root`, which is the list's own folder if not given.

    In a `Place`, `file` is a path from it. `classes` names the labels in order; without it `classes.txt` beside the
    list does, or else the folders that the images lie in, which then must be one a label.
    """
    if isinstance(root, Place):
        place, file = root, root.file(str(file))
    else:
        file = Path(file)
        place = Place(file.parent if root is None else Path(root))
    entries = read_entries(file)
    paths = [place.file(name) for name, _ in entries]
    labels = [label for _, label in entries]
    if isinstance(classes, str):
        raise WrongUse(
            "class names are a list", wanted="a list of names", came=repr(classes), remedy="Write [...] around it."
        )
    names = _class_names(file, paths, labels) if classes is None else tuple(classes)
    return ImageSet(tuple(paths), tuple(labels), names)


def read_entries(file: Path) -> list[tuple[str, int]]:
    """Path and label of each line of a list, as they stand there."""
    found: list[tuple[str, int]] = []
    try:
        lines = read(file).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUse(
            f"cannot read the list {file}", wanted="a text file", came=str(error), remedy="Check the path."
        ) from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        path, _, label = line.strip().rpartition(" ")  # a path may hold spaces, a label may not
        if not path or not label.isdecimal() or len(label) > LONGEST_LABEL:
            raise WrongUse(
                f"line {number} of {file} is no list entry",
                wanted=f"`path label`, the label a whole number from 0 with at most {LONGEST_LABEL} digits",
                came=repr(line),
                remedy="Correct the line or delete it.",
            )
        found.append((path.rstrip(), int(label)))
    if not found:
        raise WrongUse(
            f"{file} lists nothing", wanted="at least one image", came="an empty list", remedy="Check the path."
        )
    return found


def class_names(folder: Path) -> tuple[str, ...] | None:
    """The names of the classes, in the order of their labels, as `classes.txt` in `folder` has them."""
    file = folder / "classes.txt"
    try:
        text = read(file).decode("utf-8-sig")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUse(
            f"cannot read {file}", wanted="a name a line, UTF-8", came=str(error), remedy="Save it as UTF-8."
        ) from error
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _class_names(file: Path, paths: Sequence[Path], labels: Sequence[int]) -> tuple[str, ...]:
    if (names := class_names(file.parent)) is not None:
        return names
    folders: dict[int, str] = {}
    for path, label in zip(paths, labels, strict=True):
        if folders.setdefault(label, path.parent.name) != path.parent.name:
            raise WrongUse(
                f"label {label} of {file} has no single name",
                wanted="one folder a label",
                came=f"{folders[label]} and {path.parent.name}",
                remedy="Pass `classes`, or put a classes.txt with a name a line beside the list.",
            )
    return tuple(folders.get(label, f"class {label}") for label in range(max(labels) + 1))


def read_official_list(place: Place, name: str, *, domain: str, classes: Sequence[str], images: Place) -> ImageSet:
    """The list `name` in `place` of a benchmark whose classes have fixed labels; paths are taken from `images`.

    Every line must be of `domain`, with the label of its class: lists are handed round in other numberings, too.
    """
    file = place.file(name)
    entries = read_entries(file)
    for path, label in entries:
        first, folder, _ = ("", "", *path.split("/"))[-3:]
        if first != domain:
            raise _no_official(file, f"images of {domain}", path, "This is another domain's list: fetch it anew.")
        if label >= len(classes):
            raise _no_official(
                file,
                f"labels below {len(classes)}",
                f"{label} for {path}",
                "Labels that go on counting from domain to domain belong to other code: fetch the official list.",
            )
        if folder != classes[label]:
            raise _no_official(
                file,
                f"the label {classes.index(folder) if folder in classes else 'of a known class'} for {folder}",
                f"{label}, which is {classes[label]}",
                "Labels in the order of folders, or of a subset, are not the official ones: fetch the official list.",
            )
    return ImageSet(
        tuple(images.file(path) for path, _ in entries), tuple(label for _, label in entries), tuple(classes)
    )


def list_digest(place: Place, name: str) -> str:
    """The sha256 of a list's lines, whatever ends them."""
    return hashlib.sha256(b"\n".join(read(place.file(name)).split())).hexdigest()


def _no_official(file: Path, wanted: str, came: str, remedy: str) -> WrongUse:
    return WrongUse(f"{file} is not the official list", wanted=wanted, came=came, remedy=remedy)
