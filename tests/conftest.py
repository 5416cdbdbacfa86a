"""What the tests share: a cache of their own, small backbones, and the real data where it is there."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from bpg.backbones.backbone import Backbone
from bpg.backbones.vit import ViT, ViTConfig
from bpg.data.transforms import Preprocessing

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores: the threads of each would only wait
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("BPG_SHARED", ROOT.parent / "shared"))


@pytest.fixture(scope="session", autouse=True)
def no_user_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What fixtures of a module or of the session make is kept apart from the user's caches, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BPG_CACHE", str(tmp_path_factory.mktemp("bpg-cache")))
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hub-cache")))
        yield


@pytest.fixture(autouse=True)
def own_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's caches, or asks the hub."""
    monkeypatch.setenv("BPG_CACHE", str(tmp_path / "bpg-cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub-cache"))
    monkeypatch.delenv("BPG_WEIGHTS", raising=False)


@pytest.fixture(autouse=True)
def same_randomness() -> Iterator[None]:
    """Each test begins with the same random state, and leaves the thread count as it was."""
    threads = torch.get_num_threads()
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Gives a folder by its name; the first worker that asks for it makes what is in it, the others find it."""
    here = tmp_path_factory.getbasetemp()
    place = here.parent if "PYTEST_XDIST_WORKER" in os.environ else here  # each worker has a folder of its own there

    def folder(name: str, make: Callable[[Path], object]) -> Path:
        made, ready = place / name, place / f"{name}.ready"
        with (place / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not ready.exists():
                shutil.rmtree(made, ignore_errors=True)
                made.mkdir()
                make(made)
                ready.touch()
        return made

    return folder


def shaken(module: torch.nn.Module, *, seed: int = 0, scale: float = 0.05) -> torch.nn.Module:
    """`module` with noise on every parameter, so that none is zero or one by initialisation."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return module


def small_config(**changes: object) -> ViTConfig:
    """A ViT that a test can afford."""
    values = {"image_size": 32, "patch_size": 8, "width": 64, "depth": 3, "heads": 4, "hidden": 128}
    return ViTConfig(**(values | changes))


@pytest.fixture
def small() -> Backbone:
    """A small backbone with random weights."""
    config = small_config()
    return Backbone(shaken(ViT(config)), Preprocessing(size=config.image_size), name="small")


@pytest.fixture
def images() -> torch.Tensor:
    """Five images for the small backbone."""
    return torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="session")
def deit_tiny_file() -> Path:
    file = SHARED / "weights" / "deit_tiny_patch16_224.safetensors"
    if not file.is_file():
        pytest.skip(f"needs the real DeiT-Tiny weights at {file}; set BPG_SHARED to their folder's parent")
    return file


@pytest.fixture(scope="session")
def pacs() -> Path:
    folder = SHARED / "data" / "pacs"
    if not folder.is_dir():
        pytest.skip(f"needs the PACS images at {folder}; set BPG_SHARED to their folder's parent")
    return folder


@pytest.fixture(scope="session")
def domainnet_names() -> list[str]:
    file = SHARED / "data" / "lists" / "domainnet" / "class_index.txt"
    if not file.is_file():
        pytest.skip(f"needs DomainNet's class names at {file}; set BPG_SHARED to their folder's parent")
    return [line.split()[-1] for line in file.read_text().splitlines() if line.strip()]
