"""The wheel builds, holds what it must, and works from where it is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.conftest import ROOT

NEEDED = {
    "bpg/py.typed",
    "bpg/backbones/catalogue.toml",
    "bpg/backbones/clip_merges.u16.gz",
    "bpg/backbones/clip_merges.LICENSE",
    "bpg/shipped/demo.toml",
    "bpg/shipped/bpg-vit-nano/model.safetensors",
    "bpg/shipped/bpg-vit-nano/README.md",
    "bpg/shipped/emoji/images.zip",
    "bpg/shipped/emoji/manifest.json",
    "bpg/shipped/emoji/README.md",
}


def test_the_wheel_builds_and_installs(tmp_path: Path) -> None:
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".venv*", ".git", "*cache*", "dist", "runs", "__pycache__")
    shutil.copytree(ROOT, source, ignore=ignored)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(source)]  # from the sdist
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("bpg_dil-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert names >= NEEDED
    assert not [name for name in names if name.startswith(("tests", "docs", "benchmarks", "tools", "pretrain"))]
    assert "License-Expression: Apache-2.0 AND MIT AND CC-BY-4.0 AND CC-BY-SA-4.0" in metadata
    assert len([name for name in names if ".dist-info/licenses/" in name]) == 6

    installed = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(installed), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    script = (
        f"import sys; sys.path.insert(0, {str(installed)!r}); import bpg;"
        "from bpg.backbones.tokenizer import tokenize; from bpg.backbones.catalogue import catalogue;"
        "from bpg.data.benchmarks.emoji import EMOJI; styles = EMOJI.find(None).domains;"
        "from bpg.data.benchmark import known_of; assert len(known_of('domainnet')['classes']) == 345;"
        "nano = bpg.load_backbone('bpg-vit-nano');"
        "print(bpg.__file__, len(catalogue()), int(tokenize(['dog'])[0, 1]), len(styles), nano.width)"
    )
    found = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    where, names_known, dog, styles, width = found.stdout.split()
    assert Path(where).is_relative_to(installed)
    assert (int(names_known) >= 30, dog, styles, width) == (True, "1929", "6", "192")
