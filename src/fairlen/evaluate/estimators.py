"""Estimates from samples of held-out problems, with intervals over problems.

Samples of one problem are not independent of each other, so that intervals resample problems, never single samples. Tables are
[problems, samples], the same number of samples for every problem, unless a function says otherwise.

How often 95% intervals of avg@4 hold the true mean, in %, in 4000 simulations of 30, 100 and 300 problems whose difficulties are
drawn from a Beta distribution (standard error of the table: 0.35):

    difficulties    mean_by_problem     +- 1.96 clustered_error   mean_two_level
    Beta(2, 2)      94.6  94.6  94.7    93.7  94.5  94.9          98.8  99.0  98.8
    Beta(1, 1)      94.4  94.6  95.3    93.4  94.2  95.1          98.2  97.8  98.1
    Beta(0.3, 0.3)  94.2  95.3  94.7    93.2  95.1  94.6          95.9  96.6  96.3
    Beta(0.5, 2)    93.7  95.1  95.2    92.6  94.6  95.3          97.8  98.1  98.5
    Beta(0.2, 1.8)  91.1  93.6  95.2    89.2  92.4  94.9          96.8  97.5  98.2

So with 100 problems or more `mean_by_problem` is within 2 points of its name; with 30 (AIME) it is 1 point short where
difficulties are spread evenly, and 4 where most problems are out of reach.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fairlen.batch import Bools, Floats, Ints, count_by, sum_by
from fairlen.diagnostics.uncertainty import wilson

NUM_RESAMPLES = 10_000
NUM_SUBSETS = 1000
MAX_PICKS = 5_000_000
"""Numbers held at once."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95% interval: percentile bootstrap, and Wilson's where all problems are alike."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1%} [{self.low:.1%}, {self.high:.1%}]"


def mean_by_problem(values: Floats) -> Interval:
    """avg@k: the mean over problems of the mean over their k samples, from [problems, k]; resamples problems."""
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"values of shape {values.shape}: give one row a problem and one column a sample")
    return mean_of_problems(values.mean(1))


def mean_of_problems(each: Floats) -> Interval:
    """The mean of one number in 0..1 a problem, such as its pass@k; resamples problems. Where all are alike, see `alike_mean`."""
    return alike_mean(each) if is_alike(each) else interval_of(float(each.mean()), resampled_means(each))


def mean_of_sets(sets: Sequence[Floats]) -> Interval:
    """The mean over sets of the mean over each set's problems, however many a set has; resamples the problems of each set.

    Where the problems of every set are alike, the ends are the means of those of `alike_mean`: wider than they have to be.
    """
    value = float(np.mean([each.mean() for each in sets]))
    if all(map(is_alike, sets)):
        found = [alike_mean(each) for each in sets]
        return Interval(value, float(np.mean([one.low for one in found])), float(np.mean([one.high for one in found])))
    return interval_of(value, np.mean([resampled_means(each, seed) for seed, each in enumerate(sets)], axis=0))


def is_alike(each: Floats) -> bool:
    """Whether all problems have the same number in 0..1, so that resampling them shows no spread."""
    return bool(0.0 <= each[0] <= 1.0 and (each == each[0]).all())


def alike_mean(each: Floats) -> Interval:
    """The mean of problems with the same number in 0..1, with Wilson's score interval: 0% to 32% where none of 8 is solved.

    As if every problem was right or wrong as a whole: of all numbers in 0..1 with a given mean those spread most.
    """
    found = wilson(np.array([each.sum()]), np.array([len(each)])).at(0)
    return Interval(float(each.mean()), found.low, found.high)


def resampled_means(each: Floats, seed: int = 0) -> Floats:
    """Means of resampled problems, [NUM_RESAMPLES]."""
    return np.concatenate([each[picks].mean(1) for picks in resamples(len(each), seed=seed)])


def mean_two_level(values: Floats) -> Interval:
    """avg@k, resampling problems and then, within each, samples.

    The spread of problem means already has that of samples in it, which is so counted twice: for few samples of each problem
    these intervals are too wide (see the table). For the uncertainty about new problems use `mean_by_problem`.
    """
    mean_by_problem(values[:1])  # checks the shape
    num_problems, k = values.shape
    rng, means = np.random.default_rng((0, 1)), []
    for picks in resamples(num_problems, k):
        drawn = rng.integers(0, k, (*picks.shape, k))
        means.append(np.take_along_axis(values[picks], drawn, 2).mean((1, 2)))
    return interval_of(float(values.mean()), np.concatenate(means))


def difference_by_problem(values: Floats, baseline: Floats) -> Interval:
    """Mean of one method minus that of another on the same problems, from [problems, k] each; resamples problems, both alike."""
    if len(values) != len(baseline):
        raise ValueError(
            f"{len(values)} and {len(baseline)} problems: a paired difference needs the same ones, in one order"
        )
    each = values.mean(1) - baseline.mean(1)
    return interval_of(float(each.mean()), resampled_means(each))


