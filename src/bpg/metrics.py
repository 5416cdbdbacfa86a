"""Accuracies from integer counts, under one name a definition.

A run is a `Counts`: how many test images of each test set were classified right after each domain learned. Percentages
are made at the very end, so nothing is rounded on the way. What is not defined is NaN, never 0: forgetting with one
domain, or on a test set that belongs to no domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpg.errors import WrongUse

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Counts:
    """`correct[i][j]` of `total[j]` test images right after learning domain i; None where a test set was not asked.

    Test set j belongs to the domain learned j-th, or to none of them at all (`of_domains=False`, as in CORe50).
    """

    correct: tuple[tuple[int | None, ...], ...]
    total: tuple[int, ...]
    of_domains: bool = True

    def __post_init__(self) -> None:
        for row in self.correct:
            for right, total in zip(row, self.total, strict=False):
                if right is not None and not 0 <= right <= total:
                    raise WrongUse(
                        "impossible counts", wanted=f"0 to {total} right", came=str(right), remedy="Count again."
                    )
        if any(len(row) != len(self.total) for row in self.correct):
            raise WrongUse(
                "counts do not line up",
                wanted=f"{len(self.total)} test sets in every row",
                came=str([len(row) for row in self.correct]),
                remedy="Fill what was not asked with None.",
            )

    @property
    def accuracies(self) -> Floats:
        """B (T, tests) in percent: B[i, j] on test set j after domain i; NaN where it was not asked or is empty."""
        right = np.array([[np.nan if n is None else n for n in row] for row in self.correct], dtype=np.float64)
        total = np.array([n or np.nan for n in self.total], dtype=np.float64)
        percent: Floats = 100 * right.reshape(len(self.correct), len(self.total)) / total
        return percent


def average_accuracy(counts: Counts) -> float:
    """A_T, pooled: the share of all test images that is right after the last domain, as the paper has it."""
    return _last(pooled_accuracies(counts))


def mean_accuracy(counts: Counts) -> float:
    """The mean over test sets of their accuracy after the last domain; CDDB's and KA-Prompt's average accuracy."""
    return _last(mean_accuracies(counts))


def pooled_accuracies(counts: Counts) -> list[float]:
    """A_1 ... A_T pooled: after domain i over the test sets of the domains learned by then."""
    return [_pooled(counts, row, learned) for learned, row in enumerate(counts.correct, start=1)]


def mean_accuracies(counts: Counts) -> list[float]:
    """A_1 ... A_T as means over the test sets of the domains learned by then."""
    matrix = counts.accuracies
    return [float(row[: _asked(counts, learned)].mean()) for learned, row in enumerate(matrix, start=1)]


def incremental_accuracy(counts: Counts) -> float:
    """A_bar, pooled: the mean of A_1 ... A_T (DUCT)."""
    return _mean(pooled_accuracies(counts))


def mean_incremental_accuracy(counts: Counts) -> float:
    """A_bar of the means over test sets (CAA in KA-Prompt)."""
    return _mean(mean_accuracies(counts))


def forgetting(counts: Counts) -> float:
    """F_T (eq:FT): what old domains lost, on average over all later steps. Lower is better."""
    B = _square(counts)
    T = len(B)
    return _mean([float(np.mean(B[j, j] - B[j + 1 :, j])) for j in range(T - 1)])


def backward_transfer(counts: Counts) -> float:
    """GEM's BWT (Lopez-Paz and Ranzato 2017): what old domains gained from just learned to the end."""
    B = _square(counts)
    return _mean([float(B[-1, j] - B[j, j]) for j in range(len(B) - 1)])


def forgetting_from_best_before(counts: Counts) -> float:
    """FM (Chaudhry et al. 2018): the best before the last step minus the end; negative where the end is best."""
    B = _square(counts)
    return _mean([float(B[j:-1, j].max() - B[-1, j]) for j in range(len(B) - 1)])


def forgetting_from_best(counts: Counts) -> float:
    """FM with the last step among the candidates (ESN, DUCT, mammoth): never negative."""
    B = _square(counts)
    return _mean([float(B[j:, j].max() - B[-1, j]) for j in range(len(B) - 1)])


def forgetting_degree(counts: Counts) -> float:
    """AF of S-Prompts and CDDB: F_T with the other sign, so that higher is better."""
    return -forgetting(counts)


def forgetting_since_learned(counts: Counts) -> float:
    """Avalanche's forgetting: from just learned to the end; GEM's BWT with the other sign."""
    return -backward_transfer(counts)


def forward_transfer(counts: Counts, untrained: Sequence[float]) -> float:
    """GEM's FWT: on each domain just before it is learned, against what the `untrained` model has there, in percent."""
    B = _square(counts)
    return _mean([float(B[j - 1, j] - untrained[j]) for j in range(1, len(B))])


def intransigence(counts: Counts, joint: Sequence[float]) -> float:
    """What joint training reaches on each domain, in percent, minus the accuracy just after learning it."""
    return float(np.mean(joint)) - learning_accuracy(counts) if len(joint) else float("nan")


