"""The streaming scatter is the two-pass one, whatever the pieces, the shift and the scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bpg.backbones.survey import Scatter, ScatterSum


def two_pass(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """bcs and wcs (eq:bcs, eq:wcs) from their definition, in float64."""
    x = x.astype(np.float64)
    groups = [x[y == label] for label in np.unique(y)]
    means = np.stack([group.mean(axis=0) for group in groups])
    between = ((means - means.mean(axis=0)) ** 2).sum(axis=1).mean()
    within = np.mean([((group - mean) ** 2).sum(axis=1).mean() for group, mean in zip(groups, means, strict=True)])
    return float(between), float(within)


def streamed(x: np.ndarray, y: np.ndarray, classes: int, piece: int) -> Scatter:
    total = ScatterSum(classes)
    for start in range(0, len(x), piece):
        total.add(torch.from_numpy(x[start : start + piece]), torch.from_numpy(y[start : start + piece]))
    return total.scatter()


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**16),
    count=st.integers(1, 60),
    classes=st.integers(1, 8),
    piece=st.integers(1, 70),
    offset=st.sampled_from([0.0, 1.0, 1e4, -1e6]),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_streaming_equals_two_passes(
    seed: int, count: int, classes: int, piece: int, offset: float, scale: float
) -> None:
    generator = np.random.default_rng(seed)
    x = scale * generator.normal(size=(count, 5)) + offset
    y = generator.integers(0, classes, size=count)
    between, within = two_pass(x, y)
    found = streamed(x, y, classes, piece)
    tolerance = 1e-9 * (scale**2 + abs(offset) * scale)
    assert found.between == pytest.approx(between, rel=1e-9, abs=tolerance)
    assert found.within == pytest.approx(within, rel=1e-9, abs=tolerance)
    assert found.counts.tolist() == np.bincount(y, minlength=classes).tolist()


def test_pieces_do_not_matter_to_the_last_bit() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(200, 16)).astype(np.float32), generator.integers(0, 5, size=200)
    whole = streamed(x, y, 5, 200)
    for piece in (1, 7, 64):
        found = streamed(x, y, 5, piece)
        assert torch.equal(found.means, whole.means)
        assert torch.equal(found.spreads, whole.spreads)


def test_absent_and_single_image_classes() -> None:
    x = np.array([[0.0, 0.0], [2.0, 0.0], [5.0, 5.0]])
    found = streamed(x, np.array([0, 0, 3]), 4, 2)
    assert found.counts.tolist() == [2, 0, 0, 1]
    assert found.present.tolist() == [True, False, False, True]
    assert (found.between, found.within) == pytest.approx(two_pass(x, np.array([0, 0, 3])))
    assert found.within == pytest.approx(0.5)  # spread 1 in class 0, none in the lone image of class 3


def test_one_class_only_has_no_scatter_between() -> None:
    found = streamed(np.random.default_rng(0).normal(size=(9, 3)), np.zeros(9, dtype=np.int64), 1, 4)
    assert found.between == 0
    assert found.within > 0
