"""Student's t distribution, for intervals and tests of few prompts; exact, without scipy."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

NORMAL = NormalDist()


@lru_cache(maxsize=4096)
def student(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t at a probability above a half; infinite below 1/50 of a degree of freedom.

    By Newton's method from the normal quantile: the distribution function is concave above 0, so that no step goes too far.
    """
    if freedom < 0.02:
        return math.inf
    half, t = (freedom + 1) / 2, NORMAL.inv_cdf(probability)
    scale = math.exp(math.lgamma(half) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    step = t
    while step > 1e-12 * t:
        density = scale * math.exp(-half * math.log1p(t * t / freedom))
        step = (two_sided(t, freedom) / 2 - (1 - probability)) / density
        t += step
    return t


def two_sided(t: float, freedom: float) -> float:
    """Return the p-value of Student's t: I(freedom / (freedom + t^2); freedom / 2, 1/2), the incomplete beta function."""
    if freedom <= 0:
        return 1.0
    a, x, rest = freedom / 2, freedom / (freedom + t * t), t * t / (freedom + t * t)
    return beta_share(x, rest, a, 0.5) if x < (a + 1) / (a + 2.5) else 1.0 - beta_share(rest, x, 0.5, a)


def beta_share(x: float, rest: float, a: float, b: float) -> float:
    """Return I(x; a, b), by its continued fraction from the end; `rest` is 1 - x. Source: Abramowitz and Stegun 26.5.8."""
    found = 1.0
    for k in range(50 + 2 * math.isqrt(math.ceil(a + b)), 0, -1):
        found = 1.0 + k * (b - k) * x / ((a + 2 * k - 1) * (a + 2 * k)) / found
        found = 1.0 - (a + k - 1) * (a + b + k - 1) * x / ((a + 2 * k - 2) * (a + 2 * k - 1)) / found
    scale = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b))
    return scale * x**a * rest**b / (a * found)
