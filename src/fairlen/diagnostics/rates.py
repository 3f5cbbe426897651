"""Rates and means by bin, with intervals over clusters by formula: where there are many bins, or few clusters, to resample.

Responses to one prompt are alike, so prompts are what is resampled in thought: every interval is for the number of prompts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlen.batch import Bools, Floats, Ints, count_by, sum_by
from fairlen.diagnostics.uncertainty import Z95, Estimates, ratio, wilson


@dataclass(frozen=True)
class Counted(Estimates):
    """One number a bin, [N], nan where nothing fell into it, and how many rows did."""

    count: Ints

    def of_at_least(self, number: int) -> Counted:
        """The same without bins that hold fewer rows."""
        value, low, high = (np.where(self.count >= number, v, np.nan) for v in (self.value, self.low, self.high))
        return Counted(value, low, high, self.count)


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
