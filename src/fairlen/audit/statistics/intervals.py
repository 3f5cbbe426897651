"""95% intervals of measures over prompts, because responses to one prompt are not independent; and bins of length.

Most intervals are percentiles over bootstrap samples of prompts. Shares and means have their own methods, which also hold when
few prompts are known: `shares_over_clusters`, `mean` and, for independent draws, `wilson`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fairlen.batch import Bools, Floats, Ints, count_by, sum_by
from fairlen.distributions import student

NUM_RESAMPLES = 1000
NUM_DRAWS = 4000  # draws of weights for the interval of a share
MIN_BLOCKS = 5  # resamples of fewer prompts cannot spread as far as 95% intervals reach
MAX_BLOCKS = 2000  # more prompts are pooled at random into so many, which leaves the spread of a mean as it is
Z95 = 1.959963984540054
NAN = float("nan")
NUM_BINS = 10
MIN_IN_BIN = 30  # sequences in a bin of `length_bins`


class Estimate(NamedTuple):
    """A number with its 95% interval; nan where it does not exist."""

    value: float
    low: float = NAN
    high: float = NAN

    def __format__(self, form: str) -> str:
        """Return as 1.9 [1.7, 2.1], each number in a form such as .3g; the number alone where there is no interval."""
        interval = f" [{self.low:{form}}, {self.high:{form}}]" if self.low == self.low else ""
        return f"{self.value:{form}}{interval}"

    def excludes(self, number: float) -> bool:
        """Return whether the interval lies on one side of a number; false where there is no interval."""
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
        return Estimate(*(float(of[place]) for of in (self.value, self.low, self.high)))


@dataclass(frozen=True)
class Counted(Estimates):
    """One number a bin, [N], nan where nothing fell into it, and how many rows did."""

    count: Ints

    def of_at_least(self, number: int) -> Counted:
        value, low, high = (np.where(self.count >= number, v, np.nan) for v in (self.value, self.low, self.high))
        return Counted(value, low, high, self.count)

    def within(self, least: float, most: float) -> Counted:
        return Counted(self.value, np.maximum(self.low, least), np.minimum(self.high, most), self.count)


def ratio(above: Floats | Ints, below: Floats | Ints) -> Floats:
    """Return above / below, nan where below is 0."""
    above, below = np.broadcast_arrays(np.asarray(above, np.float64), np.asarray(below, np.float64))
    return np.divide(above, below, out=np.full(below.shape, np.nan), where=below != 0)


def wilson(num_hits: Floats | Ints, num: Floats | Ints, z: float = Z95) -> Estimates:
    """Return shares with Wilson's score intervals, [K]; nan of nothing. For independent draws: clustered ones spread more.

    Source: Wilson 1927;  (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n).
    """
    hits, size = np.asarray(num_hits, np.float64), np.asarray(num, np.float64)
    safe = np.where(size > 0, size, 1.0)
    share, z2 = hits / safe, z**2
    centre = (share + z2 / (2 * safe)) / (1 + z2 / safe)
    half = z * np.sqrt(share * (1 - share) / safe + z2 / (4 * safe**2)) / (1 + z2 / safe)
    low = np.where(share == 0, 0.0, np.maximum(centre - half, 0.0))  # exactly, where rounding leaves 1e-17
    high = np.where(share == 1, 1.0, np.minimum(centre + half, 1.0))
    blank = np.where(size > 0, 0.0, np.nan)
    return Estimates(share + blank, low + blank, high + blank)


def blocks_of(cluster: Ints) -> tuple[Ints, int]:
    """Return the block of each row [N] and the number of blocks: a cluster each, or MAX_BLOCKS random sets of clusters."""
    present = np.bincount(cluster) > 0
    block, size = np.cumsum(present) - 1, int(present.sum())
    if size > MAX_BLOCKS:
        block = np.random.default_rng((0, 1)).permutation(size)[block] % MAX_BLOCKS
        size = MAX_BLOCKS
    return block[cluster], size


def sums_by_block(
    cluster: Ints, columns: Sequence[Floats | Ints | Bools], index: Ints | None = None, num_bins: int = 1
) -> Floats:
    """Return sums of M columns [N] over blocks of clusters, and over bins where `index` says which, [blocks, M * bins]."""
    block, size = blocks_of(cluster)
    place = block if index is None else block * num_bins + index
    return np.concatenate([sum_by(place, one, size * num_bins).reshape(size, num_bins) for one in columns], axis=1)


@lru_cache(maxsize=2)
def draw_weights(size: int) -> Floats:
    """Return how often each of `size` blocks is drawn in each resample, [resamples, size]; each row adds up to `size`."""
    rng = np.random.default_rng((0, 2))
    return rng.multinomial(size, np.full(size, 1.0 / size), NUM_RESAMPLES).astype(np.float64)


def resample(sums: Floats) -> Floats:
    """Return sums over bootstrap samples of blocks, from [blocks, M] to [resamples, M]."""
    return draw_weights(len(sums)) @ sums


def bootstrap(
    cluster: Ints,
    columns: Sequence[Floats | Ints | Bools],
    statistic: Callable[[Floats], Floats],
    index: Ints | None = None,
    num_bins: int = 1,
) -> Estimates:
    """Return a statistic of the sums of M columns [N] (by bin, [M * bins]), with percentile intervals over clusters [N].

    The statistic is one number [...], or several [..., K], of sums [..., M]. Resamples in which it does not exist are left out.
    No interval of fewer than MIN_BLOCKS clusters.
    """
    sums = sums_by_block(cluster, columns, index, num_bins)
    value = np.atleast_1d(statistic(sums.sum(0)))
    if len(sums) < MIN_BLOCKS:
        return Estimates(value, *[np.full_like(value, np.nan)] * 2)
    low, high = quantiles(statistic(resample(sums)).reshape(NUM_RESAMPLES, -1))
    return Estimates(value, low + value * 0, high + value * 0)


def quantiles(drawn: Floats) -> tuple[Floats, Floats]:
    """Return the 2.5% and 97.5% quantiles of each column of [resamples, K], nan left out; nan of nothing."""
    low, high = np.full(drawn.shape[1], np.nan), np.full(drawn.shape[1], np.nan)
    for place, column in enumerate(drawn.T):
        known = column[np.isfinite(column)]
        if len(known):
            low[place], high[place] = np.quantile(known, [0.025, 0.975])
    return low, high


def ratio_over(cluster: Ints, above: np.ndarray, below: np.ndarray) -> Estimate:
    """Return sum of `above` [N] over sum of `below` [N] with an interval over clusters [N]; nan of nothing."""
    return bootstrap(cluster, [above, below], lambda sums: ratio(sums[..., 0], sums[..., 1])).at(0)


def mean_over(cluster: Ints, values: np.ndarray) -> Estimate:
    """Return the mean of values [N] with an interval over clusters [N].

    Shares, whose values are all 0 or 1, have the interval of `shares_over_clusters`; other means have Student's t interval.
    """
    if np.isin(values, (0, 1)).all():
        hits, number = (sums_by_block(cluster, [column]) for column in (values, np.ones(len(values))))
        return shares_over_clusters(hits, number).at(0)
    return mean(values, cluster, np.zeros(len(values), np.int64), 1).at(0)


def shares_over_clusters(hits: Floats, number: Floats) -> Estimates:
    """Return shares of hits with 95% intervals over clusters, from sums over each cluster.

    Args:
        hits: Hits in each cluster for K shares, [clusters, K]; between 0 and `number`.
        number: Size of each cluster, [clusters, 1].

    Returns:
        K shares, with the interval of `bounded_interval`; no interval (nan) for fewer than 2 clusters.
    """
    clusters = len(hits)
    share = ratio(hits.sum(0), number.sum())
    if clusters < 2:
        return Estimates(share, share * np.nan, share * np.nan)
    low, high = bounded_interval(draw_cluster_weights(clusters), hits, number)
    return Estimates(share, low, high)


@lru_cache(maxsize=2)
def draw_cluster_weights(size: int) -> Floats:
    """Return random weights of `size` clusters and of one more, [draws, size + 1].

    Each row is drawn uniformly from all weights that add up to 1. The weight of the one more has a beta distribution. Its evenly
    spaced quantiles are used in place of random draws, so that the ends of the interval are exact if all clusters are alike.
    """
    weights = np.random.default_rng((0, 3)).standard_exponential((NUM_DRAWS, size + 1))
    quantile = (np.arange(NUM_DRAWS) + 0.5) / NUM_DRAWS
    extra = 1.0 - (1.0 - quantile) ** (1.0 / size)
    weights[:, :-1] *= ((1.0 - extra) / weights[:, :-1].sum(1))[:, None]
    weights[:, -1] = extra
    return weights


def bounded_interval(weights: Floats, hits: Floats, number: Floats) -> tuple[Floats, Floats]:
    """Return the ends of 95% intervals of K shares, [K] each, from random weights of the clusters.

    The lower end assumes one more cluster without a hit, the upper end one more cluster of hits only; both have the mean size of
    the clusters. Each draw weighs the clusters at random, and the ends are the 2.5% and 97.5% quantiles of the weighted shares.
    For clusters of one size that are all hits or no hits this is the Clopper-Pearson interval. That it holds for every
    distribution between 0 and 1 is conjectured; the authors' simulations and benchmarks/eval_truth.py found no exception.

    Source: Gaffke 2005, in the form of Learned-Miller and Thomas, arXiv:1905.06208, there for clusters of one size.

    Args:
        weights: Weights of the clusters, and in the last column of the one more, [draws, clusters + 1].
        hits: Hits in each cluster, [clusters, K].
        number: Size of each cluster, [clusters, 1].
    """
    own_weight, extra_weight = weights[:, :-1], weights[:, -1:]
    extra = extra_weight * number.mean()
    weighted_hits = own_weight @ hits
    total = own_weight @ number + extra
    low = np.quantile(weighted_hits / total, 0.025, axis=0)
    high = np.quantile((weighted_hits + extra) / total, 0.975, axis=0)
    share = ratio(hits.sum(0), number.sum())
    is_zero, is_one = share <= 1e-12, share >= 1 - 1e-12  # the end there is exact; rounding would leave 1e-17
    return np.where(is_zero, 0.0, np.maximum(low, 0.0)), np.where(is_one, 1.0, np.minimum(high, 1.0))


def rate(hits: Bools | Floats, cluster: Ints, bin: Ints, size: int) -> Counted:
    """Return shares by bin, of numbers in 0..1, with Wilson's interval.

    Its sample size is the number of rows over the design effect: by how much clusters vary more than independent rows would, over
    all bins together, as a bin without a hit cannot show it. At least 1 for yes and no; a single cluster counts as one row.
    """
    count, total = count_by(bin, size), sum_by(bin, hits, size)
    value = ratio(total, count)
    variance, clusters = between(np.asarray(hits, np.float64), value, cluster, bin, size)
    spread, usable = value * (1 - value), clusters > 1
    alone = float((spread / np.maximum(count - 1, 1))[usable].sum())
    effective = clusters
    if alone > 0:
        effect = max(float(variance[usable].sum()) / alone, 1.0 if np.isin(hits, (0, 1)).all() else 1e-3)
        effective = np.where(usable, np.maximum(count / effect, 1.0), clusters)
    effective = np.maximum(effective, 1e-9)
    found = wilson(value * effective, effective)
    return Counted(value, found.low, found.high, count.astype(np.int64))


def mean(values: Ints | Floats, cluster: Ints, bin: Ints, size: int) -> Counted:
    """Return means by bin; no interval (nan) for a single cluster."""
    values = np.asarray(values, np.float64)
    count, total = count_by(bin, size), sum_by(bin, values, size)
    value = ratio(total, count)
    variance, clusters = between(values, value, cluster, bin, size)
    half = np.array([student(0.975, n - 1) if n > 1 else np.nan for n in clusters.tolist()]) * np.sqrt(variance)
    return Counted(value, value - half, value + half, count.astype(np.int64))


def between(values: Floats, value: Floats, cluster: Ints, bin: Ints, size: int) -> tuple[Floats, Floats]:
    """Return the variance of each bin's mean over clusters (linearised ratio), and the number of clusters in each bin."""
    number = int(cluster.max(initial=0)) + 1
    cells, cell = np.unique(bin * number + cluster, return_inverse=True)
    of_bin = cells // number
    residual = sum_by(cell, values - value[bin], len(cells))
    clusters = count_by(of_bin, size)
    factor = clusters / np.maximum(clusters - 1, 1) / np.maximum(count_by(bin, size), 1) ** 2
    return sum_by(of_bin, residual**2, size) * factor, clusters


