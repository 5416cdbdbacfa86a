"""Backbones in 8 bits or as a graph: (nearly) the same answers, whoever is in the batch, no second set of weights."""

from __future__ import annotations

import gc
import weakref
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from bpg.backbones.backbone import FINISHED, Backbone, Probe
from bpg.backbones.faster import Arithmetic, faster
from bpg.backbones.tuning import PLAIN, Prefix, Tuning, TuningOf
from bpg.backbones.vit import ViT
from bpg.engine import Specialist, run_experts
from bpg.errors import DeviceError
from bpg.methods.parts.pool import ExpertPool, Member
from bpg.methods.parts.ways import ORACLE, Way
from bpg.prototypes import located
from bpg.routing import stops
from tests.toy import toy_backbone
from tests.unit.test_engine import CLASSES, Custom, expert


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


class Acting(nn.Module):
    """A frozen expert of any tuning; its logits are the first numbers of the feature."""

    def __init__(self, acts: Tuning | TuningOf) -> None:
        super().__init__()
        self.acts = acts

    def tuning(self) -> Tuning | TuningOf:
        return self.acts

    def classify(self, features: Tensor, backbone: Backbone) -> Tensor:
        return Custom(self.acts).classify(features, backbone)


def answers(backbone: Backbone, images: Tensor, experts: list[Specialist], query: Tensor | None = None) -> Tensor:
    """Logits (B, T, 3) of all experts on all images."""
    weights, columns = torch.ones(len(images), len(experts)), [torch.arange(3)] * len(experts)
    return run_experts(backbone, backbone.start(images), weights, experts, columns=columns, classes=3, query=query)


def graphs_of(backbone: Backbone, owner: object) -> dict[object, torch.jit.ScriptModule]:
    assert backbone.graphs is not None
    found: dict[object, torch.jit.ScriptModule] = backbone.graphs._graphs.get(owner, {})
    return found


def without_python(*_: object, **__: object) -> None:
    raise AssertionError("the ViT itself was asked")


@pytest.mark.parametrize("shape", [{}, OTHER_SHAPE])
@torch.no_grad()
def test_a_graph_finds_what_the_backbone_finds_in_any_number_of_images(shape: dict[str, object]) -> None:
    backbone = toy_backbone(**shape)
    graph = faster(backbone, "graph")
    behind = Probe(backbone.depth, "moments")
    for count in (1, 4, 2):
        images = torch.randn(count, 3, 32, 32)
        tokens = backbone.start(images)
        assert_close(graph.start(images), tokens)
        assert_close(graph.finish(tokens), backbone(images), rtol=1e-5, atol=1e-5)
        for probes in (*((stop,) for stop in stops(backbone.depth)), (FINISHED, behind), (behind, FINISHED), ()):
            for found, wanted in zip(graph.probed(tokens, probes), backbone.probed(tokens, probes), strict=True):
                assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert graph.finish(tokens[:0]).shape == (0, backbone.feature_width)


@pytest.mark.parametrize("shape", [{}, OTHER_SHAPE])
@torch.no_grad()
def test_experts_of_every_kind_say_the_same_through_graphs(shape: dict[str, object]) -> None:
    backbone = toy_backbone(**shape)
    graph, width = faster(backbone, "graph"), backbone.width
    part = nn.Linear(width, width).requires_grad_(False)
    own = [Prefix(torch.randn(2, width), torch.randn(2, width), projected=projected) for projected in (False, True)]
    experts: list[Specialist] = [
        expert(backbone, 0, rank=2, prompts=0),
        expert(backbone, 1, rank=5, prompts=3),
        expert(backbone, 2, rank=3, parts="lora", lora_maps=("q", "v", "fc2")),
        expert(backbone, 3, parts="none"),
        Acting(Tuning(prefix=dict(enumerate(own)), final=part)),
        Acting(Tuning(branch={1: {"attention": part, "residual": part, "block": part}})),
        Acting(Tuning(tokens=torch.randn(2, width), readout="tokens")),
        Acting(Tuning(readout="all")),
    ]
    for count in (1, 5, 2, 1):
        images = torch.randn(count, 3, 32, 32)
        assert_close(answers(graph, images, experts), answers(backbone, images, experts), rtol=1e-5, atol=1e-5)
    assert all(len(graphs_of(graph, each)) == 1 for each in experts)


@torch.no_grad()
def test_a_routed_answer_needs_no_python_of_the_vit_and_no_second_set_of_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backbone = toy_backbone()
    graph = faster(backbone, "graph")
    experts = [expert(backbone, 0), expert(backbone, 1, parts="lora")]
    images, probes = torch.randn(2, 3, 32, 32), (FINISHED,)
    wanted = backbone.probed(backbone.start(images), probes), answers(backbone, images, experts)
    graph.probed(graph.start(images), probes)
    answers(graph, images, experts)
    assert graph.digest() == backbone.digest()
    assert {id(tensor) for tensor in graph.parameters()} == {id(tensor) for tensor in backbone.parameters()}
    for owner in (graph, *experts):
        assert isinstance(owner, nn.Module)
        owned = {tensor.untyped_storage().data_ptr() for each in (owner, backbone) for tensor in each.parameters()}
        (traced,) = graphs_of(graph, owner).values()
        found = constants(traced)
        assert found <= owned
        assert {block.qkv.weight.untyped_storage().data_ptr() for block in backbone.vit.blocks} <= found

    monkeypatch.setattr(ViT, "layers", without_python)
    assert_close(graph.probed(graph.start(images), probes), wanted[0], rtol=1e-5, atol=1e-5)
    assert_close(answers(graph, images, experts), wanted[1], rtol=1e-5, atol=1e-5)
    with pytest.raises(AssertionError, match="the ViT itself"):
        answers(backbone, images, experts)
    with pytest.raises(AssertionError, match="the ViT itself"):  # copies begin with no graph
        answers(deepcopy(graph), images, experts)


