"""How long it takes to look at every file once, and to know where half a million of them lie."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from bpg.bench.findings import Found, Ratios, Row, Setting
from bpg.bench.learning import own_folder, photographs
from bpg.bench.timing import take_turns
from bpg.data.benchmark import known_of
from bpg.data.check import check
from bpg.data.decode import decode
from bpg.data.images import ImageSet
from bpg.data.pack import pack
from bpg.data.places import Place

AT_MOST = 1.25  # of bare decoding: 0.8 of its rate
IMAGES = 2000
# What a process of its own measures: seconds to read DomainNet's lists, and the memory it takes after that, in MB.
INDEX = """
import json, os, sys, time
from pathlib import Path
from bpg.registry import DATASETS
benchmark = DATASETS["domainnet"]
resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
before = resident()
began = time.perf_counter()
found = benchmark.find(Path(sys.argv[1]))
seconds = time.perf_counter() - began
count = sum(len(side) for both in found.domains.values() for side in (both.train, both.test))
print(json.dumps({"images": count, "seconds": seconds, "megabytes": resident() - before}))
"""


def files(setting: Setting) -> Found:
    """Reading every image once, and DomainNet's lists at their full length."""
    with own_folder() as work:
        camera = photographs(work / "camera", (640, 480), IMAGES // 4)
        rows = [_checked("JPEG of 640 x 480 pixels", camera, setting.times())]
        for name, size, kind in (("JPEG of 227 pixels", (227, 227), "jpg"), ("PNG of 128 pixels", (128, 128), "png")):
            images = photographs(work / kind / "photo", size, IMAGES, kind=kind)
            rows.append(_checked(name, images, setting.times()))
            for form in ("zip", "shards"):
                pack(work / kind, work / f"{kind}-{form}", kind=form)
                place = Place.open(work / f"{kind}-{form}")
                packed = replace(images, paths=tuple(place.file(f"photo/{path.name}") for path in images.paths))
                rows.append(_checked(f"{name}, in {form}", packed, setting.times()))
        plain, zipped = _index(work / "lists", packed=False), _index(work / "lists-zip", packed=True)
    notes = [
        f"The lists of DomainNet at their full length, {found['images']:,} images{where}: read in "
        f"{found['seconds']:.1f} s, {found['megabytes']:.0f} MB of memory."
        for found, where in ((plain, ""), (zipped, " in six zip archives"))
    ]
    title = "Each image read, decoded and hashed once, over bare decoding of bytes in memory on as many threads"
    return Found([Ratios(title, rows)], notes=notes)


def _checked(name: str, images: ImageSet, rounds: int) -> Row:
    encoded = [images.encoded(index) for index in range(len(images))]
    threads = torch.get_num_threads()

    def bare() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda start: [decode(file, where="") for file in encoded[start::threads]], range(threads)))

    def ours() -> None:
        with tempfile.TemporaryDirectory() as new:  # nothing is remembered
            os.environ["BPG_CACHE"] = new
            check(images, strict=True)

    taken = take_turns({"bare": bare, "ours": ours}, rounds)
    ratio = taken["ours"].over(taken["bare"])
    return Row(name, {"over bare": ratio}, {"over bare": AT_MOST}, taken["ours"].seconds, None, rounds)


def _index(folder: Path, *, packed: bool) -> dict[str, float]:
    """Lists as long as the official ones, and archives with as many (empty) files if `packed`."""
    folder.mkdir(parents=True)
    known = known_of("domainnet")
    for domain in sorted({name.split("/")[0] for name in known["sets"]}):
        paths = []
        for side in ("train", "test"):
            count, classes = known["sets"][f"{domain}/{side}"]["images"], known["classes"]
            lines = [
                (f"{domain}/{classes[n % 345]}/{domain}_{n % 345:03}_{side[1]}{n:06}.jpg", n % 345)
                for n in range(count)
            ]
            (folder / f"{domain}_{side}.txt").write_text("".join(f"{path} {label}\n" for path, label in lines))
            paths += [path for path, _ in lines]
        if packed:
            with zipfile.ZipFile(folder / f"{domain}.zip", "w") as archive:
                for path in paths:
                    archive.writestr(path, b"")
    done = subprocess.run([sys.executable, "-c", INDEX, str(folder)], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found
