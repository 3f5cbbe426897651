"""Estimates from samples of held-out problems, with intervals over problems: samples of one problem are not independent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairlen.audit.statistics.intervals import Estimate, share_of
from fairlen.batch import Bools, Floats, Ints

NUM_RESAMPLES = 10_000
MAX_PICKS = 5_000_000
"""Numbers held at once."""


def mean_by_problem(values: Floats) -> Estimate:
    """avg@k: the mean over problems of the mean over their k samples, from [problems, k]; resamples problems."""
    return mean_of_problems(values.mean(1))


def mean_of_problems(each: Floats) -> Estimate:
    """Mean of one number in 0..1 a problem, such as its pass@k; resamples problems. For equal numbers see `are_alike`."""
    return share_of(each) if are_alike(each) else percentile_interval(float(each.mean()), resampled_means(each))


def mean_of_sets(sets: Sequence[Floats]) -> Estimate:
    """Mean over sets of their means over problems, whose distances to their ends add up as independent errors do.

    So that a set in which no problem is solved is not known exactly: recovered variances (Zou and Donner 2008).
    """
    value, low, high = np.array([mean_of_problems(each) for each in sets]).T
    below, above = np.linalg.norm([value - low, high - value], axis=1) / len(sets)
    return Estimate(float(value.mean()), float(value.mean() - below), float(value.mean() + above))


def difference_by_problem(values: Floats, baseline: Floats) -> Estimate:
    """Mean of one method minus that of another on the same problems, from [problems, k] each; resamples problems."""
    if len(values) != len(baseline):
        raise ValueError(f"{len(values)} and {len(baseline)} problems: a paired difference needs the same in one order")
    each = values.mean(1) - baseline.mean(1)
    return percentile_interval(float(each.mean()), resampled_means(each))


def are_alike(each: Floats) -> bool:
    """True where all problems have the same number in 0..1, so that resampling them shows no spread.

    Then the mean has Wilson's interval, 0% to 32% for 0 of 8: of all numbers with that mean, 0 and 1 spread most.
    """
    return bool(0.0 <= each[0] <= 1.0 and (each == each[0]).all())


def percentile_interval(value: float, drawn: Floats) -> Estimate:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(value, float(low), float(high))


def resampled_means(each: Floats) -> Floats:
    """Means of NUM_RESAMPLES draws of problems with replacement, in parts of few rows; the same every time."""
    rng, size = np.random.default_rng(0), len(each)
    rows = max(1, MAX_PICKS // size)
    parts = [min(rows, NUM_RESAMPLES - start) for start in range(0, NUM_RESAMPLES, rows)]
    return np.concatenate([each[rng.integers(0, size, (part, size))].mean(1) for part in parts])


def pass_at(num_correct: Floats | Ints, num_samples: int | Ints, k: int) -> Floats:
    """pass@k of each problem, 1 - C(n - c, k) / C(n, k): unbiased (arXiv:2107.03374, equation 1). One n, or one each."""
    if not 1 <= k <= np.min(num_samples):
        raise ValueError(f"k={k} of {np.min(num_samples)} samples: pass@k needs 1 <= k <= samples")
    num_incorrect = num_samples - np.asarray(num_correct, np.float64)
    drawn = np.arange(k).reshape(-1, *[1] * num_incorrect.ndim)
    return 1.0 - np.prod(np.maximum(num_incorrect - drawn, 0.0) / (num_samples - drawn), axis=0)


def best_at(num_correct: Floats | Ints, num_samples: int | Ints, k: int) -> Floats:
    """verl's best@k of verdicts in the limit of many draws: 1 - (1 - c / n)^k, with replacement, so below pass@k."""
    return 1.0 - (1.0 - np.asarray(num_correct, np.float64) / num_samples) ** k


def majority(labels: Ints, correct: Bools) -> float:
    """maj@n of one problem: whether its most frequent answer is correct, of ties the share; `labels` < 0 do not vote."""
    voted = labels >= 0
    if not voted.any():
        return 0.0
    _, place, votes = np.unique(labels[voted], return_inverse=True, return_counts=True)
    is_correct = np.bincount(place, correct[voted]) > 0
    return float(is_correct[votes == votes.max()].mean())
