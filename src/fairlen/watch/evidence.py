"""Evidence that length and correctness go together within prompts and steps, valid whenever it is looked at.

Assumed is that, given the lengths of the responses to one prompt in one step and how many are correct, every assignment of
verdicts is equally likely: then each statistic x of such a group has mean 0, and a trend of length or accuracy cancels. Tested is
the wider hypothesis that no group's mean is beyond the audit's margin m.

For a stake s fixed before the verdicts, the product over groups of 1 + s (x - m) is a nonnegative supermartingale (Waudby-Smith
and Ramdas, arXiv:2010.09686, section 4). So is its average over stakes and statistics, and over onsets, where a share
1 / (t (t + 1)) of the capital is staked from step t on (Shin, Ramdas and Rinaldo, arXiv:2203.03532). It ever reaches 1 / a with
probability at most a (Ville 1939). The *confidence sequence* has all m whose product from the onset on is small, at the share
1 / (t (t + 1)) of the error for onset t: it covers an effect of one size since then, for an onset chosen after the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from fairlen.audit.conclusion import Margins, Name
from fairlen.audit.statistics.intervals import Estimate
from fairlen.audit.statistics.within import equal_groups, pair_sums
from fairlen.batch import Floats, Ints

NAMES: tuple[Name, ...] = ("gap", "order")
"""The statistics, as the audit calls them."""
CLIP = 1.0
"""Nats from its group's median beyond which a log length counts as that far: 2.7 times as long. Bounds the statistic."""
BOUNDS = np.array([2 * CLIP, 0.5])
"""Largest size of each statistic: difference of log lengths, and share of pairs minus a half."""
STAKES = np.array([0.1, 0.2, 0.4, 0.8, 1.6])
"""Of a group of k correct and m incorrect responses, times k m / (k + m); at most MOST of what loses all."""
MOST = 0.95
SIDES = np.array([1.0, -1.0])
"""Incorrect responses longer, and shorter."""


def compare_groups(stratum: Ints, outcome: Floats, length: Ints) -> tuple[Ints, Floats]:
    """Return the strata with a better and a worse response, [S], and of each its weight km / (k + m) and statistics, [S, 3].

    The statistics are means over pairs: log length of the worse response minus that of the better one, and the share in which the
    worse one is the longer, minus a half.
    """
    found: list[Floats] = [np.zeros((0, 5))]
    x = np.log(np.maximum(length, 1).astype(np.float64))
    for rows in equal_groups(stratum):
        near = x[rows] - np.median(x[rows], 1, keepdims=True)
        sums = pair_sums(outcome[rows], np.clip(near, -CLIP, CLIP), near)[:, :4]
        found.append(np.column_stack([sums, stratum[rows[:, 0]].astype(np.float64)]))
    sums = np.concatenate(found)
    pairs, size, gap, order, number = sums[sums[:, 0] > 0].T
    return number.astype(np.int64), np.stack([pairs / size, gap / pairs, order / pairs], 1)


@dataclass
class EProcess:
    """The evidence of a run, a step at a time: for incorrect responses that are longer, and for shorter ones."""

    margins: Margins = field(default_factory=Margins)
    groups: list[Floats] = field(default_factory=list)
    """Weight and statistics of each step's groups, [S, 3] each: all else follows from these."""
    wealth: Floats = field(default_factory=lambda: np.full((2, 2, len(STAKES)), -np.inf))
    """Log of what was staked from any onset on, by statistic, side and stake."""
    growth: Floats = field(default_factory=lambda: np.zeros((2, 2, len(STAKES))))
    """Log of the factor since the best onset."""
    onset: Ints = field(default_factory=lambda: np.zeros((2, 2, len(STAKES)), np.int64))
    """Position of that onset among the steps."""

    @property
    def margin(self) -> Floats:
        return np.array([self.margins.of(name) for name in NAMES])

    def add(self, groups: Floats) -> None:
        """Add a step's groups, weight and statistics [S, 3]; a step without groups changes nothing but the clock."""
        self.groups.append(groups)
        count, weight, values = len(self.groups), groups[:, 0], groups[:, 1:]
        stakes = find_stakes(weight, BOUNDS + self.margin)
        beyond = SIDES * values[:, :, None] - self.margin[:, None]  # [S, 2, 2]
        gained = np.log1p(stakes[:, :, None] * beyond[..., None]).sum(0)
        self.wealth = np.logaddexp(self.wealth, -math.log(count * (count + 1))) + gained
        self.onset = np.where(self.growth <= 0, count - 1, self.onset)
        self.growth = np.maximum(self.growth, 0.0) + gained

    def measure(self, side: int) -> float:
        """Return the e-value against no effect beyond the margins on a side, 0 for longer, 1 for shorter."""
        idle = 1 / (len(self.groups) + 1)  # of the capital, not staked yet
        return float(np.exp(np.minimum(self.wealth[:, side], 700.0)).mean()) + idle

    def find_onset(self, side: int) -> int:
        """Return the position of the step from which the evidence is strongest: an estimate."""
        return int(self.onset[:, side].flat[self.growth[:, side].argmax()])

    def estimate(self, onset: int, level: float = 0.95) -> dict[Name, Estimate]:
        """Return the statistics since the step at a position, with their confidence sequences."""
        weight, *statistics = np.concatenate(self.groups[onset:]).T
        spent = math.log(2 * (onset + 1) * (onset + 2) / (1 - level))
        each = zip(NAMES, statistics, BOUNDS.tolist(), strict=True)
        return {name: bound_mean(weight, x, most, spent) for name, x, most in each}

    def find(self, side: int, error: float) -> dict[Name, Estimate]:
        """Return the sizes whose sequences have left the margin on a side, none while the e-value is below 1 / error."""
        found = self.estimate(self.find_onset(side)) if self.measure(side) >= 1 / error else {}
        return {name: one for name, one in found.items() if (-one.high if side else one.low) > self.margins.of(name)}


def find_stakes(weight: Floats, room: Floats) -> Floats:
    """Return stakes on groups, [S, K, L], of which none can lose all where a value may fall `room` [K] short of its mean."""
    return np.minimum(weight[:, None, None] * STAKES, MOST / room[:, None])


def bound_mean(weight: Floats, x: Floats, most: float, spent: float) -> Estimate:
    """Return the weighted mean of values in [-most, most], [S], and the means whose e-process is below exp(spent)."""
    if not weight.any():
        return Estimate(math.nan, -most, most)
    value = float((weight * x).sum() / weight.sum())
    stakes = find_stakes(weight, np.array([2 * most]))[:, 0]

    def bound(side: float) -> float:
        low, high = -most, most
        for _ in range(30):  # the e-process falls in the mean
            middle = (low + high) / 2
            grown = np.log1p(stakes * (side * x - middle)[:, None]).sum(0)
            is_out = np.logaddexp.reduce(grown) - math.log(len(STAKES)) >= spent
            low, high = (middle, high) if is_out else (low, middle)
        return low

    return Estimate(value, bound(1.0), -bound(-1.0))
