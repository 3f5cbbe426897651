"""Intervals of measures: over prompts, because answers to one prompt are not independent of each other.

Everything that is resampled is a sum over rows, so that a million rows are added up once: one row of sums a prompt, then weights
for prompts. More prompts than MAX_BLOCKS are first pooled at random into that many blocks, which leaves the spread of a mean as
it is. Intervals are 95% percentile intervals unless a function says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fairlen.batch import Bools, Floats, Ints, sum_by

NUM_RESAMPLES = 1000
MAX_BLOCKS = 2000
Z95 = 1.959963984540054
NAN = float("nan")

Statistic = Callable[[Floats], Floats]
"""From sums [..., M] to one number [...] or several [..., K]."""


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval; nan where it does not exist."""

    value: float
    low: float = NAN
    high: float = NAN

    def __str__(self) -> str:
        return f"{self.value:.1%} [{self.low:.1%}, {self.high:.1%}]"

    def excludes(self, number: float) -> bool:
        """Whether the interval lies on one side of a number; false where there is no interval."""
        return self.low > number or self.high < number

    @property
    def exists(self) -> bool:
        return math.isfinite(self.value)


NOTHING = Estimate(NAN)


@dataclass(frozen=True)
class Estimates:
    """Several numbers with their 95% intervals, [K] each."""

    value: Floats
    low: Floats
    high: Floats

    def __len__(self) -> int:
        return len(self.value)

    def at(self, place: int) -> Estimate:
        return Estimate(float(self.value[place]), float(self.low[place]), float(self.high[place]))


def wilson(num_hits: Floats | Ints, num: Floats | Ints) -> Estimates:
    """Shares with Wilson's score intervals, [K]; nan of nothing. For independent draws: clustered ones spread more.

    Source: Wilson 1927;  (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n).
    """
    hits, size = np.asarray(num_hits, np.float64), np.asarray(num, np.float64)
    safe = np.where(size > 0, size, 1.0)
    share, z2 = hits / safe, Z95**2
    centre = (share + z2 / (2 * safe)) / (1 + z2 / safe)
    half = Z95 * np.sqrt(share * (1 - share) / safe + z2 / (4 * safe**2)) / (1 + z2 / safe)
    low = np.where(share == 0, 0.0, np.maximum(centre - half, 0.0))  # exactly, where rounding leaves 1e-17
    high = np.where(share == 1, 1.0, np.minimum(centre + half, 1.0))
    blank = np.where(size > 0, 0.0, np.nan)
    return Estimates(share + blank, low + blank, high + blank)


def blocks_of(cluster: Ints, seed: int = 0) -> tuple[Ints, int]:
    """The block of each row [N] and the number of blocks: a cluster each, or MAX_BLOCKS random sets of clusters."""
    present = np.bincount(cluster) > 0
    block = np.cumsum(present) - 1
    size = int(present.sum())
    if size > MAX_BLOCKS:
        block = np.random.default_rng((seed, 1)).permutation(size)[block] % MAX_BLOCKS
        size = MAX_BLOCKS
    return block[cluster], size


def sums_by_block(
    cluster: Ints, columns: Sequence[Floats | Ints | Bools], seed: int = 0, index: Ints | None = None, num_bins: int = 1
) -> Floats:
    """Sums of M columns [N] over blocks of clusters, and over bins where `index` says which, [blocks, M * bins]."""
    block, size = blocks_of(cluster, seed)
    place = block if index is None else block * num_bins + index
    return np.concatenate(
        [sum_by(place, column, size * num_bins).reshape(size, num_bins) for column in columns], axis=1
    )


@lru_cache(maxsize=2)
def draw_weights(size: int, seed: int) -> Floats:
    """How often each of `size` blocks is drawn in each resample, [resamples, size]; each row adds up to `size`."""
    rng = np.random.default_rng((seed, 2))
    return rng.multinomial(size, np.full(size, 1.0 / size), NUM_RESAMPLES).astype(np.float64)


def resample(sums: Floats, seed: int = 0) -> Floats:
    """Sums over bootstrap samples of blocks, from [blocks, M] to [resamples, M]."""
    return draw_weights(len(sums), seed) @ sums


def bootstrap(
    cluster: Ints,
    columns: Sequence[Floats | Ints | Bools],
    statistic: Statistic,
    index: Ints | None = None,
    num_bins: int = 1,
    seed: int = 0,
) -> Estimates:
    """A statistic of the sums of M columns [N] (by bin, [M * bins]), with percentile intervals over clusters [N].

    Resamples in which the statistic does not exist are left out. No interval of fewer than two clusters.
    """
    sums = sums_by_block(cluster, columns, seed, index, num_bins)
    value = np.atleast_1d(statistic(sums.sum(0)))
    none = np.full_like(value, np.nan)
    if len(sums) < 2:
        return Estimates(value, none, none)
    low, high = quantiles(statistic(resample(sums, seed)).reshape(NUM_RESAMPLES, -1))
    return Estimates(value, low + value * 0, high + value * 0)


def quantiles(drawn: Floats) -> tuple[Floats, Floats]:
    """The 2.5% and 97.5% quantiles of each column of [resamples, K], nan left out; nan of nothing."""
    low, high = np.full(drawn.shape[1], np.nan), np.full(drawn.shape[1], np.nan)
    for place, column in enumerate(drawn.T):
        known = column[np.isfinite(column)]
        if len(known):
            low[place], high[place] = np.quantile(known, [0.025, 0.975])
    return low, high


def ratio(above: Floats, below: Floats) -> Floats:
    """above / below, nan where below is 0."""
    above, below = np.broadcast_arrays(np.asarray(above, np.float64), np.asarray(below, np.float64))
    return np.divide(above, below, out=np.full(below.shape, np.nan), where=below != 0)


def mean_over(cluster: Ints, values: np.ndarray) -> Estimate:
    """The mean of values [N] with an interval over clusters [N]; nan of nothing.

    What happened always, or never, resampling takes for certain: then it is Wilson's interval for the number of clusters.
    """
    if not len(values):
        return NOTHING
    found = bootstrap(cluster, [values, np.ones(len(values))], lambda sums: ratio(sums[..., 0], sums[..., 1])).at(0)
    if found.value in (0.0, 1.0) and found.low == found.high and np.isin(values, (0, 1)).all():
        size = len(np.unique(cluster))
        return wilson(np.array([found.value * size]), np.array([size])).at(0)
    return found