def constants(traced: torch.jit.ScriptModule) -> set[int]:
    """Where the tensors in a graph lie in memory."""
    nodes = [node for node in traced.graph.findAllNodes("prim::Constant") if node.hasAttribute("value")]
    tensors = [node.t("value") for node in nodes if node.kindOf("value") == "t"]
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.ndim}


@torch.no_grad()
def test_a_graph_goes_with_its_expert_and_serves_no_other() -> None:
    backbone = toy_backbone()
    graph, images = faster(backbone, "graph"), torch.randn(1, 3, 32, 32)
    assert graph.graphs is not None
    for seed in range(4):  # one after another, perhaps in the same place of the memory
        own = expert(backbone, seed)
        assert_close(answers(graph, images, [own]), answers(backbone, images, [own]), rtol=1e-5, atol=1e-5)
        (traced,) = graphs_of(graph, own).values()
        gone = [weakref.ref(own), weakref.ref(traced)]
        del own, traced
        gc.collect()
        assert [each() for each in gone] == [None, None]
        assert not len(graph.graphs._graphs)
    pair = [expert(backbone, 0), expert(backbone, 1)]
    said = answers(graph, images, pair)
    assert_close(answers(graph, images, pair[::-1]), said.flip(1))
    assert (said[:, 0] - said[:, 1]).abs().max() > 1e-3
    graph.finish(graph.start(images))
    gone = [weakref.ref(graph)]
    del graph
    gc.collect()
    assert gone[0]() is None


def test_forgetting_a_domain_forgets_its_graph() -> None:
    backbone, pool = toy_backbone(), ExpertPool(toy_backbone())
    images = torch.randn(2, 3, 32, 32)
    for seed, name in enumerate(("blue", "red")):
        probes = stops(backbone.depth)
        seen = zip(probes, backbone.features(torch.randn(6, 3, 32, 32), probes), strict=True)
        places = {probe: located(features, k=2, seed=0) for probe, features in seen}
        pool.add(name, Member(expert(backbone, seed), places, {"classes": list(CLASSES)}))
    for way in (Way(arithmetic="graph"), Way(route_depth=1, arithmetic="graph")):
        found, wanted = pool.predict(images, [way, replace(way, arithmetic="exact")])
        assert_close(found.log_probs, wanted.log_probs, rtol=1e-5, atol=1e-5)
    for name in pool.domains:  # whoever was let through
        pool.predict(images, [Way(ORACLE, arithmetic="graph")], true=name)
    (graphs,) = graphs_of(pool._backbones["graph"], pool["red"].expert).values()
    gone = [weakref.ref(pool["red"].expert), weakref.ref(graphs)]
    del graphs
    pool.forget("red")
    gc.collect()
    assert [each() for each in gone] == [None, None]
    assert graphs_of(pool._backbones["graph"], pool["blue"].expert)


@torch.no_grad()
def test_what_differs_from_image_to_image_or_can_be_trained_gets_no_graph() -> None:
    backbone = toy_backbone()
    graph, width = faster(backbone, "graph"), backbone.width
    chosen = torch.randn(width)
    trained = expert(backbone, 0)
    assert isinstance(trained, nn.Module)
    trained.requires_grad_(True)
    experts: list[Specialist] = [
        Acting(lambda query: Tuning(tokens=(query * chosen)[:, None])),
        Acting(Tuning(tokens=torch.randn(3, 2, width))),
        trained,
    ]
    for _ in range(2):
        images = torch.randn(3, 3, 32, 32)
        assert_close(answers(graph, images, experts), answers(backbone, images, experts), rtol=1e-5, atol=1e-5)
    assert not any(graphs_of(graph, each) for each in experts)
    unowned = Custom(Tuning(tokens=torch.randn(2, width)))
    assert_close(answers(graph, images, [unowned]), answers(backbone, images, [unowned]), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_plain_experts_take_the_query_or_share_one_graph() -> None:
    backbone = toy_backbone()
    graph, images = faster(backbone, "graph"), torch.randn(2, 3, 32, 32)
    experts: list[Specialist] = [Acting(PLAIN), Acting(PLAIN)]
    query = torch.randn(2, backbone.width)
    assert_close(answers(graph, images, experts, query), query[:, None, :3].double().expand(-1, 2, -1))
    assert not graphs_of(graph, graph)
    assert_close(answers(graph, images, experts), answers(backbone, images, experts), rtol=1e-5, atol=1e-5)
    assert len(graphs_of(graph, graph)) == 1
    assert not any(graphs_of(graph, each) for each in experts)


def test_a_graph_is_of_float32_and_the_backbone_stays_as_it_is() -> None:
    backbone = toy_backbone()
    backbone.precision = "bfloat16"
    graph = faster(backbone, "graph")
    assert (graph.precision, backbone.precision, backbone.graphs) == ("float32", "bfloat16", None)
    assert faster(graph, "8-bit").graphs is None
