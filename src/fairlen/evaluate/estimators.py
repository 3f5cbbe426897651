"""Estimates from samples of held-out problems, with intervals over problems.

Samples of one problem are not independent of each other, so that intervals resample problems, never single samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlen.batch import Floats

NUM_RESAMPLES = 10_000


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95% percentile bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1%} [{self.low:.1%}, {self.high:.1%}]"


def mean_by_problem(values: Floats) -> Interval:
    """avg@k: the mean over problems of the mean over their k samples, from [problems, k]; resamples problems."""
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"values of shape {values.shape}: give one row a problem and one column a sample")
    each = values.mean(1)
    picks = np.random.default_rng(0).integers(0, len(each), (NUM_RESAMPLES, len(each)))
    low, high = np.quantile(each[picks].mean(1), [0.025, 0.975])
    return Interval(float(each.mean()), float(low), float(high))


def pass_at(num_right: Floats, num_samples: int, k: int) -> Floats:
    """pass@k of each problem, 1 - C(n - c, k) / C(n, k): unbiased; needs n >= k (arXiv:2107.03374, equation 1)."""
    if not 1 <= k <= num_samples:
        raise ValueError(f"k={k} of {num_samples} samples: pass@k needs 1 <= k <= samples")
    num_wrong = num_samples - np.asarray(num_right, np.float64)
    drawn = np.arange(k)[:, None]
    return 1.0 - np.prod(np.maximum(num_wrong - drawn, 0.0) / (num_samples - drawn), axis=0)
