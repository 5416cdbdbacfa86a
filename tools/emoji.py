"""Make the benchmark `emoji` from public packages, byte for byte.

    pip install -r tools/requirements.txt
    python -m tools.emoji WORK

Fetches six sets of emoji into the folder WORK, chooses the emoji that all of them draw, and writes 64-pixel images to
src/bpg/shipped/emoji/images.zip with a manifest beside it. Needs npm for the packages.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import zipfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import resvg_py
from numpy.typing import NDArray
from PIL import Image

from tools.packages import Package, members

SIZE = 64
TEST_SHARE = 0.25
SIDES = ("test", "train")
NEARLY = 6.0  # of 255, the root mean square difference at 32 pixels
OUT = Path(__file__).parents[1] / "src" / "bpg" / "shipped" / "emoji"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date a zip can say: every build says the same

GOOGLE = Package(
    "npm",
    "emoji-datasource-google",
    "16.0.0",
    "fb5fd131b362aab7a55542d2a147a79708cce0a8b1c1bbacd470172708b5c438",
)
TWITTER = Package(
    "npm",
    "emoji-datasource-twitter",
    "16.0.0",
    "f64a530c63bca463bd8317fdc4615ce63a53a0c65018e4ce2d848aaba7a28877",
)
FLUENT_3D = Package(
    "npm", "@lobehub/fluent-emoji-3d", "1.1.0", "c1bb7eee7de090205a232518a9ab4adb3df458bfbe8a1f78232991194c8b2e58"
)
FLUENT_FLAT = Package(
    "npm", "@lobehub/fluent-emoji-flat", "1.1.0", "8f9113c027c7c20eced0070354715a4093a459b8bef6332b91d45f38c9bdb147"
)
OPENMOJI = Package("npm", "openmoji", "17.0.0", "55ee7d13485dec86e9f38c1f3a645a13382d33ff97c0cd845ee824b0aef45e68")

# The domains: which package draws them, and where in it.
STYLES: dict[str, tuple[Package, str]] = {
    "google": (GOOGLE, "package/img/google/64/"),
    "twitter": (TWITTER, "package/img/twitter/64/"),
    "fluent-3d": (FLUENT_3D, "package/assets/"),
    "fluent-flat": (FLUENT_FLAT, "package/assets/"),
    "openmoji": (OPENMOJI, "package/color/svg/"),
    "openmoji-black": (OPENMOJI, "package/black/svg/"),
}

# The classes, by Unicode's subcategories. Left out: flags (OpenMoji's black ones are empty frames); clocks, hearts,
# squares and circles, keycaps and letters, arrows and buttons, signs of the zodiac, which differ from each other by a
# colour, a turn or a line alone, so that whoever saw the training side knows the test side; the heads of cats and
# monkeys, which are faces and animals; and what has no look in common (activities, tools, office, household).
CLASSES: dict[str, tuple[str, ...]] = {
    "animal": (
        "animal-amphibian", "animal-bird", "animal-bug", "animal-mammal", "animal-marine", "animal-reptile",
    ),
    "body": (
        "body-parts", "hand-fingers-closed", "hand-fingers-open", "hand-fingers-partial", "hand-prop",
        "hand-single-finger", "hands",
    ),
    "clothing": ("clothing",),
    "device": ("computer", "light & video", "musical-instrument", "phone", "sound"),
    "face": (
        "face-affection", "face-concerned", "face-costume", "face-glasses", "face-hand", "face-hat",
        "face-negative", "face-neutral-skeptical", "face-sleepy", "face-smiling", "face-tongue", "face-unwell",
    ),
    "food": ("dishware", "drink", "food-asian", "food-prepared", "food-sweet"),
    "person": (
        "person", "person-activity", "person-fantasy", "person-gesture", "person-resting", "person-role",
        "person-sport",
    ),
    "place": ("place-building", "place-geographic", "place-other", "place-religious"),
    "plant": ("food-fruit", "food-vegetable", "plant-flower", "plant-other"),
    "sign": ("other-symbol", "religion", "transport-sign", "warning"),
    "sky": ("sky & weather",),
    "vehicle": ("transport-air", "transport-ground", "transport-water"),
}  # fmt: skip

PERSON, PEOPLE = "1f9d1", ("1f468", "1f469", "1f9d1")  # whoever; a man, a woman, whoever
SIGNS = {"fe0f", "200d"}  # how to draw it, and with what
SIGNS |= {"2640", "2642", "27a1", "1f3fb", "1f3fc", "1f3fd", "1f3fe", "1f3ff"}  # gender, direction, skin
SIGNS |= {"1f9b0", "1f9b1", "1f9b2", "1f9b3"}  # hair
# One thing under several codes: as a person, a man or a woman; turned or mirrored; or drawn nearly alike by a set.
SAME = (
    ("1f9d2", "1f466", "1f467"),
    ("1f9d3", "1f474", "1f475"),
    ("1fac5", "1f934", "1f478"),
    ("1f385", "1f936", "1f9d1-1f384"),
    ("1f57a", "1f483"),
    ("1f930", "1fac3", "1fac4"),
    ("1f46b", "1f46c", "1f46d", "1f9d1-1f91d-1f9d1"),
    ("1f426", "1f426-2b1b"),
    ("1f601", "1f604"),
    ("1f694", "1f696"),
    ("1f91b", "1f91c"),
    ("1faf7", "1faf8"),
    ("1faf3", "1faf4", "1faf1", "1faf2"),
    ("1f446", "1f447", "1f448", "1f449", "261d"),
    ("1f311", "1f312", "1f313", "1f314", "1f315", "1f316", "1f317", "1f318"),
    ("1f642", "1f643"),
    ("2603", "26c4"),
    ("1f47f", "1f608"),
    ("1f6b9", "1f6ba", "1f6bb"),
)


def family(code: str) -> str:
    """What an emoji shows, whatever the skin, the gender and the direction."""
    parts = [PERSON if part in PEOPLE else part for part in code.lower().split("-") if part not in SIGNS]
    plain = "-".join(parts)
    return next((group[0] for group in SAME if plain in group), plain)


def plain(code: str) -> str:
    """A code as all sets can be asked for it: they differ in leading zeros, case and variation selectors."""
    return "-".join(part.lstrip("0") for part in code.lower().split("-") if part != "fe0f")


def choose(records: list[Mapping[str, Any]], drawn: Mapping[str, Mapping[str, bytes]]) -> dict[str, dict[str, str]]:
    """Class -> code -> side, of one emoji a family that all sets draw."""
    classes = {sub: name for name, subs in CLASSES.items() for sub in subs}
    families: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        code = plain(record["unified"])
        if record["subcategory"] in classes and all(code in pictures for pictures in drawn.values()):
            families[classes[record["subcategory"]]][family(code)].append(code)
    chosen: dict[str, dict[str, str]] = {}
    for name, of_class in sorted(families.items()):
        order = sorted(of_class, key=lambda key: hashlib.sha256(f"{name}/{key}".encode()).hexdigest())
        tested = set(order[: round(TEST_SHARE * len(order))])
        chosen[name] = {
            _plainest(key, codes): "test" if key in tested else "train" for key, codes in sorted(of_class.items())
        }
    return chosen


def _plainest(key: str, codes: list[str]) -> str:
    return min(codes, key=lambda code: (code != key, len(code.split("-")), PERSON not in code, code))


def picture(encoded: bytes, suffix: str) -> Image.Image:
    """An emoji on white, 64 pixels wide and high."""
    if suffix == ".svg":
        encoded = resvg_py.svg_to_bytes(svg_string=encoded.decode(), width=SIZE, height=SIZE, skip_system_fonts=True)
    with Image.open(io.BytesIO(encoded)) as opened:
        drawn = opened.convert("RGBA")
    if drawn.size != (SIZE, SIZE):
        drawn = drawn.resize((SIZE, SIZE), Image.Resampling.LANCZOS)
    page = Image.new("RGBA", drawn.size, "white")
    page.alpha_composite(drawn)
    return page.convert("RGB")


def encode(image: Image.Image) -> bytes:
    """WebP without loss."""
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", lossless=True, quality=75, method=4)
    return buffer.getvalue()


def build(work: Path, out: Path) -> dict[str, Any]:
    """Write images.zip and manifest.json to `out`; the manifest."""
    drawn: dict[str, dict[str, bytes]] = {}
    suffixes = {}
    for style, (package, prefix) in STYLES.items():
        files = members(package.fetch(work), [prefix])
        drawn[style] = {plain(Path(name).stem): encoded for name, encoded in files.items()}
        (suffixes[style],) = {Path(name).suffix for name in files}
    records = json.loads(members(GOOGLE.fetch(work), ["package/emoji.json"])["package/emoji.json"])
    sides: dict[tuple[str, str], dict[str, Image.Image]] = {(style, side): {} for style in drawn for side in SIDES}
    for name, codes in choose(records, drawn).items():
        for code, side in codes.items():
            for style, pictures in drawn.items():
                sides[style, side][f"{name}/{code}.webp"] = picture(pictures[code], suffixes[style])
    check(sides)
    manifest: dict[str, Any] = {"packages": {s: f"{p.name} {p.version}" for s, (p, _) in STYLES.items()}, "sets": {}}
    out.mkdir(parents=True, exist_ok=True)
    part = out / ".images.part"
    with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        for (style, side), images in sides.items():
            digest = hashlib.sha256()
            for file, image in sorted(images.items()):  # the order in which a reader sorts them, for the digest's sake
                encoded = encode(image)
                archive.writestr(zipfile.ZipInfo(f"{style}/{side}/{file}", EPOCH), encoded)
                digest.update(hashlib.sha256(encoded).digest() + file.split("/")[0].encode() + b"\0")
            counts = Counter(file.split("/")[0] for file in sorted(images))
            manifest["sets"][f"{style}/{side}"] = {"classes": dict(counts), "sha256": digest.hexdigest()}
    part.replace(out / "images.zip")
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return manifest


def check(sides: Mapping[tuple[str, str], Mapping[str, Image.Image]]) -> None:
    """Stop at empty pictures, and at test pictures that the style's training side nearly has, turned or mirrored."""
    found = []
    for style in STYLES:
        small = {side: {file: _small(image) for file, image in sides[style, side].items()} for side in SIDES}
        found += [f"{style}/{f} is empty" for s in SIDES for f, p in small[s].items() if (p < 250).mean() < 0.01]
        learned = np.stack([pixels.reshape(-1) for pixels in small["train"].values()])
        for file, pixels in small["test"].items():
            ways = [np.rot90(way, turns) for way in (pixels, pixels[:, ::-1]) for turns in range(4)]
            for way in ways:
                apart = np.sqrt(((learned - way.reshape(-1)) ** 2).mean(axis=1))
                near = int(apart.argmin())
                if apart[near] < NEARLY:
                    found.append(f"{style}: {file} is nearly {list(small['train'])[near]} ({apart[near]:.1f})")
                    break
    if found:
        raise SystemExit("\n".join([*found, "Put them into one family, or leave their subcategory out."]))


def _small(image: Image.Image) -> NDArray[np.float32]:
    return np.asarray(image.resize((32, 32), Image.Resampling.BOX), dtype=np.float32)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="where the packages are kept")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args(arguments)
    manifest = build(given.work, given.out)
    for name, one in manifest["sets"].items():
        print(f"{name:22} {sum(one['classes'].values()):5}  {one['sha256'][:16]}")
    archive = given.out / "images.zip"
    print(
        f"{archive}: {archive.stat().st_size / 1e6:.1f} MB, sha256 {hashlib.sha256(archive.read_bytes()).hexdigest()}"
    )


if __name__ == "__main__":
    main()
