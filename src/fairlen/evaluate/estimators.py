"""Estimates from samples of held-out problems, with intervals over problems: samples of one problem are not independent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairlen.audit.statistics.intervals import Estimate, bounded_interval, draw_cluster_weights, sums_by_block
from fairlen.batch import Bools, Floats, Ints

NUM_RESAMPLES = 10_000
MAX_PICKS = 5_000_000
"""Numbers held at once."""


def mean_by_problem(values: Floats) -> Estimate:
    """Return avg@k: the mean over problems of the mean over their k samples, from [problems, k], with its 95% interval."""
    return mean_of_problems(values.mean(1))


def mean_of_problems(each: Floats) -> Estimate:
    """Return the mean over problems of a number between 0 and 1, such as pass@k, with its 95% interval over problems.

    The interval holds at every accuracy and for few problems, because each end allows for one more problem that the sample has
    missed: never solved for the lower end, always solved for the upper one. See `bounded_interval`.

    Args:
        each: One number for each problem, [problems], between 0 and 1.

    Raises:
        ValueError: A number is not between 0 and 1.
    """
    if not ((each >= -1e-9) & (each <= 1 + 1e-9)).all():
        raise ValueError(f"numbers from {each.min():g} to {each.max():g}: shares of problems lie between 0 and 1")
    values, number = (sums_by_block(np.arange(len(each)), [column]) for column in (each, np.ones(len(each))))
    low, high = bounded_interval(draw_cluster_weights(len(values)), values, number)
    return Estimate(float(each.mean()), float(low[0]), float(high[0]))


def mean_of_sets(sets: Sequence[Floats]) -> Estimate:
    """Return the mean over sets of their means over problems, with its 95% interval.

    The distances from each set's mean to the ends of its interval are combined as independent errors are, by the root of the sum
    of squares (Zou and Donner 2008). So a set in which no problem is solved still widens the interval upwards.
    """
    value, low, high = np.array([mean_of_problems(each) for each in sets]).T
    below, above = np.linalg.norm([value - low, high - value], axis=1) / len(sets)
    return Estimate(float(value.mean()), float(value.mean() - below), float(value.mean() + above))


def difference_by_problem(values: Floats, baseline: Floats) -> Estimate:
    """Return the mean of one method minus that of another on the same problems, from [problems, k] each.

    The interval holds the percentiles over resampled problems. Unlike that of a share it cannot allow for problems that the
    sample has missed: if few problems can change at all, as at an accuracy of 2% with 30 problems, it is too narrow.
    """
    if len(values) != len(baseline):
        raise ValueError(f"{len(values)} and {len(baseline)} problems: a paired difference needs the same in one order")
    each = values.mean(1) - baseline.mean(1)
    return percentile_interval(float(each.mean()), resampled_means(each))


def percentile_interval(value: float, drawn: Floats) -> Estimate:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(value, float(low), float(high))


def resampled_means(each: Floats) -> Floats:
    """Return means of NUM_RESAMPLES draws of problems with replacement, [NUM_RESAMPLES]; the same every time."""
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
