"""The law of the log ratio S at each length.

Source: 2509.09177, theorem 2.2: S of responses of the old policy is near N(-k L, sigma^2 L). Sequences of all updates are
pooled; updates that moved by different amounts make a mixture, whose tails are heavier than normal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fairlen.batch import Floats, Ints, centred_squares, mean_by
from fairlen.diagnostics.log import Log, OffPolicy, off_policy
from fairlen.diagnostics.uncertainty import (
    NOTHING,
    Bins,
    Estimate,
    Estimates,
    bootstrap,
    length_bins,
    ratio,
    ratio_over,
)


@dataclass(frozen=True)
class RatioLaw:
    """Of off-policy sequences, [K] by bin of length; intervals are over prompts."""

    bins: Bins
    mean_length: Floats
    mean: Estimates
    """Of S, nats; -k L in the theorem."""
    std: Estimates
    """sigma sqrt(L) in the theorem."""
    kurtosis: Floats
    """Excess: 0 in the theorem; its standard error is sqrt(24 / n)."""
    scale: Estimate
    """sigma, nats per square root of a token: root mean square of (S + k L) / sqrt(L)."""
    drift: Estimate
    """k, nats per token: -sum S / sum L."""
    growth: Estimate
    """Exponent of the std of S with length over bins (log-log least squares): 1/2 in the theorem, 1 where drift varies."""
    long_length: float
    """95% quantile of length, tokens."""

    def drift_ratio(self, width: float = 0.03) -> Estimate:
        """Return k sqrt(L95) / width: the drift at long lengths in half-widths of FSPO's band."""
        scale = math.sqrt(self.long_length) / width
        return Estimate(self.drift.value * scale, self.drift.low * scale, self.drift.high * scale)


def drift_of(rows: OffPolicy) -> Estimate:
    """Return k, nats per token: minus the sum of log ratios over the tokens; nan of no sequences."""
    return ratio_over(rows.prompt, -rows.log_ratio, rows.length)


def ratio_law(log: Log) -> RatioLaw:
    """Return the law of the recorded log ratios by bin of length."""
    rows = off_policy(log)
    bins, num = length_bins(rows.length), len(rows)
    mean, std, growth = moments(rows, bins)
    length, total = rows.length.astype(np.float64), rows.log_ratio
    scale = bootstrap(rows.prompt, [total**2 / length, total, length, np.ones(num)], spread_of).at(0)
    return RatioLaw(
        bins=bins,
        mean_length=mean_by(bins.index, length, len(bins)),
        mean=mean,
        std=std,
        kurtosis=kurtosis_by(bins.index, total, len(bins)),
        scale=scale,
        drift=drift_of(rows),
        growth=growth,
        long_length=float(np.quantile(length, 0.95)) if num else math.nan,
    )


def spread_of(sums: Floats) -> Floats:
    """Return sigma from the sums of S^2/L, S, L and 1: with k = -S/L, E (S + k L)^2 / L = (sum S^2/L - (sum S)^2 / sum L) / n."""
    squares, total, tokens, num = (sums[..., column] for column in range(4))
    return np.sqrt(ratio(centred_squares(tokens, total, squares), num))


def moments(rows: OffPolicy, bins: Bins) -> tuple[Estimates, Estimates, Estimate]:
    """Return mean and std of S by bin and the std's exponent of growth, all from one bootstrap."""
    size = len(bins)
    columns = [np.ones(len(rows)), rows.log_ratio, rows.log_ratio**2, rows.length]

    def measure(sums: Floats) -> Floats:
        num, total, squares, tokens = np.moveaxis(sums.reshape(*sums.shape[:-1], 4, size), -2, 0)
        mean = ratio(total, num)
        std = np.sqrt(ratio(centred_squares(num, total, squares), num))
        return np.concatenate([mean, std, slope(ratio(tokens, num), std)[..., None]], -1)

    found = bootstrap(rows.prompt, columns, measure, bins.index, size)
    cut = [Estimates(found.value[part], found.low[part], found.high[part]) for part in (np.s_[:size], np.s_[size:-1])]
    return cut[0], cut[1], found.at(2 * size) if size > 1 else NOTHING


def slope(length: Floats, std: Floats) -> Floats:
    """Return the slope of log std on log length over bins, [..., K] each; nan where a std is 0 or there is one bin."""
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y = np.log(length), np.log(std)
        x = x - x.sum(-1, keepdims=True) / max(x.shape[-1], 1)
        found = (x * y).sum(-1) / (x * x).sum(-1)
    return np.where(np.isfinite(found), found, np.nan)


def kurtosis_by(index: Ints, values: Floats, size: int) -> Floats:
    """Return the excess kurtosis by bin; nan where values do not vary."""
    centred = values - mean_by(index, values, size)[index]
    second, fourth = (mean_by(index, centred**power, size) for power in (2, 4))
    return ratio(fourth, second**2) - 3.0
