"""Exact t-SNE: neighbours stay neighbours, and the same points give the same plane."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from bpg.experiments.tsne import affinities, divergence, tsne


def blobs(classes: int = 5, each: int = 20, width: int = 32) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    chance = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), each)
    return 8 * chance.normal(size=(classes, width))[labels] + chance.normal(size=(len(labels), width)), labels


def apart(places: NDArray[np.float64]) -> NDArray[np.float64]:
    distances = np.linalg.norm(places[:, None] - places[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    return distances


def test_groups_that_lie_apart_stay_apart() -> None:
    points, labels = blobs()
    nearest = apart(tsne(points)).argmin(1)
    assert (labels[nearest] == labels).mean() == 1.0


def test_the_divergence_falls_with_the_steps() -> None:
    points, _ = blobs()
    joint = affinities(points)
    begin, middle, end = (divergence(joint, tsne(points, steps=steps)) for steps in (0, 300, 1000))
    assert begin > middle > end


def test_the_same_points_give_the_same_bytes() -> None:
    points, _ = blobs()
    assert tsne(points, steps=300).tobytes() == tsne(points.copy(), steps=300).tobytes()


def test_affinities_are_a_symmetric_distribution_in_which_everyone_sees_the_asked_number_of_others() -> None:
    points = np.random.default_rng(1).normal(size=(200, 8))
    joint = affinities(points, perplexity=20)
    np.testing.assert_allclose(joint, joint.T)
    assert joint.sum() == pytest.approx(1)
    assert np.diag(joint).max() == 0
    np.testing.assert_allclose(joint, affinities(1000 * points + 5000, perplexity=20), atol=1e-10)


def test_on_a_circle_everyone_sees_as_many_others_as_the_perplexity_says() -> None:
    angles = np.arange(120) * 2 * np.pi / 120
    row = 120 * affinities(np.stack([np.cos(angles), np.sin(angles)], 1), perplexity=15)[0]
    assert np.exp(-(row[row > 0] * np.log(row[row > 0])).sum()) == pytest.approx(15, rel=1e-4)


def test_fewer_points_than_three_perplexities_are_placed_with_a_smaller_one() -> None:
    points, labels = blobs(classes=2, each=6)
    places = tsne(points, perplexity=30)
    assert np.isfinite(places).all()
    assert (labels[apart(places).argmin(1)] == labels).all()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5])
def test_a_handful_of_points_has_places(count: int) -> None:
    places = tsne(np.random.default_rng(count).normal(size=(count, 6)))
    assert places.shape == (count, 2)
    assert np.isfinite(places).all()


def test_equal_points_and_points_on_a_line_have_places() -> None:
    assert np.isfinite(tsne(np.ones((12, 3)), steps=50)).all()
    assert np.isfinite(tsne(np.arange(12.0)[:, None], steps=50)).all()
