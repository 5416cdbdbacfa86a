"""Small trees of each benchmark in its official layout, under its official file names: to try things out.

The pictures are drawn: a class is a pattern, a domain its colours. Whatever is odd about a benchmark is so here, too:
DomainNet's empty cells, CDDB's folders that nobody uses, the order of CORe50's runs.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from bpg.data.benchmark import Benchmark, known_of
from bpg.data.benchmarks import cddb, core50, domainnet, imagenet_r, pacs
from bpg.errors import unknown_name
from bpg.randomness import seed_of

# The session orders of the first two runs of CORe50's "new instances".
RUNS = (("s11", "s4", "s2", "s9", "s1", "s6", "s5", "s8"), core50.TRAIN)
Drawn = tuple[int, int]  # class and domain of a picture
Entry = tuple[str, Drawn | bytes]  # the path of a file and what it holds


def write_sample(benchmark: Benchmark, folder: Path, *, per_class: int = 2, classes: int | None = None) -> int:
    """A small tree of a benchmark in `folder`: `per_class` images to learn from, one to test on; how many files.

    `classes` takes only the first so many, where the labels leave that open.
    """
    if benchmark.name not in SAMPLES:
        raise unknown_name("sample", benchmark.name, SAMPLES)
    count = 0
    for name, content in SAMPLES[benchmark.name](benchmark, per_class, classes or 10**9):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            target.write_bytes(content)
        else:
            side = 128 if target.name.startswith("C_") else 28 if benchmark.name.endswith("digits") else 64
            target.write_bytes(draw(*content, key=name, side=side, suffix=target.suffix))
        count += 1
    return count


def draw(label: int, domain: int, *, key: str, side: int, suffix: str) -> bytes:
    """An encoded picture of a class in a domain; `key` tells one from another."""
    pattern = np.random.default_rng(seed_of("sample class", label)).random((4, 4)) < 0.5
    paper, ink = np.random.default_rng(seed_of("sample domain", domain)).integers(0, 256, (2, 3))
    chance = np.random.default_rng(seed_of("sample image", key))
    mask = np.kron(pattern, np.ones((side // 4, side // 4)))[..., None]
    pixels = np.roll(paper * (1 - mask) + ink * mask, chance.integers(-side // 16, side // 16 + 1, 2), axis=(0, 1))
    image = Image.fromarray((pixels + chance.normal(0, 8, pixels.shape)).clip(0, 255).astype(np.uint8))
    buffer = io.BytesIO()
    image.save(buffer, "PNG" if suffix.lower() == ".png" else "JPEG")
    return buffer.getvalue()


def _listed(
    classes: list[str], per_class: int, most: int, folder: str, empty: set[tuple[str, str, str]]
) -> Iterator[Entry]:
    """DomainNet's tree and lists; `empty` are cells (domain, side, class) without an image."""
    for place, domain in enumerate(domainnet.DOMAINS):
        lines: dict[str, list[str]] = {"train": [], "test": []}
        for label, name in enumerate(classes[:most]):
            for number in range(1, per_class + 2):
                side = "train" if number > 1 else "test"
                if (domain, side, name) in empty:
                    continue
                file = (
                    f"{seed_of(name, number) % 10**16:016}.png"
                    if domain == "quickdraw"
                    else (f"{domain}_{known_of('domainnet')['classes'].index(name) + 1:03}_{number:06}.jpg")
                )
                path = f"{domain}/{name}/{file}"
                lines[side].append(f"{path} {label}\n")
                yield path, (label, place)
        for side, each in lines.items():
            yield f"{folder}{domain}_{side}.txt", "".join(each).encode()


def _domainnet(_: Benchmark, per_class: int, most: int) -> Iterator[Entry]:
    empty = {("painting", "train", "t-shirt"), ("painting", "test", "syringe")}
    return _listed(known_of("domainnet")["classes"], per_class, most, "", empty)


def _dn4il(_: Benchmark, per_class: int, most: int) -> Iterator[Entry]:
    return _listed(known_of("dn4il")["classes"], per_class, most, "dn4il/", set())


def _cddb(benchmark: Benchmark, per_class: int, _: int) -> Iterator[Entry]:
    things = {
        "cyclegan": ("apple", "horse"),
        "glow": ("black_hair",),
        "stargan_gf": ("black_hair",),
        "stylegan": ("car",),
    }
    for place, generator in enumerate(benchmark.order):
        for side in ("train", "val", "test"):
            for thing in things.get(generator, ("",)):
                for label, leaf in enumerate(cddb.LEAVES):
                    for number in range(4 * per_class if side == "train" else 2):
                        path = "/".join(part for part in (generator, side, thing, leaf, f"{number:05}.png") if part)
                        yield path, (label, place)
    if "san" in benchmark.order:  # the second, unsplit copy in the archive
        yield "san/0_real/00000.png", (0, benchmark.order.index("san"))
        yield "san/1_fake/00000.png", (1, benchmark.order.index("san"))


