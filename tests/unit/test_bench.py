"""The benchmark measures what it says: the same work on both sides, in turns, and the page tells what was found."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from bpg.backbones.faster import faster
from bpg.bench import growth, learning, peers
from bpg.bench.findings import Found, Setting, ratios
from bpg.bench.learning import KEPT_AT_MOST, _Learner
from bpg.bench.mixtures import RANKS, Mixture, random_backbone, ranks_for
from bpg.bench.suite import PARTS, TITLES, check_out, check_parts, contents, keep
from bpg.bench.timing import Ratio, Taken, take_turns
from bpg.errors import WrongUse
from bpg.experts.expert import ExpertSettings
from bpg.report.blocks import Curves
from bpg.report.figure import figure
from bpg.report.markdown import markdown

CPU = torch.device("cpu")
BEST = {"best_gigaflops_per_second": 100.0}


def small_mixture(domains: int = len(RANKS)) -> Mixture:
    backbone = random_backbone("bpg-vit-nano", CPU)
    return Mixture.make(backbone, ranks_for(backbone, domains))


def test_ratios_are_taken_within_a_round() -> None:
    slow_moment = Taken((1.0, 10.0, 1.0), 0.0)
    assert Taken((2.0, 20.0, 3.0), 0.0).over(slow_moment) == Ratio(2.0, 2.0, 3.0)


def test_works_take_turns_and_their_operations_are_counted() -> None:
    order: list[str] = []
    a = torch.ones(50, 60)

    def one() -> None:
        order.append("one")
        a @ a.T

    taken = take_turns({"one": one, "other": lambda: order.append("other")}, rounds=2)
    assert order == ["one", "other"] * 3
    assert taken["one"].gigaflops == pytest.approx(2 * 50 * 60 * 50 / 1e9)
    assert (len(taken["one"].rounds), taken["other"].gigaflops) == (2, 0)


def test_attention_and_products_of_8_bits_count_as_operations() -> None:
    q = torch.ones(2, 3, 5, 4)
    with torch.no_grad():
        taken = take_turns({"attention": lambda: F.scaled_dot_product_attention(q, q, q)}, rounds=1)
    assert taken["attention"].gigaflops == pytest.approx(2 * 2 * 3 * 5 * 5 * (4 + 4) / 1e9)
    backbone = random_backbone("bpg-vit-nano", CPU)
    images = torch.zeros(2, 3, 64, 64)
    rough = faster(backbone, "8-bit")
    works = {"exact": partial(backbone.embed, images), "8-bit": partial(rough.embed, images)}
    cost = {name: own.gigaflops for name, own in take_turns(works, rounds=1).items()}
    assert cost["8-bit"] == pytest.approx(cost["exact"])


def test_images_are_measured_on_a_backbone_of_any_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "STEPS", 1)
    found = learning.data(Setting(CPU, 1, "bpg-vit-nano", "bpg-vit-nano"))
    assert [len(table.rows) for table in found.tables] == [2, 3, 4]
    assert all(ratio.median > 0 for table in found.tables for row in table.rows for ratio in row.over.values())


@pytest.mark.parametrize(("count", "share", "pairs"), [(5, 1.2, 6), (8, 1.2, 10), (8, 2, 16), (4, 9, 24)])
def test_so_many_experts_per_image_speak(count: int, share: float, pairs: int) -> None:
    weights = small_mixture().weights(count, share)
    assert int((weights > 0).sum()) == pairs
    assert torch.allclose(weights.sum(dim=1), torch.ones(count, dtype=torch.float64))
    assert int((weights > 0).sum(dim=1).max()) - int((weights > 0).sum(dim=1).min()) <= 1


def test_only_those_who_speak_cost_anything() -> None:
    model = small_mixture()
    images = model.images(6)
    taken = take_turns(
        {
            "alone": partial(model.unrouted, images, model.weights(6, 1), batch=6),
            "two": partial(model.unrouted, images, model.weights(6, 2), batch=6),
            "loop": partial(model.loop, images, batch=6),
            "two, one by one": partial(model.one_by_one, images, model.weights(6, 2), batch=6),
        },
        rounds=1,
    )
    cost = {name: own.gigaflops for name, own in taken.items()}
    assert cost["two"] == pytest.approx(2 * cost["alone"], rel=0.1)
    assert cost["loop"] > 3 * cost["two"]
    assert cost["two"] < cost["two, one by one"] < cost["loop"]


def test_a_model_of_fewer_domains_has_the_first_ones() -> None:
    model = small_mixture(4)
    fewer = model.first(2)
    assert fewer.experts == model.experts[:2]
    assert fewer.places.distances(torch.zeros(1, model.backbone.feature_width)).shape == (1, 2)


def test_peft_is_given_the_same_work() -> None:
    name = "deit_tiny_patch16_224"
    backbone = random_backbone(name, CPU)
    settings = ExpertSettings(prompts=0, parts="lora", lora_maps=peers.LORA_MAPS)
    ours = Mixture.make(backbone, [4, 16], settings=settings)
    images, alone = ours.images(3), ours.weights(3, 1)
    theirs, plain = peers.peft_mixed_batch(name, [4, 16], images, alone), peers.timm_forward(name, images)
    assert theirs is not None
    assert plain is not None
    works = {"peft": theirs, "engine": partial(ours.unrouted, images, alone, batch=3), "timm": plain}
    cost = {work: own.gigaflops for work, own in take_turns(works, rounds=1).items()}
    # The engine's last block works for the class token alone.
    assert 0.9 * cost["peft"] < cost["engine"] < cost["peft"]
    assert cost["timm"] < cost["peft"]


def test_peers_that_do_not_know_a_backbone_are_left_out() -> None:
    assert peers.timm_forward("bpg-vit-nano", torch.zeros(1, 3, 64, 64)) is None


def test_one_centre_after_another_finds_the_nearest_domain() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = [torch.randn(3, 8, generator=generator) for _ in range(4)]
    features = torch.randn(10, 8, generator=generator)
    wanted = torch.stack([torch.cdist(features, own, p=1).amin(dim=1) for own in centres]).argmin(dim=0)
    assert peers.nearest_domain(features, centres).tolist() == wanted.tolist()


def test_recomputed_activations_are_not_kept() -> None:
    backbone = random_backbone("bpg-vit-nano", CPU)
    learner = _Learner(backbone, 64)
    images = torch.randn(2, 3, 64, 64)
    kept = learner.kept(images, recompute=True)
    # At the least the tokens before each block, in float32.
    tokens = backbone.vit.config.grid**2 + 1 + 10
    assert kept >= 4 * backbone.depth * 2 * tokens * backbone.width
    assert kept <= KEPT_AT_MOST * learner.kept(images, recompute=False)


def test_growth_tells_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "DOMAINS", (1, 3))
    found = growth.domains(Setting(CPU, 1, "bpg-vit-nano", "bpg-vit-nano"))
    for curves in found.figures:
        assert [[x for x, _ in line] for line in curves.lines.values()] == [[1, 3]] * 2
    mixture, loop = found.figures[0].lines.values()
    assert loop[1][1] > mixture[1][1]


def some(heading: str) -> Found:
    taken = {"base": Taken((1.0, 1.0), 50.0), "ours": Taken((0.5, 0.7), 25.0)}
    table = ratios("A title", taken, over={"base": heading}, wanted={"ours": {heading: 0.45}})
    curves = Curves("Cost: of it", {"a": [(1, 2.0), (64, 200.0)]}, "seconds", "things", log="xy")
    return Found([table], [curves], ["A note."], BEST | {"cores": 2})


def test_the_page_tells_ratio_limit_operations_and_rate(tmp_path: Path) -> None:
    page = keep(some("over base"), "engine", tmp_path).read_text()
    assert "| ours | 0.60 (0.50 to 0.70) | at most 0.45 | 600 | 25 | 42% |" in page
    assert "![Cost: of it](performance/cost.svg)" in page
    assert "A note." in page
    assert (tmp_path / "performance" / "cost.svg").is_file()


def test_parts_are_kept_one_by_one(tmp_path: Path) -> None:
    keep(some("over base"), "engine", tmp_path)
    page = keep(some("over another"), "domains", tmp_path).read_text()
    assert page.index(TITLES["engine"]) < page.index(TITLES["domains"])
    assert "over base" in page
    assert "over another" in page
    (tmp_path / "performance" / "engine.json").write_text('{"tables": 3}')
    with pytest.raises(WrongUse, match="engine.json"):
        keep(some("over base"), "domains", tmp_path)


def test_every_part_has_a_title() -> None:
    assert list(TITLES) == list(PARTS)
    assert check_parts([]) == list(PARTS)
    assert check_parts(["data", "engine"]) == ["engine", "data"]
    with pytest.raises(WrongUse, match="speed"):
        check_parts(["speed"])


def test_without_pictures_curves_are_bars() -> None:
    assert "![" not in markdown(contents({"engine": some("over base")}))


@pytest.mark.parametrize("log", ["", "x", "y", "xy"])
def test_a_figure_stays_inside_its_frame(log: str) -> None:
    lines = {"up & down": [(1.0, 0.5), (10.0, 30.0), (1000.0, 400.0)], "flat": [(1.0, 3.0), (1000.0, 3.0)]}
    drawn = ElementTree.fromstring(figure(Curves("T", lines, "seconds", "things", log=log)))
    left, top, width, height = map(float, drawn.attrib["viewBox"].split())
    circles = drawn.findall("{*}circle")
    assert len(circles) == 5
    for element in [*circles, *drawn.findall("{*}text"), *drawn.findall("{*}rect")]:
        x = float(element.get("cx") or element.attrib["x"])
        y = float(element.get("cy") or element.attrib["y"])
        assert left <= x <= left + width
        assert top <= y <= top + height


def test_nothing_and_nought_on_a_logarithmic_axis_are_drawn() -> None:
    for lines in ({}, {"a": [(0.0, 0.0), (10.0, 5.0)]}):
        ElementTree.fromstring(figure(Curves("T", lines, log="xy")))


def test_what_is_in_the_way_of_the_page_is_told_before(tmp_path: Path) -> None:
    check_out(tmp_path)
    assert list((tmp_path / "performance").iterdir()) == []
    (tmp_path / "performance" / "engine.json").write_text("{")
    with pytest.raises(WrongUse, match="engine.json"):
        check_out(tmp_path)