def transfer(counts: Counts) -> float:
    """MTIL's Transfer (ZSCL): the mean over domains of their mean accuracy before they are learned."""
    B = _square(counts)
    return _mean([float(np.mean(B[:j, j])) for j in range(1, len(B))])


def trajectory_accuracy(counts: Counts) -> float:
    """MTIL's Average (ZSCL): the mean over all steps and all domains, learned or not."""
    return _mean(_square(counts).flatten().tolist())


def learning_accuracy(counts: Counts) -> float:
    """The mean accuracy on each domain just after learning it: plasticity."""
    return _mean(np.diag(_square(counts)).tolist())


def unseen_accuracy(counts: Counts) -> float:
    """The mean of B[i, j] over domains j not yet learned at i; NaN if these were not asked."""
    B = _square(counts)
    later = B[np.triu_indices(len(B), k=1)]
    return float(np.mean(later)) if len(later) else float("nan")


def class_accuracies(predicted: Sequence[int], labels: Sequence[int], classes: int) -> Floats:
    """Accuracy of each class in percent (C,); NaN for a class without a test image."""
    answers, truth = np.asarray(predicted, dtype=np.int64), np.asarray(labels, dtype=np.int64)
    if len(answers) != len(truth) or (len(truth) and not 0 <= truth.min() <= truth.max() < classes):
        raise WrongUse(
            "labels and answers do not fit",
            wanted=f"as many of one as of the other, labels below {classes}",
            came=f"{len(answers)} answers, {len(truth)} labels",
            remedy="Check the order and the classes.",
        )
    total = np.bincount(truth, minlength=classes).astype(np.float64)
    right = np.bincount(truth[answers == truth], minlength=classes)
    with np.errstate(invalid="ignore"):
        return np.where(total > 0, 100 * right / total, np.nan)


def balanced_accuracy(predicted: Sequence[int], labels: Sequence[int], classes: int) -> float:
    """The mean of the accuracies of the classes that have a test image."""
    found = class_accuracies(predicted, labels, classes)
    return _mean(found[~np.isnan(found)].tolist())


def calibration_error(confidence: Floats, right: NDArray[Any], *, bins: int = 15) -> float:
    """Expected calibration error in percent (Guo et al. 2017): |confidence - accuracy| over equal bins, by size."""
    if not len(confidence) or not np.isfinite(confidence).all():
        return float("nan")
    place = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    gap = np.bincount(place, weights=confidence - right.astype(np.float64), minlength=bins)
    return float(100 * np.abs(gap).sum() / len(confidence))


def identification_accuracy(chosen: Sequence[int], truth: Sequence[int | None]) -> float:
    """How often the likeliest domain is the true one, in percent; NaN where test images belong to no domain."""
    pairs = [(domain, true) for domain, true in zip(chosen, truth, strict=True) if true is not None]
    return 100 * sum(domain == true for domain, true in pairs) / len(pairs) if pairs else float("nan")


def right_class_from_wrong_domain(chosen: Sequence[int], truth: Sequence[int | None], right: Sequence[bool]) -> float:
    """Of the images whose likeliest domain is wrong, the share that is classified right all the same, in percent."""
    lost = [
        good for domain, true, good in zip(chosen, truth, right, strict=True) if true is not None and domain != true
    ]
    return 100 * sum(lost) / len(lost) if lost else float("nan")


def average_precision(scores: Floats, positive: NDArray[Any]) -> float:
    """The area under precision over recall in percent, for two classes (CDDB's mAP is its mean over domains)."""
    order = np.argsort(-scores, kind="stable")
    hits = positive.astype(np.float64)[order]
    if not hits.sum():
        return float("nan")
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return float(100 * (precision * hits).sum() / hits.sum())


def oracle_gap(counts: Counts, oracle: Counts) -> float:
    """How many points the true domain would be worth: A_T of the oracle minus A_T."""
    if counts.total != oracle.total:
        raise WrongUse(
            "two runs on different test sets",
            wanted=f"test sets of {counts.total} images",
            came=f"{oracle.total}",
            remedy="Compare runs on the same images.",
        )
    return average_accuracy(oracle) - average_accuracy(counts)


def _asked(counts: Counts, learned: int) -> int:
    return learned if counts.of_domains else len(counts.total)


def _pooled(counts: Counts, row: tuple[int | None, ...], learned: int) -> float:
    asked = _asked(counts, learned)
    if any(right is None for right in row[:asked]) or not sum(counts.total[:asked]):
        return float("nan")
    return 100 * sum(right for right in row[:asked] if right is not None) / sum(counts.total[:asked])


def _square(counts: Counts) -> Floats:
    """B (T, T); all NaN where test sets belong to no domain."""
    T = len(counts.correct)
    if not counts.of_domains or len(counts.total) < T:
        return np.full((T, T), np.nan)
    return counts.accuracies[:, :T]


def _last(values: list[float]) -> float:
    return values[-1] if values else float("nan")


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
