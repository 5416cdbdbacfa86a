"""Exact t-SNE: neighbours stay neighbours, and the same points give the same plane."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bpg.experiments.tsne import affinities, divergence, tsne


def chance(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def blobs(classes: int = 5, each: int = 20, width: int = 32) -> tuple[Tensor, Tensor]:
    labels = torch.arange(classes).repeat_interleave(each)
    return 8 * chance(0, classes, width)[labels] + chance(1, len(labels), width), labels


def apart(places: Tensor) -> Tensor:
    return torch.cdist(places, places).fill_diagonal_(math.inf)


def test_groups_that_lie_apart_stay_apart() -> None:
    points, labels = blobs()
    nearest = apart(tsne(points)).argmin(1)
    assert (labels[nearest] == labels).all()


def test_the_divergence_falls_with_the_steps() -> None:
    points, _ = blobs()
    joint = affinities(points)
    begin, middle, end = (divergence(joint, tsne(points, steps=steps)) for steps in (0, 600, 1000))
    assert begin > middle > end


def test_the_same_points_give_the_same_bytes() -> None:
    points, _ = blobs()
    assert tsne(points, steps=300).equal(tsne(points.clone(), steps=300))


def test_affinities_are_a_symmetric_distribution_in_which_everyone_sees_the_asked_number_of_others() -> None:
    points = chance(1, 200, 8)
    joint = affinities(points, perplexity=20)
    torch.testing.assert_close(joint, joint.T)
    assert float(joint.sum()) == pytest.approx(1)
    assert joint.diagonal().max() == 0
    torch.testing.assert_close(joint, affinities(1000 * points + 5000, perplexity=20), atol=1e-10, rtol=1e-7)


def test_on_a_circle_everyone_sees_as_many_others_as_the_perplexity_says() -> None:
    angles = torch.arange(120, dtype=torch.float64) * 2 * math.pi / 120
    row = 120 * affinities(torch.stack([angles.cos(), angles.sin()], 1), perplexity=15)[0]
    assert float(torch.exp(torch.special.entr(row).sum())) == pytest.approx(15, rel=1e-4)


def test_fewer_points_than_three_perplexities_are_placed_with_a_smaller_one() -> None:
    points, labels = blobs(classes=2, each=6)
    places = tsne(points, perplexity=30)
    assert places.isfinite().all()
    assert (labels[apart(places).argmin(1)] == labels).all()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5])
def test_a_handful_of_points_has_places(count: int) -> None:
    places = tsne(chance(count, count, 6))
    assert places.shape == (count, 2)
    assert places.isfinite().all()


def test_equal_points_and_points_on_a_line_have_places() -> None:
    assert tsne(torch.ones(12, 3), steps=50).isfinite().all()
    assert tsne(torch.arange(12.0)[:, None], steps=50).isfinite().all()
