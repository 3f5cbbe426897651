"""What an estimand comes to: a mean over seeds with the interval and the p-value of Student's t."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

NAN = math.nan
LEAST_SEEDS = 3
"""Seeds below which no interval is given."""
BySeed = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Result:
    """The mean of an estimand over seeds. Interval and p-value are nan of fewer than 3 seeds, or where all seeds agree exactly:
    numbers without spread are at a floor, at a ceiling or censored, and say nothing of the next seed."""

    value: float
    low: float = NAN
    high: float = NAN
    """Ends of the two-sided 95% interval."""
    p: float = NAN
    """Two-sided, of a mean of 0."""
    seeds: int = 0
    """Those that have a number."""
    unit: str = ""
    what: str = ""
    by_seed: BySeed = ()
    runs: int = 0
    """Seeds of which every run is there."""
    other: float = 0.0
    """Standard error of the mean, in the estimand's own terms (of a ratio the logarithm), that seeds do not show: held-out
    problems, which are a sample as well, and the timing of methods."""

    @property
    def has_interval(self) -> bool:
        """Whether anything can be decided from it."""
        return math.isfinite(self.low) and math.isfinite(self.high)


def summarize(
    values: Mapping[int, float], unit: str = "", what: str = "", is_log_ratio: bool = False, other: float = 0.0
) -> Result | None:
    """Return mean and interval of one number a seed; None where no seed has a number.

    Log ratios come back as percent of change: 100 (exp(mean) - 1), the interval likewise. A standard error `other` than that of
    seeds adds its square to theirs; the freedom stays that of the seeds.
    """
    known = tuple((seed, float(values[seed])) for seed in sorted(values) if math.isfinite(values[seed]))
    if not known:
        return None
    numbers = np.array([value for _, value in known])
    mean, error, freedom = float(numbers.mean()), standard_error(numbers), len(numbers) - 1
    low = high = p = NAN
    if error > 0:
        error = math.hypot(error, other)
        reach = quantile(0.975, freedom) * error
        low, high, p = mean - reach, mean + reach, two_sided(mean / error, freedom)
    if is_log_ratio:
        mean, low, high = (100.0 * math.expm1(x) for x in (mean, low, high))
        known = tuple((seed, 100.0 * math.expm1(value)) for seed, value in known)
    return Result(mean, low, high, p, len(known), unit, what, known, other=other)


def standard_error(numbers: np.ndarray) -> float:
    """Return the standard error of the mean; nan of fewer than LEAST_SEEDS, 0 where they are equal but for rounding."""
    if len(numbers) < LEAST_SEEDS:
        return NAN
    spread = float(numbers.std(ddof=1))
    return spread / math.sqrt(len(numbers)) if spread > 1e-12 * float(np.abs(numbers).max()) else 0.0


def two_sided(t: float, freedom: int) -> float:
    """Return the probability that Student's t is at least as far from 0: the finite sum for whole degrees of freedom.

    Source: Abramowitz and Stegun 26.7.3 and 26.7.4.
    """
    return max(1.0 - within(math.atan2(abs(t), math.sqrt(freedom)), freedom), 0.0)


def within(angle: float, freedom: int) -> float:
    """Return the probability that |t| <= sqrt(freedom) tan(angle)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    term, total = (1.0, 0.0) if freedom % 2 == 0 else (cosine, 0.0)
    for k in range(freedom % 2, freedom - 1, 2):
        total += term
        term *= cosine * cosine * (k + 1) / (k + 2)
    return sine * total if freedom % 2 == 0 else 2.0 / math.pi * (angle + sine * total)


def quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t at a probability of a half or more, by bisection."""
    low, high = 0.0, math.pi / 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle, freedom) < 2.0 * probability - 1.0 else (low, middle)
    return math.sqrt(freedom) * math.tan(low)