def interval_of(value: float, drawn: Floats) -> Interval:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(value, float(low), float(high))


def resamples(num_problems: int, per_problem: int = 1, seed: int = 0) -> Iterator[Ints]:
    """NUM_RESAMPLES draws of as many problems, with replacement, in parts of few enough rows; the same every time."""
    rng = np.random.default_rng(seed)
    rows = max(1, MAX_PICKS // (num_problems * per_problem))
    for start in range(0, NUM_RESAMPLES, rows):
        yield rng.integers(0, num_problems, (min(rows, NUM_RESAMPLES - start), num_problems))


def clustered_error(values: Floats, problem: Ints) -> float:
    """Standard error of the mean of values [N] whose problems [N] may have any number of samples.

        sqrt(sum_p (sum_i (s_pi - mean))^2) / N

    Source: arXiv:2411.00640 (the plain standard error plus covariances within problems). 1.96 of it on both sides
    covers as percentile intervals do; below 100 problems it falls short (see the table).
    """
    _, place = np.unique(problem, return_inverse=True)
    size = int(place.max(initial=-1)) + 1
    if not size:
        return math.nan
    return float(np.sqrt((sum_by(place, values - values.mean(), size) ** 2).sum()) / len(values))


def pass_at(num_correct: Floats | Ints, num_samples: int | Ints, k: int) -> Floats:
    """pass@k of each problem, 1 - C(n - c, k) / C(n, k): unbiased; needs n >= k (arXiv:2107.03374, equation 1).

    n is the same for all problems or one number for each.
    """
    check_k(k, num_samples)
    num_incorrect = num_samples - np.asarray(num_correct, np.float64)
    drawn = np.arange(k).reshape(-1, *[1] * num_incorrect.ndim)
    return 1.0 - np.prod(np.maximum(num_incorrect - drawn, 0.0) / (num_samples - drawn), axis=0)


def pass_interval(right: Bools, k: int) -> Interval:
    """pass@k over problems, from [problems, samples]; resamples problems, with the closed form within each."""
    return mean_of_problems(pass_at(right.sum(1), right.shape[1], k))


def best_at(num_correct: Floats | Ints, num_samples: int | Ints, k: int) -> Floats:
    """verl's best@k of verdicts: 1 - (1 - c / n)^k, k draws with replacement; n as in `pass_at`.

    Not pass@k: it is lower for 1 < k, and below 1 for k = n unless every sample is right. verl draws 1000 times; this is what
    it approaches.
    """
    check_k(k, num_samples)
    return 1.0 - (1.0 - np.asarray(num_correct, np.float64) / num_samples) ** k


def majority_at(labels: Ints, right: Bools, k: int) -> Floats:
    """maj@k of each problem: how often the most frequent answer of k of its samples is right, [problems].

    `labels` [problems, n] number the answers of a problem from 0, below 0 is no answer, which has no vote. Ties count by the
    share of right answers among the tied. Exact for k = n; else the mean over 1000 random subsets without replacement.
    """
    num_problems, n = labels.shape
    check_k(k, n)
    kinds = int(labels.max(initial=-1)) + 1
    if kinds == 0:
        return np.zeros(num_problems)
    is_correct = np.zeros((num_problems, kinds), np.bool_)
    rows, columns = np.nonzero(right & (labels >= 0))
    is_correct[rows, labels[rows, columns]] = True
    if k == n:
        return vote(labels, is_correct)
    rng, total = np.random.default_rng((0, 2)), np.zeros(num_problems)
    for _ in range(NUM_SUBSETS):
        chosen = np.argpartition(rng.random(labels.shape), k - 1, axis=1)[:, :k]
        total += vote(np.take_along_axis(labels, chosen, 1), is_correct)
    return total / NUM_SUBSETS


def vote(labels: Ints, is_correct: Bools) -> Floats:
    """Share of right ones among the most frequent answers of each row, [problems]; 0 where nobody answered."""
    num_problems, kinds = is_correct.shape
    rows, columns = np.nonzero(labels >= 0)
    votes = count_by(rows * kinds + labels[rows, columns], num_problems * kinds).reshape(num_problems, kinds)
    top = (votes == votes.max(1, keepdims=True)) & (votes > 0)
    return (top & is_correct).sum(1) / np.maximum(top.sum(1), 1)


def check_k(k: int, num_samples: int | Ints) -> None:
    fewest = int(np.min(num_samples))
    if not 1 <= k <= fewest:
        raise ValueError(f"k={k} of {fewest} samples: pass@k needs 1 <= k <= samples")
