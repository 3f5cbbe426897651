"""The law of the log ratio S.

Source: 2509.09177, theorem 2.2: S of responses of the old policy is near N(-k L, sigma^2 L). Sequences of all updates are
pooled; updates that moved by different amounts make a mixture, whose tails are heavier than normal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlen.batch import Floats, centred_squares
from fairlen.diagnostics.log import Log, OffPolicy, off_policy
from fairlen.diagnostics.uncertainty import NOTHING, Estimate, bootstrap, length_bins, ratio, ratio_over


@dataclass(frozen=True)
class RatioLaw:
    """Of off-policy sequences; intervals are over prompts."""

    scale: Estimate
    """sigma, nats per square root of a token: root mean square of (S + k L) / sqrt(L)."""
    drift: Estimate
    """k, nats per token: -sum S / sum L; nan of no sequences."""
    growth: Estimate
    """Exponent of the std of S with length over bins (log-log least squares): 1/2 in the theorem, 1 where drift varies."""


def ratio_law(log: Log) -> RatioLaw:
    """Return the law of the recorded log ratios."""
    rows = off_policy(log)
    length, total = rows.length.astype(np.float64), rows.log_ratio
    scale = bootstrap(rows.prompt, [total**2 / length, total, length, np.ones(len(rows))], spread_of).at(0)
    return RatioLaw(scale, ratio_over(rows.prompt, -total, length), growth_of(rows))


def spread_of(sums: Floats) -> Floats:
    """Return sigma from the sums of S^2/L, S, L and 1: with k = -S/L, E (S + k L)^2 / L = (sum S^2/L - (sum S)^2 / sum L) / n."""
    squares, total, tokens, num = (sums[..., column] for column in range(4))
    return np.sqrt(ratio(centred_squares(tokens, total, squares), num))


def growth_of(rows: OffPolicy) -> Estimate:
    """Return the exponent with which the std of S grows over bins of length; nothing of one bin."""
    bins = length_bins(rows.length)
    columns = [np.ones(len(rows)), rows.log_ratio, rows.log_ratio**2, rows.length]

    def measure(sums: Floats) -> Floats:
        num, total, squares, tokens = np.moveaxis(sums.reshape(*sums.shape[:-1], 4, len(bins)), -2, 0)
        return slope(ratio(tokens, num), np.sqrt(ratio(centred_squares(num, total, squares), num)))

    return bootstrap(rows.prompt, columns, measure, bins.index, len(bins)).at(0) if len(bins) > 1 else NOTHING


def slope(length: Floats, std: Floats) -> Floats:
    """Return the slope of log std on log length over bins, [..., K] each; nan where a std is 0 or there is one bin."""
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y = np.log(length), np.log(std)
        x = x - x.sum(-1, keepdims=True) / max(x.shape[-1], 1)
        found = (x * y).sum(-1) / (x * x).sum(-1)
    return np.where(np.isfinite(found), found, np.nan)
