"""Effects of length within prompts: each correct response is compared with each incorrect one to the same prompt in one step.

What makes a prompt hard, or a step early, is the same on both sides of such a pair, so that it can explain none of these effects.
They are associations all the same: of two responses to one prompt the longer one may be incorrect because it is long, or long
because it was lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from fairlen.batch import Floats, Ints, sum_by

MAX_GROUP = 256
"""Responses of one prompt and step that are compared with each other; of more, so many drawn at random."""
MAX_CELLS = 1 << 22
"""Pairs that are held at a time."""
NORMAL = NormalDist()


@dataclass(frozen=True)
class Effect:
    """A mean over pairs, and how far it may be from the truth. `nan` where nothing could be compared."""

    value: float
    error: float
    """Standard error: delete-one jackknife over prompts."""
    freedom: float
    """Degrees of freedom: prompts, counted by their share of the weight, minus one."""
    num_prompts: int
    """Prompts with a pair."""

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return bounds that cover the truth with that probability, by Student's t."""
        half = student(0.5 + level / 2, self.freedom) * self.error
        return self.value - half, self.value + half

    @property
    def p_value(self) -> float:
        """Return how often no effect would look this large, two-sided."""
        return two_sided(self.value / self.error, self.freedom) if self.error > 0 else float(not self.value)

    def is_within(self, margin: float) -> bool:
        """Return whether the 90% interval lies within plus or minus `margin`: two one-sided tests at 5%."""
        low, high = self.interval(0.9)
        return -margin < low and high < margin

    @property
    def smallest(self) -> float:
        """Return the effect that a log like this one shows in four of five cases."""
        return (student(0.975, self.freedom) + student(0.8, self.freedom)) * self.error


@dataclass(frozen=True)
class Within:
    """Three effects, each a weighted mean over prompts of a mean over pairs of a better and a worse response.

    A prompt with k correct and m incorrect responses weighs k m / (k + m), which is best where the effect is the same everywhere
    (van Elteren 1960).
    """

    gap: Effect
    """Log length of the worse response minus that of the better one."""
    order: Effect
    """Share of pairs in which the worse response is the longer one, minus a half; ties count half."""
    bend: Effect
    """Share of pairs in which the worse response is farther from the prompt's median length (by rank), minus a half: above 0
    where responses of medium length are the best."""


def compare_within(stratum: Ints, prompt: Ints, outcome: Floats, length: Floats) -> Within:
    """Return the effects of length on outcome within strata [N], with errors over prompts [N].

    A stratum is what can be compared: responses to one prompt in one step. A prompt may have many strata.
    """
    sums, cluster = np.zeros((0, 5)), np.zeros(0, np.int64)
    parts = [(pair_sums(outcome[rows], length[rows]), prompt[rows[:, 0]]) for rows in equal_groups(stratum)]
    if parts:
        sums, cluster = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
    known = sums[:, 0] > 0
    _, place = np.unique(cluster[known], return_inverse=True)
    size, each = int(place.max(initial=-1)) + 1, sums[known] / sums[known, 1:2]
    weight = sum_by(place, each[:, 0], size)
    return Within(*(jackknife(sum_by(place, each[:, k], size), weight) for k in (2, 3, 4)))


def equal_groups(stratum: Ints) -> Iterator[Ints]:
    """Yield rows of strata of one size, [strata, size]; of more than MAX_GROUP rows so many at random, of one row none."""
    rows = np.random.default_rng(0).permutation(len(stratum))
    rows = rows[np.argsort(stratum[rows], kind="stable")]
    _, start, count = np.unique(stratum[rows], return_index=True, return_counts=True)
    count = np.minimum(count, MAX_GROUP)
    for size in np.unique(count[count > 1]).tolist():
        starts = start[count == size]
        step = max(MAX_CELLS // size**2, 1)
        for first in range(0, len(starts), step):
            yield rows[starts[first : first + step, None] + np.arange(size)]


def pair_sums(outcome: Floats, length: Floats) -> Floats:
    """Return pairs, responses, and the sums of the three comparisons over pairs, of strata [S, n]; [S, 5]."""
    size = outcome.shape[1]
    better = outcome[:, :, None] > outcome[:, None, :]
    surplus = better.sum(1) - better.sum(2)  # by how many more it is beaten than it beats
    longer = sign_of(length)
    rank = longer.sum(2) / 2
    gap = (np.log(length) * surplus).sum(1)
    order = -(better * longer).sum((1, 2)) / 2
    bend = -(better * sign_of(np.abs(rank))).sum((1, 2)) / 2
    return np.stack([better.sum((1, 2)), np.full(len(outcome), size), gap, order, bend], 1).astype(np.float64)


def sign_of(values: Floats) -> np.ndarray:
    """Return 1 where the first of two is larger, -1 where it is smaller, [S, n, n]."""
    one, other = values[:, :, None], values[:, None, :]
    return (one > other).astype(np.int8) - (one < other)


def jackknife(above: Floats, below: Floats) -> Effect:
    """Return sum of `above` over sum of `below`, of prompts [K], with the error over them."""
    size = len(above)
    if size < 2:
        return Effect(float("nan"), float("nan"), 0.0, size)
    total, weight = above.sum(), below.sum()
    without = (total - above) / (weight - below)
    error = math.sqrt((size - 1) / size * ((without - without.mean()) ** 2).sum())
    value = float(total / weight)
    # what is the same in every prompt seen may still differ in the next one
    return Effect(value, max(error, abs(value) / size), float(weight**2 / (below**2).sum()) - 1.0, size)


def two_sided(t: float, freedom: float) -> float:
    """Return the two-sided p-value of Student's t, by a normal deviate of the same probability (Wallace 1959), to 0.001."""
    scaled = (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(t * t / freedom))
    return math.erfc(scaled / math.sqrt(2))


def student(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t at a probability above a half: the inverse of `two_sided`."""
    if not freedom > 0:
        return float("inf")
    deviate = NORMAL.inv_cdf(probability) * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(deviate * deviate / freedom))


def are_discoveries(p_values: list[float], rate: float = 0.05) -> list[bool]:
    """Return which of several findings stand at a false discovery rate (Benjamini and Hochberg 1995); nan never does."""
    known = sorted(p for p in p_values if not math.isnan(p))
    bars = [p for place, p in enumerate(known, 1) if p <= rate * place / len(known)]
    return [p <= max(bars, default=-1.0) for p in p_values]
