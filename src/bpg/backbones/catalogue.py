"""The backbones known by name: shape, pixels, licence, source, and reference separability where it was measured."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

from bpg.backbones.clip import TextConfig
from bpg.backbones.vit import ViTConfig
from bpg.config import parse, settings
from bpg.data.transforms import Preprocessing
from bpg.errors import WrongUse, unknown_name


@settings
class Entry:
    """A known backbone, before any file is touched."""

    name: str  # architecture.tag, or a hub repository
    vit: ViTConfig
    text: TextConfig | None
    preprocessing: Preprocessing
    hub: str  # repository; none for what ships with the package
    file: str  # in the repository
    licence: str  # SPDX, of the weights
    shipped: bool  # with the package itself
    s_0: float | None  # separability of the reference domain
    s_0_estimator: str  # plain or corrected for small samples: s_t must come from the same
    s_0_source: str

    @property
    def architecture(self) -> str:
        """The name without its tag."""
        return self.name.split(".")[0] if "/" not in self.name else self.name


@lru_cache(maxsize=1)
def catalogue() -> Mapping[str, Entry]:
    """Every known backbone by its full name."""
    table = tomllib.loads(files("bpg.backbones").joinpath("catalogue.toml").read_text(encoding="utf-8"))
    return {name: _entry(name, row, table) for name, row in table["names"].items()}


def find(name: str) -> Entry:
    """The entry of a full name, or of an architecture that has one set of weights only.

    >>> find("deit_tiny_patch16_224").name
    'deit_tiny_patch16_224.fb_in1k'
    """
    known = catalogue()
    if name in known:
        return known[name]
    tagged = [entry for entry in known.values() if entry.architecture == name]
    if len(tagged) == 1:
        return tagged[0]
    if tagged:
        raise WrongUse(
            f"{name} names several sets of weights",
            wanted="one of " + ", ".join(entry.name for entry in tagged),
            came=repr(name),
            remedy="Say which: they give different features.",
        )
    raise unknown_name("backbone", name, {*known, *(entry.architecture for entry in known.values())})


def _entry(name: str, row: dict[str, Any], table: dict[str, Any]) -> Entry:
    shared = {"activation": row.get("activation", "gelu")}
    vit = parse(ViTConfig, table["shape"][row["shape"]] | shared | row.get("vit", {}), where=name)
    text = parse(TextConfig, table["text"][row["text"]] | shared, where=name) if "text" in row else None
    pixels = parse(Preprocessing, table["pixels"][row["pixels"]] | {"size": vit.image_size}, where=name)
    return Entry(
        name=name,
        vit=vit,
        text=text,
        preprocessing=pixels,
        hub=row.get("hub", "" if row.get("shipped") else name if "/" in name else f"timm/{name}"),
        file=row.get("file", "model.safetensors"),
        licence=row.get("licence", "Apache-2.0"),
        shipped=row.get("shipped", False),
        s_0=row.get("s_0"),
        s_0_estimator=row.get("s_0_estimator", ""),
        s_0_source=row.get("s_0_source", ""),
    )
