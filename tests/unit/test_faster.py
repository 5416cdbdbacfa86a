"""Backbones in 8 bits or as a graph: (nearly) the same answers, whoever is in the batch, no second set of weights."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from bpg.backbones.faster import Arithmetic, GraphBlock, faster
from bpg.backbones.tuning import PLAIN, Prefix, Tuning
from bpg.backbones.vit import Block
from bpg.engine import run_experts
from bpg.errors import DeviceError
from tests.toy import toy_backbone
from tests.unit.test_engine import expert


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
    assert_close(small(loud)[:5], small(images), rtol=1e-4, atol=1e-4)
    assert_close(small(images[2:3]), small(images)[2:3], rtol=1e-4, atol=1e-4)


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


@pytest.mark.parametrize("arithmetic", ["8-bit", "graph"])
def test_a_gpu_has_better_ways(arithmetic: Arithmetic, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = toy_backbone()
    monkeypatch.setattr(type(backbone), "device", torch.device("cuda"))
    with pytest.raises(DeviceError, match=r"wanted a backbone on cpu, came cuda.*half for GPUs"):
        faster(backbone, arithmetic)


OTHER_SHAPE = {"activation": "quick_gelu", "layer_scale": True, "registers": 2, "pre_norm": True, "projection": 24}


@pytest.mark.parametrize("shape", [{}, OTHER_SHAPE])
@torch.no_grad()
def test_a_graph_answers_as_the_backbone_does_for_any_batch_and_any_prompts(shape: dict[str, object]) -> None:
    backbone = toy_backbone(**shape)
    graph, width = faster(backbone, "graph"), backbone.width
    adapter = torch.nn.Linear(width, width)
    for count in (1, 4, 2, 0):
        images = torch.randn(count, 3, 32, 32)
        assert_close(graph(images), backbone(images))
        for prompts in (1, 5):
            tuning = Tuning(tokens=torch.randn(prompts, width), branch={0: {"mlp": adapter}, 2: {"mlp": adapter}})
            assert_close(graph(images, tuning), backbone(images, tuning))
            assert_close(graph.finish(graph.start(images), tuning), backbone(images, tuning))


@torch.no_grad()
def test_whatever_acts_on_a_block_acts_on_its_graph() -> None:
    backbone = toy_backbone()
    graph, width = faster(backbone, "graph"), backbone.width
    images, part = torch.randn(3, 3, 32, 32), torch.nn.Linear(width, width)
    prefix = Prefix(torch.randn(2, width), torch.randn(2, width), projected=False)
    for tuning in (
        Tuning(prefix={0: prefix}),
        Tuning(delta={1: {"q": part, "v": part}}),
        *(Tuning(branch={2: {"mlp": part, place: part}}) for place in ("attention", "residual", "block")),
        Tuning(tokens=torch.randn(2, width), readout="tokens"),
        Tuning(readout="all"),
    ):
        assert_close(graph.finish(graph.start(images), tuning), backbone(images, tuning))
    block, graphed = backbone.vit.blocks[0], graph.vit.blocks[0]
    tokens = torch.randn(2, 6, width)
    assert_close(graphed(tokens, causal=True), block(tokens, causal=True))


@pytest.mark.parametrize("count", [1, 6])
@torch.no_grad()
def test_experts_say_the_same_through_a_graph(count: int) -> None:
    backbone = toy_backbone()
    graph = faster(backbone, "graph")
    experts = [
        expert(backbone, 0, rank=2, prompts=0),
        expert(backbone, 1, rank=5, prompts=3),
        expert(backbone, 2, rank=3, parts="lora"),
        expert(backbone, 3, parts="none"),
    ]
    images, columns = torch.randn(count, 3, 32, 32), [torch.arange(3)] * len(experts)
    found = [
        run_experts(each, each.start(images), torch.ones(count, len(experts)), experts, columns=columns, classes=3)
        for each in (backbone, graph)
    ]
    assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_graph_needs_no_python_of_the_block_and_no_second_set_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = toy_backbone()
    graph = faster(backbone, "graph")
    images = torch.randn(2, 3, 32, 32)
    adapted = Tuning(branch={1: {"mlp": torch.nn.Linear(backbone.width, backbone.width)}})
    wanted = [backbone(images, tuning) for tuning in (PLAIN, adapted)]
    assert graph.digest() == backbone.digest()
    assert {id(tensor) for tensor in graph.parameters()} == {id(tensor) for tensor in backbone.parameters()}
    own = {tensor.data_ptr() for tensor in backbone.vit.blocks.parameters()}
    assert {pointer for block in graph.vit.blocks for pointer in constants(block)} == own
    assert_close(deepcopy(graph)(images), wanted[0])

    for half in ("attend", "feed", "_attention", "_mlp"):
        monkeypatch.delattr(Block, half)
    for tuning, exact in zip((PLAIN, adapted), wanted, strict=True):
        assert_close(graph(images, tuning), exact)
        assert_close(graph.finish(graph.start(images), tuning), exact)
    with pytest.raises(AttributeError, match="attend"):
        backbone(images)


def constants(block: GraphBlock) -> list[int]:
    """Where the tensors in a block's graphs lie in memory."""
    graphs = block._graphs
    nodes = [
        node
        for graph in (graphs.attend.graph, graphs.attend_class.graph, graphs.feed.graph)
        for node in graph.findAllNodes("prim::Constant")
        if node.hasAttribute("value") and node.kindOf("value") == "t"
    ]
    return [node.t("value").data_ptr() for node in nodes if node.t("value").ndim]
