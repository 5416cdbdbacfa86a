"""What must hold of separability, capacity, prototypes, routing and fusion for every input."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from bpg.backbones.survey import ScatterSum
from bpg.capacity import MAX_RANK, allocate, solve_budget
from bpg.errors import WrongUse
from bpg.mixture import FUSIONS, mix, mixture_weights
from bpg.prototypes import LEVELS, Place, located, prototypes
from bpg.routing import Places, calibrated, hard, oracle, soft, survivors
from bpg.separability import between_within, separability

SEEDS = st.integers(0, 2**16)


def blobs(seed: int, *, classes: int = 4, each: int = 12, width: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    means = 2 * torch.randn(classes, width, generator=generator, dtype=torch.float64)
    labels = torch.arange(classes).repeat_interleave(each)
    return means[labels] + torch.randn(len(labels), width, generator=generator, dtype=torch.float64), labels


def places(prototypes: list[torch.Tensor]) -> Places:
    return Places([Place(nu, torch.linspace(0, 1, LEVELS, dtype=torch.float64)) for nu in prototypes])


def score(x: torch.Tensor, y: torch.Tensor, **options: str) -> float:
    total = ScatterSum(int(y.max()) + 1)
    total.add(x, y)
    return separability(total.scatter(), epsilon=0.0, **options)  # type: ignore[arg-type]


@settings(deadline=None)
@given(
    seed=SEEDS, scale=st.floats(0.01, 100), shift=st.floats(-50, 50), estimator=st.sampled_from(["plain", "corrected"])
)
def test_separability_ignores_scale_and_shift(seed: int, scale: float, shift: float, estimator: str) -> None:
    x, y = blobs(seed)
    assert score(scale * x + shift, y, estimator=estimator) == pytest.approx(score(x, y, estimator=estimator), rel=1e-6)


@settings(deadline=None, max_examples=30)
@given(seed=SEEDS)
def test_separability_equals_two_passes_in_float64(seed: int) -> None:
    x, y = blobs(seed)
    groups = [x[y == label].numpy() for label in range(4)]
    means = np.stack([group.mean(axis=0) for group in groups])
    between = ((means - means.mean(axis=0)) ** 2).sum(axis=1).mean()
    within = np.mean([((g - m) ** 2).sum(axis=1).mean() for g, m in zip(groups, means, strict=True)])
    assert score(x, y) == pytest.approx(between / within, rel=1e-9)


def test_the_corrected_estimator_takes_the_bias_out() -> None:
    """The mean over many small samples is the value of the whole population; the plain one's is not."""
    truth = score(*blobs(0, classes=20, each=4000, width=8))
    plain, corrected = [], []
    generator = torch.Generator().manual_seed(1)
    x, y = blobs(0, classes=20, each=4000, width=8)
    for _ in range(60):
        chosen = torch.cat([(y == c).nonzero()[:, 0][torch.randperm(4000, generator=generator)[:4]] for c in range(20)])
        plain.append(score(x[chosen], y[chosen]))
        total = ScatterSum(20)
        total.add(x[chosen], y[chosen])
        corrected.append(between_within(total.scatter(), estimator="corrected"))
    between, within = (sum(values) / len(values) for values in zip(*corrected, strict=True))
    assert between / within == pytest.approx(truth, rel=0.05)
    assert sum(plain) / len(plain) > 1.2 * truth


def test_separability_of_too_little_is_refused() -> None:
    x = torch.randn(6, 3)
    with pytest.raises(WrongUse, match="two classes with an image, came 1"):
        score(x, torch.zeros(6, dtype=torch.long))
    with pytest.raises(WrongUse, match="at least two images of some class"):
        score(x, torch.arange(6), estimator="corrected")
    lone = torch.tensor([0, 0, 0, 1, 1, 2])
    assert math.isfinite(score(x, lone, estimator="corrected"))


