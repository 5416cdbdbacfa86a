"""The engine says what the plain loop over experts says, for experts of every kind, whoever is in the batch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from bpg import engine
from bpg.backbones.backbone import Backbone
from bpg.backbones.tuning import PLAIN, Prefix, Tuning, TuningOf
from bpg.backbones.vit import ViT
from bpg.engine import Specialist, run_experts
from bpg.experts.expert import Expert, ExpertSettings
from tests.conftest import shaken, small_config
from tests.toy import toy_backbone
from tests.unit.test_bpg import small_clip

CLASSES = ("bar", "box", "cross")


@dataclass
class Custom:
    """An expert of any tuning; its logits are the first numbers of the feature."""

    acts: Tuning | TuningOf

    def tuning(self) -> Tuning | TuningOf:
        return self.acts

    def classify(self, features: Tensor, backbone: Backbone) -> Tensor:
        del backbone
        return features.flatten(1)[:, :3]


def expert(backbone: Backbone, seed: int, rank: int = 4, **settings: object) -> Specialist:
    generator = torch.Generator().manual_seed(seed)
    made = Expert(backbone, CLASSES, rank=rank, settings=ExpertSettings(**settings), generator=generator)
    return shaken(made).eval().requires_grad_(False)


def plain_loop(backbone: Backbone, images: Tensor, experts: list[Specialist]) -> Tensor:
    return torch.stack([each.classify(backbone(images, each.tuning()), backbone).double() for each in experts], dim=1)


def check(backbone: Backbone, experts: list[Specialist], monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(engine, "_chunk_size", lambda *_: chunk)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(7, 3, 32, 32, generator=generator)
    weights = torch.rand(7, len(experts), generator=generator) * (
        torch.rand(7, len(experts), generator=generator) < 0.6
    )
    weights[0] = 0
    columns = [torch.tensor([0, 1, 2]) for _ in experts]
    with torch.no_grad():
        tokens = backbone.start(images)
        wanted = plain_loop(backbone, images, experts) * (weights > 0)[:, :, None]
        for query in (None, backbone(images)):
            found = run_experts(backbone, tokens, weights, experts, columns=columns, classes=3, query=query)
            assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_ranks_lora_prompts_and_plain_side_by_side(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = toy_backbone()
    experts = [
        expert(backbone, 0, rank=2),
        expert(backbone, 1, rank=7),
        expert(backbone, 2, rank=3, prompts=4),
        expert(backbone, 3, parts="lora", rank=3, lora_maps=("q", "k", "v", "proj", "fc1", "fc2")),
        expert(backbone, 4, parts="none"),
        expert(backbone, 5, prompts=0),
        Custom(PLAIN),
    ]
    check(backbone, experts, monkeypatch, chunk)


@pytest.mark.parametrize("chunk", [2, 100])
def test_prefixes_read_outs_and_prompts_of_an_image(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = toy_backbone()
    d = backbone.width
    few, more, other = torch.randn(3, 2, d, generator=torch.Generator().manual_seed(0))

    def asked(query: Tensor) -> Tuning:
        return Tuning(tokens=query[:, None, :] * few)

    experts = [
        Custom(Tuning(prefix={0: Prefix(few, more, projected=True)})),
        Custom(Tuning(prefix={0: Prefix(other, more, projected=True)})),
        Custom(Tuning(prefix={1: Prefix(few, more, projected=False)}, delta={1: {"k": torch.tanh}})),
        Custom(Tuning(prefix={1: Prefix(other, few, projected=False)})),
        Custom(Tuning(tokens=few, readout="tokens")),
        Custom(Tuning(tokens=more, readout="tokens", final=torch.sin)),
        Custom(Tuning(tokens=more, readout="all")),
        Custom(Tuning(branch={0: {"attention": torch.sin, "block": torch.cos}, 1: {"residual": torch.sin}})),
        Custom(asked),
        Custom(lambda query: Tuning(prefix={0: Prefix(query[:, None] * few, query[:, None] * more, projected=True)})),
    ]
    check(backbone, experts, monkeypatch, chunk)


def test_clip_and_its_text_features_once(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = small_clip()
    experts = [expert(backbone, 0, head="text"), expert(backbone, 1, head="text", context=2), expert(backbone, 2)]
    check(backbone, experts, monkeypatch, 2)
    asked = []
    monkeypatch.setattr(Backbone, "class_features", lambda *_, **__: asked.append(1))
    check(backbone, experts, monkeypatch, 2)
    assert not asked


def test_registers_and_layer_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    vit = shaken(ViT(small_config(registers=2, layer_scale=True, prefix_positions=False)))
    backbone = Backbone(vit, toy_backbone().preprocessing, name="other")
    check(backbone, [expert(backbone, 0), expert(backbone, 1, rank=2)], monkeypatch, 3)


def test_who_is_not_asked_does_not_run() -> None:
    backbone = toy_backbone()

    def refuse(_: Tensor) -> Tuning:
        raise AssertionError

    images = torch.randn(2, 3, 32, 32)
    weights = torch.tensor([[1.0, 0.0], [0.5, 0.0]])
    experts = [expert(backbone, 0), Custom(refuse)]
    columns = [torch.tensor([0, 1, 2])] * 2
    found = run_experts(backbone, backbone.start(images), weights, experts, columns=columns, classes=4)
    assert found[:, 1].eq(0).all()
    assert found[:, 0, 3].eq(0).all()


def test_experts_of_the_plain_feature_share_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = toy_backbone()
    passes: list[int] = []
    finish = backbone.vit.finish

    def counted(tokens: Tensor, *more: object) -> Tensor:
        passes.append(len(tokens))
        return finish(tokens, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(backbone.vit, "finish", counted)
    experts: list[Specialist] = [Custom(PLAIN)] * 3
    columns = [torch.arange(3)] * 3
    with torch.no_grad():
        run_experts(
            backbone, backbone.start(torch.zeros(4, 3, 32, 32)), torch.ones(4, 3), experts, columns=columns, classes=3
        )
    assert passes == [4]
