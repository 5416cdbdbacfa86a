"""Names have one owner, and other packages bring their own through entry points."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bpg.errors import PluginError, UnknownName
from bpg.registry import METHODS, ROUTERS, Registry

PLUGIN = """
import torch
from bpg.backbones.backbone import Backbone
from bpg.data.benchmark import Benchmark
from bpg.data.folder import read_folder
from bpg.methods.bpg import BPG
from tests.toy import toy_backbone, toy_folder


class Mine(BPG):
    method = "mine"


def backbone() -> Backbone:
    return toy_backbone()


def read(root):
    toy_folder(root, count=6)
    return read_folder(root)


data = Benchmark("shapes", "drawn shapes", "CC0-1.0", "drawn when asked for", read, order=("red", "blue"))


def nearest_two(distance, spread):
    kept = distance <= distance.kthvalue(min(2, distance.shape[1]), dim=1, keepdim=True).values
    return kept.double() / kept.sum(dim=1, keepdim=True)


def spreadless(distance):
    return torch.softmax(-distance, dim=1)
"""
METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: bpg-plugin\nVersion: 1.0\n",
    "entry_points.txt": """[bpg.methods]
mine = bpg_plugin:Mine
broken = bpg_plugin_that_is_gone:Nothing

[bpg.backbones]
tiny = bpg_plugin:backbone

[bpg.datasets]
shapes = bpg_plugin:data

[bpg.routers]
nearest_two = bpg_plugin:nearest_two
spreadless = bpg_plugin:spreadless
""",
}
USE = """
import sys
from pathlib import Path
import bpg
from bpg.errors import PluginError
from bpg.methods.parts.ways import Way
from bpg.registry import BACKBONES, DATASETS, METHODS, ROUTERS
assert {"mine", "bpg", "broken"} <= set(METHODS), list(METHODS)
shapes = DATASETS["shapes"]
stream = shapes.stream(shapes.read(Path(sys.argv[1]) / "shapes"))
backbone = bpg.load_backbone("tiny")
fast = {"epochs": 1, "batch_size": 8}
model = METHODS["mine"](backbone, rank=2, optimisation=fast, router="nearest_two")
for domain in stream.domains:
    model.learn(domain)
images = backbone.prepare(__import__("torch").zeros(3, 40, 40, dtype=__import__("torch").uint8))[None]
found = model.forward(images)
assert found.experts.tolist() == [2], found
for use in (
    lambda: METHODS["broken"],
    lambda: METHODS["mine"](backbone, rank=2, router="spreadless"),
    lambda: model.compare(images, [Way("spreadless")]),
):
    try:
        use()
    except PluginError as error:
        print(error)
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A package with all four kinds of plug-in, as pip would have laid it out."""
    (tmp_path / "bpg_plugin.py").write_text(PLUGIN)
    info = tmp_path / "bpg_plugin-1.0.dist-info"
    info.mkdir()
    for name, content in METADATA.items():
        (info / name).write_text(content)
    return tmp_path


def test_a_plugin_of_each_kind_is_found_and_used(plugin: Path) -> None:
    root = Path(__file__).resolve().parent.parent.parent
    script = f"import sys; sys.path[:0] = [{str(plugin)!r}, {str(root)!r}]\n{USE}"
    found = subprocess.run([sys.executable, "-c", script, str(plugin)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "the method broken cannot be loaded" in found.stdout
    assert "bpg_plugin_that_is_gone" in found.stdout
    wanted = "the router spreadless cannot be called: wanted a function of (distance, spread), came too many positional"
    assert found.stdout.count(wanted) == 2  # when it is chosen, and when it is used


def test_two_owners_of_a_name_are_an_error(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(plugin))
    clashing = Registry("method", "bpg.methods", {"mine": "bpg.methods.bpg:BPG"})
    with pytest.raises(PluginError, match="two packages bring a method called mine"):
        list(clashing)


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UnknownName, match="no method is called 'bgp'.*Did you mean bpg"):
        METHODS["bgp"]
    assert list(ROUTERS) == ["calibrated", "hard", "soft"]
    assert len(METHODS) == len(list(METHODS)) >= 4