@given(s=st.floats(1e-4, 10), budget=st.floats(1e-3, 100))
def test_capacity_is_between_its_bounds_and_falls_with_separability(s: float, budget: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rank = allocate(s, lam=budget, max_rank=256)
        assert 1 <= rank <= 256
        assert allocate(2 * s, lam=budget, max_rank=256) <= rank
        if 1 <= budget / s <= 256:
            assert abs(rank - budget / s) <= 0.5 + 1e-6


def test_capacity_says_when_it_clips() -> None:
    with pytest.warns(UserWarning, match="asks for 5000 hidden dimensions; 1024 are given"):
        assert allocate(0.001, lam=5.0) == 1024
    with pytest.warns(UserWarning, match="inf"):
        assert allocate(0.0, lam=5.0, max_rank=7) == 7
    with pytest.raises(WrongUse, match="no capacity follows"):
        allocate(1.0, lam=0.0)


def rank_edge(s: float, rank: int) -> float:
    """The lambda from which on a domain gets one hidden dimension more."""
    return s * (rank + 0.5) * (1 + 1e-6)


@settings(deadline=None, max_examples=50)
@given(scores=st.lists(st.floats(0.01, 5), min_size=1, max_size=6), total=st.integers(5_000, 5_000_000))
def test_a_budget_is_kept_and_used(scores: list[float], total: int) -> None:
    def cost(rank: int, _: int = 0) -> float:
        return 500.0 * rank + 100

    if 600 * len(scores) > total:
        with pytest.raises(WrongUse, match="budget is too small"):
            solve_budget(scores, cost=cost, total=total)
        return
    budget = solve_budget(scores, cost=cost, total=total)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spent = sum(cost(allocate(s, lam=budget)) for s in scores)
        edges = [rank_edge(s, rank) for s in scores if (rank := allocate(s, lam=budget)) < MAX_RANK]
        more = sum(cost(allocate(s, lam=min(edges))) for s in scores) if edges else math.inf
    assert spent <= total
    assert more > total  # the next rank would not fit, unless all are at their largest


@settings(deadline=None, max_examples=30)
@given(seed=SEEDS, k=st.integers(1, 7), count=st.integers(1, 40))
def test_prototypes_are_means_of_their_nearest_and_do_not_change(seed: int, k: int, count: int) -> None:
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    centres = prototypes(x, k=k, seed=seed)
    assert centres.shape == (min(k, count), 3)
    assert torch.equal(centres, prototypes(x, k=k, seed=seed))
    nearest = torch.cdist(x.double(), centres).argmin(dim=1)
    for j, centre in enumerate(centres):
        assert_close(x.double()[nearest == j].mean(dim=0), centre, rtol=1e-9, atol=1e-9)


def test_prototypes_of_equal_features_are_one() -> None:
    assert len(prototypes(torch.ones(9, 4), k=5)) == 1


def test_prototypes_find_clear_clusters() -> None:
    x, y = blobs(3, classes=5, each=40, width=16)
    far = 20 * torch.nn.functional.one_hot(y, 16).double() + 0.1 * x
    centres = prototypes(far, k=5)
    means = torch.stack([far[y == label].mean(dim=0) for label in range(5)])
    assert torch.cdist(centres, means).amin(dim=1).max() < 1e-9


@settings(deadline=None)
@given(seed=SEEDS, domains=st.integers(1, 9), size=st.integers(1, 8))
def test_routing_is_a_distribution_that_keeps_the_nearest(seed: int, domains: int, size: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    z = torch.nn.functional.normalize(torch.randn(size, 5, generator=generator), dim=1)
    nus = [torch.randn(1 + t % 3, 5, generator=generator, dtype=torch.float64) for t in range(domains)]
    a = places(nus).distances(z)
    by_hand = torch.stack([(z.double()[:, None] - nu).norm(dim=2).amin(dim=1) for nu in nus], dim=1)
    assert_close(a, by_hand)
    w = soft(a)
    assert_close(w.sum(dim=1), torch.ones(size, dtype=torch.float64))
    assert survivors(w).gather(1, a.argmin(dim=1, keepdim=True)).all()
    assert torch.equal(hard(a).argmax(dim=1), a.argmin(dim=1))
    near, next_to_it = a.topk(min(2, domains), largest=False).values.T[[0, -1]]
    clear = (next_to_it > near + 1e-4) | (domains == 1)  # of two that are as near, the sharpest router still hears both
    assert_close(calibrated(a, 1e-6)[clear], hard(a)[clear])
    order = torch.randperm(domains, generator=generator).tolist()
    assert_close(soft(places([nus[t] for t in order]).distances(z)), w[:, order])
    alone = torch.cat([places(nus).distances(row[None]) for row in z])
    assert_close(alone, a, rtol=0, atol=1e-12)  # whoever else is in the batch


@given(seed=SEEDS, domains=st.integers(1, 20), more=st.integers(1, 50))
def test_domains_far_away_change_nobody_elses_say(seed: int, domains: int, more: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    near = torch.rand(5, domains, generator=generator, dtype=torch.float64)
    far = 100 + torch.rand(5, more, generator=generator, dtype=torch.float64)
    before, after = (
        mixture_weights(calibrated(a, 0.3), "probabilities") for a in (near, torch.cat([near, far], dim=1))
    )
    assert_close(after[:, :domains], before)
    assert not after[:, domains:].any()


def test_a_calibrated_domain_speaks_if_it_is_a_quarter_as_likely_as_the_likeliest() -> None:
    sigma = 0.2
    gap = sigma / 2 * math.log(4)
    a = torch.tensor([[0.5, 0.5 + 0.99 * gap, 0.5 + 1.01 * gap]], dtype=torch.float64)
    (weights,) = mixture_weights(calibrated(a, sigma), "probabilities").tolist()
    assert weights == pytest.approx([1 / (1 + 4**-0.99), 4**-0.99 / (1 + 4**-0.99), 0])


@settings(deadline=None)
@given(seed=SEEDS, fusion=st.sampled_from(FUSIONS), domains=st.integers(1, 5))
def test_fusion_lets_nobody_vote_on_what_they_never_saw(seed: int, fusion: str, domains: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    known = torch.rand(domains, 6, generator=generator) < 0.6
    known[torch.arange(domains), torch.arange(domains) % 6] = True  # everybody knows something
    logits = torch.randn(4, domains, 6, generator=generator, dtype=torch.float64)
    weights = mixture_weights(soft(torch.rand(4, domains, generator=generator)), fusion)  # type: ignore[arg-type]
    mixed = mix(logits, weights, known, fusion)  # type: ignore[arg-type]
    strange = torch.where(known, logits, 1e6 * torch.randn(4, domains, 6, generator=generator, dtype=torch.float64))
    assert torch.equal(mix(strange, weights, known, fusion), mixed)  # type: ignore[arg-type]
    heard = ((weights > 0)[:, :, None] & known).any(dim=1)
    assert torch.equal(torch.isfinite(mixed), heard)
    for row in range(4):
        for c in range(6):
            votes = [
                (weights[row, t], logits[row, t, c]) for t in range(domains) if known[t, c] and weights[row, t] > 0
            ]
            if not votes:
                continue
            probabilities = [
                (weights[row, t], logits[row, t][known[t]].softmax(dim=0)[known[t][:c].sum()])
                for t in range(domains)
                if known[t, c] and weights[row, t] > 0
            ]
            if fusion == "max":
                wanted = max(y for _, y in votes)
            elif fusion == "probabilities":
                wanted = math.log(sum(w * p for w, p in probabilities))
            else:
                wanted = sum(w * y for w, y in votes) / sum(w for w, _ in votes) * weights[row].sum()
            assert mixed[row, c] == pytest.approx(float(wanted), rel=1e-9)


@pytest.mark.parametrize("few", [1, 2])
def test_a_domain_of_too_few_images_does_not_say_what_is_usual(few: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 4, generator=generator, dtype=torch.float64)
    many, small = located(x, k=2), located(x[:few] + 100, k=2)
    assert not small.varies
    assert Places([small, many]).spread == Places([many]).spread > 0
    z = torch.cat([x, x + 100, x + 60, x - 50])  # nearest to many, to few, to few, to many
    both = Places([small, many])
    found, alone = both.unknown(both.distances(z)), Places([many]).unknown(Places([many]).distances(z))
    assert found[40:120].isnan().all()
    assert_close(found[:40], alone[:40])
    assert (found[:40] < 1).any()
    assert (found[120:] == 1).all()
    nobody = Places([small])
    assert nobody.spread == 0
    assert nobody.unknown(nobody.distances(z)).isnan().all()


def test_the_oracle_is_told() -> None:
    assert oracle(torch.tensor([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_wrong_routing_is_refused() -> None:
    with pytest.raises(WrongUse, match="no domain is known"):
        places([])
    with pytest.raises(WrongUse, match="no such fusion"):
        mixture_weights(torch.ones(1, 1), "sum")  # type: ignore[arg-type]
    with pytest.raises(WrongUse, match="no prototypes of this"):
        prototypes(torch.zeros(0, 3))


def test_who_alone_knows_a_class_is_not_heard_for_that() -> None:
    known = torch.tensor([[True, True, False], [False, False, True]])
    logits = torch.tensor([[[3.0, -3.0, 0.0], [0.0, 0.0, 5.0]]], dtype=torch.float64)
    mixed = mix(logits, torch.tensor([[0.64, 0.36]], dtype=torch.float64), known, "probabilities")
    assert mixed.argmax(dim=1).tolist() == [0]
    assert_close(mixed.exp().sum(dim=1), torch.ones(1, dtype=torch.float64))
