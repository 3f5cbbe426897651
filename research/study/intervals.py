"""Means over seeds and problems, and what is made of them, with 95% intervals for few seeds.

A two-level bootstrap: seeds, and problems within, the same ones for everything that is compared, so that what is hard for all
cancels. Five resampled seeds spread too little, and their quantiles know no t distribution: the weights of seeds are stretched
about their mean by sqrt(S / (S - 1)) t / z with S - 1 degrees of freedom, 1.58 for five seeds. How often intervals hold
the truth, in %, in 400 simulations of 5 seeds, 64 problems and 4 samples, stretched and not:

    spread of seeds 0.02   99.8  98.8
    spread of seeds 0.05   99.0  96.5
    spread of seeds 0.10   97.0  89.5
    one number a seed      95.7  85.5   (1000)

Too wide where seeds differ by less than samples do: the noise of samples is in both levels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from fairlen.batch import Bools, Floats
from fairlen.diagnostics.uncertainty import NOTHING, Z95, Estimate

NUM_RESAMPLES = 4000
T95 = (math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5% quantile of the t distribution by degrees of freedom, from 0."""

Combine = Callable[[Sequence[Floats]], Floats]
"""From means, any shape each, to the quantity."""


def stretch(num_seeds: int) -> float:
    """What the weights of resampled seeds are further away from equal ones than the bootstrap has them."""
    if num_seeds < 2:
        raise ValueError(f"num_seeds={num_seeds}: one seed has no spread; give at least 2")
    t = T95[num_seeds - 1] if num_seeds <= len(T95) else Z95
    return math.sqrt(num_seeds / (num_seeds - 1)) * t / Z95


def estimate(inputs: Sequence[Floats], combine: Combine, is_stretched: bool = True) -> Estimate:
    """A function of means of [S, P] tables, S seeds and P problems (1 for what is measured on none), with its interval.

    Seeds for which a number does not exist are left out of all tables; nan where none is left, no interval where one is.
    """
    known = known_seeds(inputs)
    tables = [table[known] for table in inputs]
    num = int(known.sum())
    if not num:
        return NOTHING
    value = float(combine([np.array(table.mean()) for table in tables]))
    if num < 2 or not math.isfinite(value):
        return Estimate(value)
    weights = draw(num, 0)
    if is_stretched:
        weights = 1.0 / num + stretch(num) * (weights - 1.0 / num)
    means = [((weights @ table) * draw(table.shape[1], 1)).sum(1) for table in tables]
    drawn = combine(means)
    drawn = drawn[np.isfinite(drawn)]
    low, high = np.quantile(drawn, [0.025, 0.975]) if len(drawn) else (math.nan, math.nan)
    return Estimate(value, min(float(low), value), max(float(high), value))


def known_seeds(inputs: Sequence[Floats]) -> Bools:
    """Seeds for which every number exists, [S]."""
    return np.all([np.isfinite(table).all(1) for table in inputs], axis=0)


@lru_cache(maxsize=32)
def draw(size: int, seed: int) -> Floats:
    """Weights of each of `size` in every resample, [resamples, size]; rows add up to 1."""
    rng = np.random.default_rng((seed, size))
    return rng.multinomial(size, np.full(size, 1.0 / size), NUM_RESAMPLES) / size
