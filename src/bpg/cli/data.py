"""What `bpg data` does and prints."""

from __future__ import annotations

from pathlib import Path

from bpg.cli.app import Common
from bpg.cli.images import check_place, tell_left_out
from bpg.cli.tables import print_json, print_table
from bpg.data.benchmark import Benchmark
from bpg.data.download import fetch, unpacked
from bpg.data.files import is_archive
from bpg.data.folder import COMPRESSED
from bpg.data.pack import Kind, pack
from bpg.data.samples import write_sample
from bpg.data.unpack import unpack
from bpg.data.verify import images_of, sizes_off, verify
from bpg.errors import WrongUse
from bpg.progress import counted
from bpg.registry import DATASETS


def print_benchmarks(common: Common) -> None:
    """A row a benchmark."""
    known: list[Benchmark] = [DATASETS[name] for name in DATASETS]
    rows = [
        {
            "name": each.name,
            "domains": len(each.order) + len(each.unseen),
            "images": _published_images(each),
            "GB": each.gigabytes,
            "what": each.title,
            "licence": each.licence,
            "source": each.source,
        }
        for each in known
    ]
    if common.json:
        print_json([row | {"orders": {"": list(b.order), **b.orders}} for row, b in zip(rows, known, strict=True)])
    else:
        print_table(rows, columns=("name", "domains", "images", "GB", "what", "source", "licence"))


def _published_images(benchmark: Benchmark) -> int | None:
    """Those to learn from and those to test on; None where not all of it is published."""
    known = benchmark.expected
    whole = [known[name] for name in ("all", *benchmark.order) if name in known]
    sides = [known[name] for name in benchmark.sets if name in known]
    parts = whole or (sides if len(sides) == len(benchmark.sets) else [])
    return sum(map(images_of, parts)) or None


def print_verified(common: Common, name: str, root: Path | None, *, duplicates: bool, again: bool) -> bool:
    """A row a side of a domain, then what is wrong; whether nothing is."""
    benchmark: Benchmark = DATASETS[name]
    common.use_machine()
    try:
        found = benchmark.find(root)
    except WrongUse as error:
        if root is None or not root.exists():
            raise
        if common.json:
            print_json({"name": name, "root": str(root), "sets": [], "wrong": [str(error)]})
        else:
            print(f"WRONG: {error}")
        return False
    with common.bar(name) as show:
        verified = verify(benchmark, found, counted(show, "verify"), again=again)
    rows = [
        {
            "set": side.name,
            "images": side.images,
            "classes": len(side.classes),
            "smallest class": min(side.classes.values(), default=0),
            "sha256": side.sha256 if common.json else side.sha256[:16],
            "as published": None if side.name not in benchmark.expected or found.split == "made" else not side.wrong,
        }
        for side in verified.sets
    ]
    wrong = verified.faults(duplicates=duplicates)
    unreadable = [{"path": str(f.path), "reason": f.reason} for side in verified.sets for f in side.unreadable]
    empty = {side.name: side.empty for side in verified.sets if side.empty and side.images}
    if common.json:
        document = {
            "name": name,
            "root": str(found.root),
            "variant": found.variant,
            "layout": found.layout,
            "split": found.split,
            "orders": {"": benchmark.order, **benchmark.orders, **found.orders},
            "sets": rows,
            "empty": empty,
            "leaks": verified.leaks,
            "conflicts": verified.conflicts,
            "unreadable": unreadable,
            "wrong": wrong,
        }
        print_json(document)
        return not wrong
    tell_left_out(common, found)
    print_table(rows, columns=("set", "images", "classes", "smallest class", "sha256", "as published"))
    if found.variant is not None:
        print(f"variant: {found.variant}")
    for order, domains in found.orders.items():
        print(f"order {order}: {', '.join(domains)}")
    for side, classes in empty.items():  # of a part of a benchmark, most are
        more = f" and {len(classes) - 5} more" if len(classes) > 5 else ""
        print(f"{side} has no image of {', '.join(classes[:5])}{more}")
    for image in unreadable:
        print(f"unreadable: {image['path']}: {image['reason']}")
    for fault in wrong:
        print(f"WRONG: {fault}")
    if not wrong:
        verdict = (
            "as published" if benchmark.expected else "all can be read; there is nothing published to compare with"
        )
        print(f"{name}: {sum(side.images for side in verified.sets)} images, {verdict}.")
    return not wrong


def prepare_benchmark(
    common: Common, name: str, root: Path, *, mirror: str | None, unpacking: bool, images: Path | None
) -> None:
    """Fetch what a benchmark is made of into `root`, and make of it what has to be made."""
    benchmark: Benchmark = DATASETS[name]
    if benchmark.shipped is not None:
        common.say(f"{name} ships with bpg: there is nothing to prepare.")
        return
    if (benchmark.build is None and images is not None) or (benchmark.build is not None and unpacking):
        flag = "--images" if images is not None else "--unpack"
        raise WrongUse(f"{name} does not take {flag}", wanted="none", came=flag, remedy="Leave it out.")
    check_place(root, "a benchmark")
    root.mkdir(parents=True, exist_ok=True)
    for download in benchmark.downloads if images is None else ():
        with common.bar(download.name) as show:
            file = fetch(download, root, mirror=mirror, tell=counted(show, "bytes"))
        common.say(f"{file} is there")
    for archive in sorted(path for path in root.iterdir() if path.name.lower().endswith((".zip", ".tar", *COMPRESSED))):
        if unpacking and unpacked(archive).exists():
            raise WrongUse(
                f"{archive} was unpacked before",
                wanted="one archive of this name",
                came=f"{unpacked(archive).name} beside it",
                remedy="Remove the one that you do not need.",
            )
        if unpacking:
            common.say(f"{archive.name}: {unpack(archive, root):,} files unpacked; it is called *.unpacked now")
            archive.rename(unpacked(archive))
        elif not is_archive(archive):
            common.say(f"note: {archive.name} cannot be read as it is; --unpack unpacks it")
    if benchmark.build is not None:
        with common.bar(name) as show:
            benchmark.build(root, images, counted(show, "make"))
    if not any(root.iterdir()):
        raise WrongUse(
            f"{name} cannot be fetched by an address",
            wanted=f"its files in {root}",
            came="nothing there",
            remedy=f"Get it from {benchmark.source}, put it there as it is, archives too, and run the same again.",
        )
    found = benchmark.find(root)
    off = sizes_off(benchmark, found)
    if common.json:
        about = {"name": name, "root": str(found.root), "domains": list(found.domains), "variant": found.variant}
        print_json(about | {"off": off})
        return
    print(f"{name}: {', '.join(found.domains)} in {found.root}.")
    for each in off:
        print(f"note: {each}")
    print(f"`bpg data verify {name} {root}` reads every image.")


def pack_folder(common: Common, root: Path, out: Path, kind: Kind) -> None:
    """A folder as few large files."""
    with common.bar(root.name) as show:
        made = pack(root, out, kind=kind, tell=counted(show, "pack"))
    if common.json:
        print_json([str(path) for path in made])
    else:
        for path in made:
            print(path)


def write_sample_of(common: Common, name: str, out: Path, *, per_class: int, classes: int | None) -> None:
    """A small tree of a benchmark."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise WrongUse(f"{out} is taken", wanted="a new or empty folder", came="another", remedy="Name one.")
    count = write_sample(DATASETS[name], out, per_class=per_class, classes=classes)
    if common.json:
        print_json({"name": name, "root": str(out), "files": count})
    else:
        print(f"{out}: {count} files in the layout of {name}; the pictures are drawn.")
