"""Emoji: the same things drawn in six styles, 64 pixels, twelve classes. Ships with the package.

Every emoji is on one side, training or test, in all styles. `tools/emoji.py` makes the images from public packages.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path

from bpg.data.benchmark import Benchmark
from bpg.data.folder import read_split

SHIPPED = Path(str(files("bpg").joinpath("shipped", "emoji")))
STYLES = ("google", "twitter", "fluent-3d", "fluent-flat", "openmoji", "openmoji-black")
UNSEEN = ("fluent-flat", "openmoji", "openmoji-black")
LICENCE = "Apache-2.0 (google), CC-BY-4.0 (twitter), MIT (fluent), CC-BY-SA-4.0 (openmoji)"

CREDIT = (
    "The emoji are by Google (Noto Emoji, Apache-2.0), by Twitter and other contributors (Twemoji, CC-BY-4.0), by "
    "Microsoft (Fluent Emoji, MIT) and by the OpenMoji project (CC-BY-SA-4.0), reduced to 64 pixels."
)


EMOJI = Benchmark(
    name="emoji",
    title="the same things drawn in six styles",
    licence=LICENCE,
    source="ships with bpg",
    read=partial(read_split, names=STYLES),
    order=STYLES,
    shipped=SHIPPED,
    credit=CREDIT,
    published=lambda: json.loads((SHIPPED / "manifest.json").read_text(encoding="utf-8"))["sets"],
)
UNSEEN_STYLES = replace(
    EMOJI,
    name="emoji-unseen",
    title="emoji, tested only on styles that are never learned",
    order=tuple(style for style in STYLES if style not in UNSEEN),
    unseen=UNSEEN,
)
