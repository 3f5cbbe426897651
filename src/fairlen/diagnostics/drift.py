"""Why acceptance depends on length: what the law of the log ratio S is like at each length.

Source: 2509.09177, theorem 2.2: S of answers of the old policy is near N(-k L, sigma^2 L), so that its spread grows with the
square root of length and its mean with length. Sequences of all updates are pooled; updates that moved by different amounts make
a mixture, whose tails are heavier than normal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fairlen.batch import Floats, Ints, centred_squares, count_by, mean_by
from fairlen.diagnostics.bins import LEAST, NUM_BINS, Bins, length_bins
from fairlen.diagnostics.log import Log
from fairlen.diagnostics.rows import OffPolicy, off_policy
from fairlen.diagnostics.uncertainty import NOTHING, Estimate, Estimates, bootstrap, ratio
from fairlen.methods.stages.fair_band import FairBand, band_sums


@dataclass(frozen=True)
class RatioLaw:
    """Of off-policy sequences; numbers are nan, and columns empty, where `undefined` says why."""

    num_sequences: int
    bins: Bins
    mean_length: Floats
    mean: Estimates
    """Of S by bin, nats, [K]; -k L in the theorem. Intervals of this table are over prompts."""
    std: Estimates
    """sigma sqrt(L) in the theorem."""
    skew: Floats
    """0 in the theorem; its standard error is sqrt(6 / n)."""
    kurtosis: Floats
    """Excess: 0 in the theorem; its standard error is sqrt(24 / n)."""
    normality: Floats
    """Jarque and Bera's n/6 (skew^2 + kurtosis^2 / 4): 2 on average if S is normal at one length."""
    p_normal: Floats
    """Its p-value exp(-normality / 2), for independent sequences; far below 0.05 for any large log."""
    scale: Estimate
    """sigma, nats per square root of a token: root mean square of (S + k L) / sqrt(L)."""
    drift: Estimate
    """k, nats per token: -sum S / sum L."""
    growth: Estimate
    """Exponent of the std of S with length over bins (log-log least squares): 1/2 in the theorem, 1 where drift varies."""
    long_length: float
    """95% quantile of length, tokens."""
    undefined: str = ""

    def drift_ratio(self, width: float = 0.03) -> Estimate:
        """k sqrt(L95) / width: the drift at long lengths in half-widths of FSPO's band."""
        scale = math.sqrt(self.long_length) / width
        return Estimate(self.drift.value * scale, self.drift.low * scale, self.drift.high * scale)


def drift(log: Log) -> Estimate:
    """k, nats per token: minus the sum of log ratios over the tokens, of off-policy sequences; nan of none."""
    return drift_of(off_policy(log))


def drift_of(rows: OffPolicy) -> Estimate:
    if not len(rows):
        return NOTHING
    columns = [-rows.log_ratio, rows.length]
    return bootstrap(rows.prompt, columns, lambda sums: ratio(sums[..., 0], sums[..., 1])).at(0)


def running_drift(rows: OffPolicy, band: FairBand | None = None) -> Floats:
    """The drift that FSPO's band used at each sequence, [N]: its running estimate from the updates before."""
    band = band or FairBand()
    names, place = np.unique(rows.update, return_inverse=True)
    sums = [
        np.bincount(place, column, len(names))
        for column in (np.ones(len(rows)), rows.length, rows.log_ratio, rows.log_ratio**2 / rows.length)
    ]
    known = np.zeros(len(names))
    for update, (num, tokens, total, squares) in enumerate(zip(*sums, strict=True)):
        known[update] = band.current_drift
        band = band.update(band_sums(num, tokens, total, squares))
    return known[place]


def ratio_law(log: Log, num_bins: int = NUM_BINS) -> RatioLaw:
    """The law of the recorded log ratios by length."""
    rows = off_policy(log)
    bins = length_bins(rows.length, num_bins)
    none = np.zeros(0)
    if len(rows) < LEAST:
        nothing, why = Estimates(none, none, none), f"{len(rows)} off-policy sequences: at least {LEAST} are needed"
        bins = length_bins(none.astype(np.int64))
        return RatioLaw(len(rows), bins, none, nothing, nothing, none, none, none, none,
                        NOTHING, NOTHING, NOTHING, math.nan, why)  # fmt: skip
    return law_of(rows, bins)


def law_of(rows: OffPolicy, bins: Bins) -> RatioLaw:
    mean, std, growth = moments(rows, bins)
    skew, kurtosis = shape(bins.index, rows.log_ratio, len(bins))
    normality = bins.count / 6 * (skew**2 + kurtosis**2 / 4)
    length, total = rows.length.astype(np.float64), rows.log_ratio
    columns = [total**2 / length, total, length, np.ones(len(rows))]
    return RatioLaw(
        num_sequences=len(rows),
        bins=bins,
        mean_length=mean_by(bins.index, length, len(bins)),
        mean=mean,
        std=std,
        skew=skew,
        kurtosis=kurtosis,
        normality=normality,
        p_normal=np.exp(-normality / 2),
        scale=bootstrap(rows.prompt, columns, spread_of).at(0),
        drift=drift_of(rows),
        growth=growth,
        long_length=float(np.quantile(length, 0.95)),
    )


def spread_of(sums: Floats) -> Floats:
    """sigma from the sums of S^2/L, S, L and 1: with k = -S/L, E (S + k L)^2 / L = (sum S^2/L - (sum S)^2 / sum L) / n."""
    squares, total, tokens, num = (sums[..., column] for column in range(4))
    return np.sqrt(ratio(centred_squares(tokens, total, squares), num))


def moments(rows: OffPolicy, bins: Bins) -> tuple[Estimates, Estimates, Estimate]:
    """Mean and std of S by bin and the std's exponent of growth, all from one bootstrap."""
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
    """Least squares of log std on log length over bins, [..., K] each; nan where a std is 0 or there is one bin."""
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y = np.log(length), np.log(std)
        x = x - x.mean(-1, keepdims=True)
        found = (x * y).sum(-1) / (x * x).sum(-1)
    return np.where(np.isfinite(found), found, np.nan)


def shape(index: Ints, values: Floats, size: int) -> tuple[Floats, Floats]:
    """Skew and excess kurtosis by bin; nan where values do not vary."""
    centred = values - mean_by(index, values, size)[index]
    second, third, fourth = (mean_by(index, centred**power, size) for power in (2, 3, 4))
    return ratio(third, second**1.5), ratio(fourth, second**2) - np.where(count_by(index, size) > 0, 3.0, np.nan)
