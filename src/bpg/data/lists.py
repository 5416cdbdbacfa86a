"""Image lists as DomainNet has them: a line `path label` an image, labels from 0."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bpg.data.images import ImageSet
from bpg.errors import WrongUse

LONGEST_LABEL = 6  # digits


def read_list(file: str | Path, *, root: str | Path | None = None, classes: Sequence[str] | None = None) -> ImageSet:
    """The images of a list. Paths are taken from `root`, which is the list's own folder if not given.

    `classes` names the labels in order; without it `classes.txt` beside the list does, or else the folders that the
    images lie in, which then must be one a label.
    """
    file = Path(file)
    root = file.parent if root is None else Path(root)
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUse(
            f"cannot read the list {file}", wanted="a text file", came=str(error), remedy="Check the path."
        ) from error
    paths: list[Path] = []
    labels: list[int] = []
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
        paths.append(root / path.rstrip())
        labels.append(int(label))
    if not paths:
        raise WrongUse(
            f"{file} lists nothing", wanted="at least one image", came="an empty list", remedy="Check the path."
        )
    if isinstance(classes, str):
        raise WrongUse(
            "class names are a list", wanted="a list of names", came=repr(classes), remedy="Write [...] around it."
        )
    names = _class_names(file, paths, labels) if classes is None else tuple(classes)
    return ImageSet(tuple(paths), tuple(labels), names)


def _class_names(file: Path, paths: Sequence[Path], labels: Sequence[int]) -> tuple[str, ...]:
    beside = file.parent / "classes.txt"
    if beside.is_file():
        try:
            text = beside.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise WrongUse(
                f"cannot read {beside}", wanted="a name a line, UTF-8", came=str(error), remedy="Save it as UTF-8."
            ) from error
        return tuple(line.strip() for line in text.splitlines() if line.strip())
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
