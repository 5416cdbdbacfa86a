"""A backbone with weights of 8 bits: nearly the same answers, whoever is in the batch, and no second set of weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from bpg.backbones.faster import faster
from bpg.backbones.tuning import Prefix, Tuning
from bpg.errors import DeviceError
from tests.toy import toy_backbone


def test_features_are_nearly_the_same() -> None:
    backbone = toy_backbone()
    small = faster(backbone, "8-bit")
    images = torch.randn(6, 3, 32, 32)
    exact, rounded = backbone(images), small(images)
    assert F.cosine_similarity(exact, rounded).min() > 0.99
    assert not torch.equal(exact, rounded)
    assert small.digest() == backbone.digest()
    assert {id(tensor) for tensor in small.parameters()} == {id(tensor) for tensor in backbone.parameters()}


def test_no_answer_depends_on_batch_mates() -> None:
    small = faster(toy_backbone(), "8-bit")
    images = torch.randn(5, 3, 32, 32)
    loud = torch.cat([images, 100 * torch.randn(3, 3, 32, 32)])
    torch.testing.assert_close(small(loud)[:5], small(images), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(small(images[2:3]), small(images)[2:3], rtol=1e-4, atol=1e-4)


def test_an_empty_batch_and_a_backbone_of_lower_precision() -> None:
    backbone = toy_backbone()
    assert faster(backbone, "8-bit")(torch.zeros(0, 3, 32, 32)).shape == (0, backbone.width)
    backbone.precision = "bfloat16"
    assert faster(backbone, "8-bit")(torch.randn(2, 3, 32, 32)).isfinite().all()


def test_what_an_expert_does_acts_here_too() -> None:
    backbone = toy_backbone()
    small, width = faster(backbone, "8-bit"), backbone.width
    images = torch.randn(4, 3, 32, 32)
    prefix = Prefix(torch.randn(2, width), torch.randn(2, width), projected=False)
    tuning = Tuning(
        tokens=torch.randn(3, width), prefix={0: prefix}, branch={1: {"mlp": torch.nn.Linear(width, width)}}
    )
    with torch.no_grad():
        exact, rounded = backbone(images, tuning), small.finish(small.start(images), tuning)
    assert F.cosine_similarity(exact, rounded).min() > 0.99


def test_a_gpu_has_better_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = toy_backbone()
    monkeypatch.setattr(type(backbone), "device", torch.device("cuda"))
    with pytest.raises(DeviceError, match=r"wanted a backbone on cpu, came cuda.*half for GPUs"):
        faster(backbone, "8-bit")