@dataclass(frozen=True)
class Bins:
    """[K] bins of [N] sequences, from the shortest; equal lengths are never apart."""

    index: Ints  # bin of each sequence, [N]
    low: Ints
    high: Ints
    count: Ints

    def __len__(self) -> int:
        return len(self.count)

    def names(self) -> list[str]:
        """Return the lengths of each bin as "1,010 to 1,200"."""
        return [f"{low:,} to {high:,}" for low, high in zip(self.low, self.high, strict=True)]


def length_bins(length: Ints, num_bins: int = NUM_BINS, least: int = MIN_IN_BIN) -> Bins:
    """Return quantile bins of lengths [N]; fewer than `num_bins` where there are too few sequences or too many ties.

    A bin ends at the first length at which it has its share of what is left, so that no bin has fewer than `least` sequences
    unless all of them together do. No bin of no sequences.
    """
    values, count = np.unique(length, return_counts=True)
    left, done, ends = max(1, min(num_bins, len(length) // least)), 0, []
    for place, reached in enumerate(np.cumsum(count).tolist()):
        share = max((len(length) - done) / left, least)
        if left > 1 and reached - done >= share - 1e-9 and len(length) - reached >= least:
            ends.append(place)
            done, left = reached, left - 1
    last = np.array([*ends, len(values) - 1], np.int64)[: len(values)]
    first = np.array([0, *(end + 1 for end in ends)], np.int64)[: len(values)]
    index = np.searchsorted(values[last], length)
    return Bins(index, values[first], values[last], np.bincount(index, minlength=len(last)))
