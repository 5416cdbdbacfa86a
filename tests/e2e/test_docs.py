"""What the docs say to type works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

from tests.command import bpg
from tests.conftest import ROOT
from tests.oracles import oracle

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [(page, kind, text) for page in PAGES for kind, text in FENCE.findall(page.read_text(encoding="utf-8"))]
SCRIPTS = [
    (page.name, [line.split("#")[0].strip() for line in text.splitlines() if line.strip()])
    for page, kind, text in BLOCKS
    if kind == "sh"
]
COMMANDS = [command for _, commands in SCRIPTS for command in commands]


def in_its_suite(page: str, commands: list[str]) -> object:
    """The README's run of a whole config is checked each time, that of another page with the slow tests."""
    whole = page != "README.md" and any(command.startswith("bpg run ") for command in commands)
    return pytest.param(page, commands, marks=pytest.mark.slow if whole else ())


@pytest.fixture
def surroundings(tmp_path: Path) -> Path:
    """A folder with what the docs' examples ask for: weights by name, lists and folders of images, a small PACS."""
    state = oracle("timm").create_model("deit_tiny_patch16_224").state_dict()
    tensors = {key: tensor.contiguous() for key, tensor in state.items()}
    save_file(tensors, tmp_path / "deit_tiny_patch16_224.safetensors")
    for index, name in enumerate(("cat", "dog", "cat", "dog")):
        noise(tmp_path / name / f"{index}.png", index)
        noise(tmp_path / "inbox" / f"{index}.png", index)
        for domain in ("photo", "sketch"):
            for more in range(2):
                noise(tmp_path / "data" / domain / name / f"{index}-{more}.png", 10 * index + more)
    for domain in ("art_painting", "cartoon", "photo", "sketch"):
        for label, name in enumerate(("dog", "elephant")):
            for index in range(3):
                noise(tmp_path / "pacs" / domain / name / f"{index}.png", 10 * label + index)
        for part, numbers in (("train", (0, 1)), ("test", (2,))):
            lines = [f"{domain}/{name}/{i}.png {c}" for c, name in enumerate(("dog", "elephant")) for i in numbers]
            (tmp_path / "pacs" / f"{domain}_{part}.txt").write_text("\n".join(lines))
    for name in ("photos.txt", "sketches.txt"):
        (tmp_path / name).write_text("cat/0.png 0\ndog/1.png 1\ncat/2.png 0\ndog/3.png 1\n")
    return tmp_path


def noise(file: Path, seed: int) -> None:
    """A noisy picture, dark or bright by its class."""
    file.parent.mkdir(parents=True, exist_ok=True)
    dark = file.parent.name in ("cat", "elephant")
    pixels = np.random.default_rng(seed).integers(0, 60, (60, 80, 3)) + (0 if dark else 190)
    Image.fromarray(pixels.astype(np.uint8)).save(file)


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"BPG_WEIGHTS": str(folder), "BPG_DATA": str(folder)}
    return subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("page", "commands"), [in_its_suite(*row) for row in SCRIPTS if row[1][0].startswith("bpg ")])
def test_the_commands_of_the_docs_run_one_after_another(page: str, commands: list[str], surroundings: Path) -> None:
    for command in commands:
        words = shlex.split(command)
        found = bpg(*words[1:], cwd=surroundings, BPG_WEIGHTS=str(surroundings), BPG_DATA=str(surroundings))
        assert found.returncode == 0, f"{page}: {command}\n{found.stderr}"


def test_every_make_target_of_the_docs_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {command.split()[1] for command in COMMANDS if command.startswith("make ")}
    assert {"demo", "test"} <= named <= targets
    others = [command for command in COMMANDS if not command.startswith(("make ", "bpg "))]
    assert others == []


@pytest.mark.parametrize(("page", "text"), [(page.name, text) for page, kind, text in BLOCKS if kind == "python"])
def test_python_of_the_docs_runs(page: str, text: str, surroundings: Path) -> None:
    found = run([sys.executable, "-c", text], surroundings)
    assert found.returncode == 0, f"{page}:\n{found.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_the_docs_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
