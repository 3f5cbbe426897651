"""Rates and means with intervals over prompts, bins of length and stretches of training: pure functions of columns.

Responses to one prompt are alike, so prompts are what is resampled in thought: every interval is for the number of prompts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlen.batch import Bools, Floats, Ints, count_by, sum_by
from fairlen.diagnostics.uncertainty import Z95, Estimates, ratio, wilson

MOST_WINDOWS = 40
MOST_BINS = 14
FEWEST = 5
"""Rows that a bin of length needs to be drawn."""


@dataclass(frozen=True)
class Counted(Estimates):
    """One number a bin, [N], nan where nothing fell into it, and how many rows did."""

    count: Ints

    def of_at_least(self, number: int) -> Counted:
        """The same without bins that hold fewer rows."""
        value, low, high = (np.where(self.count >= number, v, np.nan) for v in (self.value, self.low, self.high))
        return Counted(value, low, high, self.count)


@dataclass(frozen=True)
class EdgeBins:
    """Consecutive stretches of a quantity, whatever falls into them; bins.Bins hold about as many sequences each."""

    edges: Floats
    """[N + 1], ascending."""

    def __len__(self) -> int:
        return len(self.edges) - 1

    def place(self, values: Ints | Floats) -> Ints:
        """The bin of each value; those beyond the ends are put into the last one there."""
        return np.clip(np.searchsorted(self.edges, values, side="right") - 1, 0, len(self) - 1)

    def names(self) -> list[str]:
        """As whole numbers: "0 to 9"."""
        pairs = zip(self.edges[:-1], self.edges[1:], strict=True)
        return [f"{low:.0f}" if high - low <= 1 else f"{low:.0f} to {high - 1:.0f}" for low, high in pairs]


def nice_bins(length: Ints) -> EdgeBins:
    """Bins of round widths; doubling ones where a few answers are much longer than the rest."""
    longest = int(length.max(initial=1)) + 1
    middle = float(np.median(length)) if len(length) else 1.0
    if longest > 12 * max(middle, 1.0):
        powers = int(np.ceil(np.log2(longest)))
        first = max(int(np.log2(max(float(np.quantile(length, 0.1)), 1.0))), powers - MOST_BINS + 1)
        doubled = [2**power for power in range(first, powers + 1)]
        return EdgeBins(np.array([0, *doubled], np.float64))
    step = nice_step(longest / MOST_BINS, whole=True)
    return EdgeBins(np.arange(0, longest + step, step, dtype=np.float64)[: int(np.ceil(longest / step)) + 1])


def nice_step(least: float, whole: bool = False) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is at least `least`."""
    power = 10.0 ** np.floor(np.log10(max(least, 1e-12)))
    steps = [power * factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0)]
    good = [s for s in steps if s >= least * (1 - 1e-9) and not (whole and (s < 1 or s % 1))]
    return max(float(good[0]), 1.0) if whole else float(good[0])


def windows(batch: Ints, least: int = 1) -> tuple[Ints, Floats]:
    """Stretches of training of equal numbers of rollout batches: the stretch of each row, and the middle of each stretch.

    At least `least` batches each.
    """
    low, high = int(batch.min(initial=0)), int(batch.max(initial=0))
    width = max(int(np.ceil((high - low + 1) / MOST_WINDOWS)), least)
    window = (batch - low) // width
    number = (high - low) // width + 1
    starts = low + width * np.arange(number)
    ends = np.minimum(starts + width, high + 1)
    return window, (starts + ends + 1) / 2.0


def rate(hits: Bools | Floats, cluster: Ints, bin: Ints, size: int) -> Counted:
    """Shares by bin, of numbers in 0..1, with Wilson's interval.

    Its sample size is the number of rows over the design effect: by how much clusters vary more than independent rows would, over
    all bins together, as a bin without a hit cannot tell. At least 1 for yes and no; a single cluster counts as one row.
    """
    count, total = count_by(bin, size), sum_by(bin, hits, size)
    value = ratio(total, count)
    variance, clusters = between(np.asarray(hits, np.float64), value, cluster, bin, size)
    spread, usable = value * (1 - value), clusters > 1
    alone = float((spread / np.maximum(count - 1, 1))[usable].sum())
    least = 1.0 if np.isin(hits, (0, 1)).all() else 1e-3
    effect = max(float(variance[usable].sum()) / alone, least) if alone > 0 else float(np.inf)
    effective = np.maximum(np.where(usable, np.maximum(count / effect, 1.0), clusters), 1e-9)
    effective = effective if np.isfinite(effect) else np.maximum(clusters, 1e-9)
    found = wilson(value * effective, effective)
    return Counted(value, found.low, found.high, count.astype(np.int64))


def mean(values: Ints | Floats, cluster: Ints, bin: Ints, size: int) -> Counted:
    """Means by bin; no interval (nan) for a single cluster."""
    values = np.asarray(values, np.float64)
    count, total = count_by(bin, size), sum_by(bin, values, size)
    value = ratio(total, count)
    variance, clusters = between(values, value, cluster, bin, size)
    half = np.where(clusters > 1, student(clusters - 1) * np.sqrt(variance), np.nan)
    return Counted(value, value - half, value + half, count.astype(np.int64))


def student(freedom: Floats) -> Floats:
    """The quantile of Student's t for a 95% interval: a table below five degrees of freedom, else an expansion, to 0.003."""
    n = np.maximum(freedom, 5.0)
    expanded = Z95 + (Z95**3 + Z95) / (4 * n) + (5 * Z95**5 + 16 * Z95**3 + 3 * Z95) / (96 * n**2)
    expanded += (3 * Z95**7 + 19 * Z95**5 + 17 * Z95**3 - 15 * Z95) / (384 * n**3)
    table = np.array([np.nan, 12.7062, 4.3027, 3.1824, 2.7764])
    return np.where(freedom < 5, table[np.clip(freedom, 0, 4).astype(np.int64)], expanded)


def between(values: Floats, value: Floats, cluster: Ints, bin: Ints, size: int) -> tuple[Floats, Floats]:
    """The variance of each bin's mean over clusters (linearised ratio), and the number of clusters in each bin."""
    number = int(cluster.max(initial=0)) + 1
    cells, cell = np.unique(bin * number + cluster, return_inverse=True)
    of_bin = cells // number
    residual = sum_by(cell, values - value[bin], len(cells))
    clusters = count_by(of_bin, size)
    factor = clusters / np.maximum(clusters - 1, 1) / np.maximum(count_by(bin, size), 1) ** 2
    return sum_by(of_bin, residual**2, size) * factor, clusters


def quantiles_by(values: Ints, bin: Ints, size: int, levels: tuple[float, ...]) -> Floats:
    """[size, levels]; nan for fewer than four values."""
    found = np.full((size, len(levels)), np.nan)
    order = np.argsort(bin, kind="stable")
    ends = np.cumsum(np.bincount(bin, minlength=size))
    for position, part in enumerate(np.split(values[order], ends[:-1])):
        if len(part) >= 4:
            found[position] = np.quantile(part, levels)
    return found
