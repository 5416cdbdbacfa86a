"""The data of a run: a stream whose images can all be read, and the manifest that says what it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bpg.data.benchmark import Benchmark
from bpg.data.check import Checked, check_all
from bpg.data.domain import DomainStream, TestSet
from bpg.data.folder import Found, limited, read_folder
from bpg.data.images import ImageSet
from bpg.errors import WrongUse
from bpg.experiments.spec import DataSpec, Spec, data_root
from bpg.progress import Progress, counted
from bpg.registry import DATASETS


@dataclass(frozen=True, slots=True)
class Data:
    """A stream whose images can all be read, and what is known of it."""

    stream: DomainStream
    manifest: dict[str, Any]  # JSON: counts, digests, what was left out; paths from the root
    root: Path


def find(data: DataSpec) -> Found:
    """What there is of the images that `data` names."""
    root = data_root(data.root) if data.root is not None else None
    if data.benchmark is not None:
        known: Benchmark = DATASETS[data.benchmark]
        return known.find(root)
    assert root is not None  # DataSpec has one or the other
    return read_folder(root, test_share=data.test_share)


def prepare(spec: Spec, found: Found, show: Callable[[Progress], None]) -> Data:
    """The stream of `spec` among the data `found`, every image checked."""
    order = spec.data.order
    if spec.data.benchmark is not None:
        stream = DATASETS[spec.data.benchmark].stream(found, order)
    else:
        assert not isinstance(order, str)  # DataSpec sees to it
        stream = found.stream(name=spec.name, order=order)
    sides = [(f"{domain.name}: training", domain.train, spec.data.per_class) for domain in stream.domains]
    sides += [(f"{test.name}: test", test.images, spec.data.test_per_class) for test in stream.tests]
    chosen = [(what, images if most is None else limited(images, most)) for what, images, most in sides]
    checked = []
    results = check_all((images for _, images in chosen), strict=spec.data.strict, progress=counted(show, "check"))
    for (what, _), result in zip(chosen, results, strict=True):
        if not result.images:
            raise WrongUse(
                f"no image of {what} can be read",
                wanted="readable images",
                came=f"{len(result.unreadable)} that are not, such as {result.unreadable[0].path}",
                remedy="Mend the images, or leave the domain out of data.order.",
            )
        checked.append(result)
    count = len(stream.domains)
    domains = tuple(replace(d, train=c.images) for d, c in zip(stream.domains, checked[:count], strict=True))
    tests = tuple(TestSet(c.images, t.domain, t.label) for t, c in zip(stream.tests, checked[count:], strict=True))
    root = _folder(data_root(spec.data.root) if spec.data.root is not None else found.root)
    manifest = {
        "root": spec.data.root,
        "benchmark": spec.data.benchmark,
        "variant": found.variant,
        "split": found.split,
        "order": spec.data.order if isinstance(spec.data.order, str) else None,
        "protocol": spec.data.protocol,
        "layout": found.layout,
        "classes": sorted({name for c in checked for name in c.images.counts()}),
        "domains": [
            {"name": d.name, "train": _side(c, root), "test": any(t.domain == d.name for t in tests)}
            for d, c in zip(domains, checked[:count], strict=True)
        ],
        "tests": [
            {"name": t.name, "domain": t.domain, **_side(c, root), "samples": _samples(c.images, root)}
            for t, c in zip(tests, checked[count:], strict=True)
        ],
        "left_out": found.left_out.sentences(found.root),
    }
    return Data(DomainStream(stream.name, domains, tests), manifest, root)


def place_of(manifest: Mapping[str, Any]) -> Path:
    """The folder that the paths in a manifest start from, if the data is still where it was."""
    named = manifest["root"]
    return _folder(data_root(named) if named is not None else DATASETS[manifest["benchmark"]].find(None).root)


def data_name(manifest: Mapping[str, Any]) -> str:
    """What to call the data of a manifest."""
    return str(manifest.get("benchmark") or Path(manifest["root"]).name)


def _folder(place: Path) -> Path:
    return place if place.is_dir() else place.parent


def identity_of(data: Data) -> list[Any]:
    """What a result depends on of its data: the sets in their order, by content."""
    return [_key(side) for side in (*data.manifest["domains"], *data.manifest["tests"])]


def _key(side: dict[str, Any]) -> list[Any]:
    return [side["name"], side.get("domain"), side.get("train", side)["sha256"]]


def _side(checked: Checked, root: Path) -> dict[str, Any]:
    unreadable = [{"path": below(fault.path, root), "reason": fault.reason} for fault in checked.unreadable]
    counts = checked.images.counts()
    return {"images": len(checked.images), "sha256": checked.sha256, "classes": counts, "unreadable": unreadable}


def _samples(images: ImageSet, root: Path) -> dict[str, str]:
    """An image of each class, for the report."""
    first: dict[str, str] = {}
    for path, label in zip(images.paths, images.labels, strict=True):
        first.setdefault(images.classes[label], below(path, root))
    return dict(sorted(first.items())[:50])


def below(path: Path, root: Path) -> str:
    """`path` as a manifest has it: from the root."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
