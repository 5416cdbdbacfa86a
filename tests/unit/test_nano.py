"""The backbone that ships is what its card says."""

from __future__ import annotations

import json
import re

import pytest
import torch
from pretrain.figures import embedded, probe, s_of
from pretrain.figures import pixels as pixels_of
from pretrain.ship import PACKAGE
from safetensors.torch import load_file

from bpg.backbones.catalogue import find
from bpg.backbones.weights import load_backbone, on_disk
from bpg.data.benchmarks.emoji import EMOJI, STYLES
from bpg.errors import WeightsNotFound
from tests.oracles import oracle

NAME = "bpg-vit-nano"
FIGURES = json.loads((PACKAGE / "figures.json").read_text(encoding="utf-8"))
CARD = (PACKAGE / "README.md").read_text(encoding="utf-8")


def test_it_is_there_without_a_hub_and_small() -> None:
    file = on_disk(find(NAME))
    assert file == PACKAGE / "model.safetensors"
    assert file.stat().st_size <= 8e6
    assert {tensor.dtype for tensor in load_file(file).values()} == {torch.float16}
    backbone = load_backbone(NAME)
    assert 2.5e6 < sum(parameter.numel() for parameter in backbone.parameters()) < 3.5e6
    with pytest.raises(WeightsNotFound, match="comes from nowhere else"):
        load_backbone(NAME, revision="main")


def test_timm_reads_the_file_and_sees_the_same() -> None:
    shape = {"img_size": 64, "patch_size": 8, "embed_dim": 192, "depth": 6, "num_heads": 3, "num_classes": 0}
    theirs = oracle("timm").models.VisionTransformer(**shape).eval()
    theirs.load_state_dict(load_file(PACKAGE / "model.safetensors"))
    images = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(theirs(images), load_backbone(NAME)(images), atol=1e-4)


def test_it_is_pretrained() -> None:
    trained, untrained = FIGURES["trained"], FIGURES["untrained"]
    assert trained["cifar10"] >= 75
    assert trained["emoji_mean"] >= untrained["emoji_mean"] + 15
    s_t = [s["corrected"] for s in trained["s_t"].values()]
    assert max(s_t) >= 1.2 * min(s_t)


def test_the_figures_are_of_these_weights() -> None:
    sides = EMOJI.find(None).domains["openmoji-black"]
    assert sides.train is not None
    assert sides.test is not None
    backbone = load_backbone(NAME)
    learned, held = (embedded(backbone, pixels_of(side)) for side in (sides.train, sides.test))
    classes, truth = (torch.tensor(side.labels) for side in (sides.train, sides.test))
    assert probe(learned, classes, held, truth) == pytest.approx(FIGURES["trained"]["emoji"]["openmoji-black"], abs=1.5)
    assert s_of(learned, classes) == pytest.approx(FIGURES["trained"]["s_t"]["openmoji-black"], rel=1e-3)


def test_card_and_catalogue_say_the_same() -> None:
    entry = find(NAME)
    assert entry.s_0 == pytest.approx(FIGURES["trained"]["s_0"][entry.s_0_estimator], abs=5e-4)
    for which in ("trained", "untrained"):
        row = [FIGURES[which]["cifar10"], FIGURES[which]["emoji_mean"], *(FIGURES[which]["emoji"][s] for s in STYLES)]
        assert " | ".join(f"{value:.1f}" for value in row) in CARD, which
    assert not re.search(r"@\w+@", CARD)