def _core50(_: Benchmark, per_class: int, most: int) -> Iterator[Entry]:
    paths: list[str] = []
    for session in range(1, 12):
        for each in range(1, min(most, len(core50.OBJECTS)) + 1):
            for frame in range(per_class):
                paths.append(f"s{session}/o{each}/C_{session:02}_{each:02}_{frame:03}.png")
                yield f"core50_128x128/{paths[-1]}", (each - 1, session)
    batches = [[[session] for session in run] + [list(core50.TEST)] for run in RUNS]
    lup = {"ni": [[[i for i, p in enumerate(paths) if p.split("/")[0] in held] for held in run] for run in batches]}
    labels = {"ni": [[[int(paths[i].split("/")[1][1:]) - 1 for i in batch] for batch in run] for run in lup["ni"]]}
    arrays = {"ni": [[np.array(batch, dtype=np.int64) for batch in run] for run in lup["ni"]]}
    for name, content in (("paths", paths), ("LUP", arrays), ("labels", labels)):
        yield f"core50_128x128/{name}.pkl", pickle.dumps(content, protocol=2)


def _pacs(_: Benchmark, per_class: int, most: int) -> Iterator[Entry]:
    for place, domain in enumerate(pacs.DOMAINS):
        lines: dict[str, list[str]] = {"train": [], "crossval": []}
        for label, name in enumerate(pacs.CLASSES[:most]):
            for number in range(1, per_class + 2):
                path = f"{domain}/{name}/pic_{number:03}.{'png' if domain == 'sketch' else 'jpg'}"
                lines["train" if number > 1 else "crossval"].append(f"{path} {label + 1}\n")
                yield f"kfold/{path}", (label, place)
        for side, each in lines.items():
            yield f"pacs_label/{domain}_{side}_kfold.txt", "".join(each).encode()
        yield f"pacs_label/{domain}_test_kfold.txt", "".join(line for each in lines.values() for line in each).encode()


def _folders(names: tuple[str, ...], pattern: str) -> Callable[[Benchmark, int, int], Iterator[Entry]]:
    """DOMAIN/CLASS/*, by a pattern with the domain, the class and a number in it."""

    def entries(benchmark: Benchmark, per_class: int, most: int) -> Iterator[Entry]:
        for place, domain in enumerate(benchmark.order):
            for label, name in enumerate(names[:most]):
                for number in range(1, 4 * per_class + 1):  # enough for both sides of a split by name
                    yield (
                        pattern.format(domain=domain.replace("Real_World", "Real World"), name=name, n=number),
                        (label, place),
                    )

    return entries


def _split(names: tuple[str, ...]) -> Callable[[Benchmark, int, int], Iterator[Entry]]:
    """DOMAIN/{train,test}/CLASS/*."""

    def entries(benchmark: Benchmark, per_class: int, most: int) -> Iterator[Entry]:
        for place, domain in enumerate(benchmark.order):
            for side in ("train", "test"):
                for label, name in enumerate(names[:most]):
                    for number in range(per_class if side == "train" else 1):
                        yield f"{domain}/{side}/{name}/{number:05}.png", (label, place)

    return entries


def _imagenet_r(_: Benchmark, per_class: int, most: int) -> Iterator[Entry]:
    classes = {
        "n01443537": "goldfish",
        "n02106662": "german_shepherd_dog",
        "n07753275": "pineapple",
        "n04552348": "warplane",
    }
    known = list(classes.items())[:most]
    for label, (code, _name) in enumerate(known):
        for place, style in enumerate(imagenet_r.STYLES):
            for number in range(5 * per_class):
                yield f"imagenet-r/{code}/{style}_{number}.jpg", (label, place)
    yield "imagenet-r/README.txt", "".join(f"{code} {name}\n" for code, name in known).encode()


DIGITS = tuple(map(str, range(10)))
OFFICE = (
    "back_pack",
    "bike",
    "calculator",
    "headphones",
    "keyboard",
    "laptop_computer",
    "monitor",
    "mouse",
    "mug",
    "projector",
)
SAMPLES: dict[str, Callable[[Benchmark, int, int], Iterator[Entry]]] = {
    "domainnet": _domainnet,
    "domainnet-fixed": _domainnet,
    "dn4il": _dn4il,
    "cddb-hard": _cddb,
    "cddb-easy": _cddb,
    "cddb-long": _cddb,
    "core50": _core50,
    "core50-categories": _core50,
    "pacs": _pacs,
    "office-home": _folders(("Alarm_Clock", "Backpack", "Batteries", "Bed"), "OfficeHome/{domain}/{name}/{n:05}.jpg"),
    "office-31": _folders(OFFICE, "{domain}/images/{name}/frame_{n:04}.jpg"),
    "office-caltech10": _folders(OFFICE, "office_caltech_10/{domain}/{name}/frame_{n:04}.jpg"),
    "vlcs": _folders(("bird", "car", "chair", "dog", "person"), "VLCS/{domain}/{name}/{n:06}.jpg"),
    "imagenet-r": _imagenet_r,
    "corruptions": _split(("bar", "box", "cross")),
    "rotated-digits": _split(DIGITS),
    "permuted-digits": _split(DIGITS),
}
