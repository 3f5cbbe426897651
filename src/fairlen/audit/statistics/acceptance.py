"""How often a bound accepts sequences of each length, and how far that is from equal.

Source: 2509.09177, definition 2.1: LRE = 1/2 E|q(L) / qbar - 1| over bins of length. Departures: samples and shares are of the
old policy; sequences that are exactly on-policy do not count, because every bound accepts them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fairlen.audit.log import Log, off_policy
from fairlen.audit.statistics import intervals
from fairlen.audit.statistics.within import MIN_PROMPTS
from fairlen.batch import Bools, Floats, Ints, sum_by

NUM_TRIED = 25


@dataclass(frozen=True)
class Acceptance:
    """q(L) and what follows from it, of off-policy sequences; numbers are nan where `undefined` says why."""

    num_sequences: int
    bins: intervals.Bins
    share: intervals.Estimates  # q of each bin, [K], with intervals over prompts
    overall: intervals.Estimate  # qbar, the accepted share of all
    lre: intervals.Estimate
    """Length Reweighting Error, 0..1. The estimate is biased upwards (`floor`); its interval is not, and reaches 0 where the
    error cannot be told from none."""
    floor: float  # what the estimate would be on average if acceptance did not depend on length
    p_value: float
    """Of an error as large, signs of the prompts' residuals flipped; nan of fewer than 10 prompts."""
    undefined: str = ""


def acceptance(log: Log) -> Acceptance:
    """Return q(L) of the recorded updates, two-sided; a recorded share of tokens counts as that much of a sequence."""
    rows = off_policy(log)
    return acceptance_by_length(rows.length, rows.inside, rows.prompt)


def acceptance_by_length(
    length: Ints, accepted: Floats | Bools, prompt: Ints, num_bins: int = intervals.NUM_BINS
) -> Acceptance:
    """Return the same from columns [N]; `accepted` is 0, 1 or a share of tokens.

        floor = sqrt(1/2pi) sum_b sd_b,   sd_b^2 = sum_i (a_i - qbar)^2 (1[i in b] - p_b)^2 / (qbar N)^2

    which for 0/1 and K equal bins is 0.399 sqrt((1 - qbar) / qbar) sqrt((K - 1) / N).
    """
    bins, accepted = intervals.length_bins(length, num_bins), accepted.astype(np.float64)
    size = len(bins)
    undefined = reason_against(len(length), size, float(accepted.sum()))
    if undefined:
        unknown, none = intervals.Estimates(*[np.full(size, np.nan)] * 3), intervals.NOTHING
        overall = intervals.Estimate(float(accepted.mean())) if len(accepted) else none
        return Acceptance(len(length), bins, unknown, overall, none, intervals.NAN, intervals.NAN, undefined)
    sums = intervals.sums_by_block(prompt, [accepted, np.ones(len(length))], bins.index, size)
    floor = noise_floor(bins, accepted)
    return Acceptance(len(length), bins, *estimate(sums), floor, flip_prompts(sums))


def reason_against(num: int, size: int, accepted: float) -> str:
    """Return why the error does not exist; nothing where it does."""
    if num < 2 * intervals.MIN_IN_BIN:
        return f"{num} off-policy sequences: at least {2 * intervals.MIN_IN_BIN} are needed"
    if size < 2:
        return "too few different lengths for two bins"
    return "" if accepted > 0 else "no sequence was accepted"


def distances(accepted: Floats | Ints, everyone: Floats | Ints) -> Floats:
    """Return the share of accepted ones in each bin minus that of all, from sums by bin, [..., K]."""
    return intervals.ratio(accepted, accepted.sum(-1, keepdims=True)) - intervals.ratio(
        everyone, everyone.sum(-1, keepdims=True)
    )


def reweighting(accepted: Floats | Ints, everyone: Floats | Ints) -> Floats:
    """Return LRE from sums by bin: half the sum of the sizes of distances, [...]."""
    return 0.5 * np.abs(distances(accepted, everyone)).sum(-1)


def estimate(sums: Floats) -> tuple[intervals.Estimates, intervals.Estimate, intervals.Estimate]:
    """Return shares by bin, the share of all, and the error, from sums by prompt [P, 2K] (accepted, everyone)."""
    size = sums.shape[1] // 2

    def measure(total: Floats) -> Floats:
        accepted, everyone = total[..., :size], total[..., size:]
        overall = intervals.ratio(accepted.sum(-1), everyone.sum(-1))
        return np.concatenate(
            [intervals.ratio(accepted, everyone), overall[..., None], distances(accepted, everyone)], -1
        )

    value = measure(sums.sum(0))
    drawn = measure(intervals.resample(sums)) if len(sums) >= intervals.MIN_BLOCKS else np.full((1, len(value)), np.nan)
    low, high = intervals.quantiles(drawn[:, : size + 1])
    lre = invert(value[size + 1 :], drawn[:, size + 1 :])
    overall = intervals.Estimate(float(value[size]), float(low[size]), float(high[size]))
    return intervals.Estimates(value[:size], low[:size], high[:size]), overall, lre


def invert(distance: Floats, drawn: Floats) -> intervals.Estimate:
    """Return the error with the interval of errors under which it is not unusual, from distances [K] and resampled ones.

    A percentile interval would have the upward bias of a sum of sizes twice. Errors of the same profile over bins and any size
    are tried, with the noise of the resamples added: those for which the one found is in the central 95% make the interval,
    which is widened to hold it. Covers 89% to 98% in simulation, least where the error is near the floor.
    """
    error = 0.5 * float(np.abs(distance).sum())
    noise = (drawn - distance)[np.isfinite(drawn).all(1)]
    if not len(noise):
        return intervals.Estimate(error)
    unit, reach = distance / max(error, 1e-300), 4.0 * float(0.5 * np.abs(noise).sum(1).mean())
    tried = np.linspace(max(error - reach, 0.0), error + reach, NUM_TRIED)
    ends = [np.quantile(0.5 * np.abs(size * unit + noise).sum(1), [0.025, 0.975]) for size in tried]
    below, above = np.maximum.accumulate(np.array(ends)).T
    return intervals.Estimate(
        error, min(float(np.interp(error, above, tried)), error), max(float(np.interp(error, below, tried)), error)
    )


def noise_floor(bins: intervals.Bins, accepted: Floats) -> float:
    """Return the mean of LRE where acceptance does not depend on length and sequences are independent."""
    total, overall = len(accepted), float(accepted.mean())
    spread, part = sum_by(bins.index, (accepted - overall) ** 2, len(bins)), bins.count / total
    variance = (1 - part) ** 2 * spread + part**2 * (spread.sum() - spread)
    return float(np.sqrt(variance).sum() / (overall * total) / math.sqrt(2 * math.pi))


def flip_prompts(sums: Floats) -> float:
    """Return the p-value with prompts as independent units: a wild bootstrap of their residuals, from sums [P, 2K]."""
    if len(sums) < MIN_PROMPTS:
        return intervals.NAN
    size = sums.shape[1] // 2
    accepted, everyone = sums[:, :size], sums[:, size:]
    part = everyone.sum(0) / everyone.sum()
    residual = accepted - everyone * (accepted.sum() / everyone.sum())
    residual -= part * residual.sum(1, keepdims=True)
    signs = np.random.default_rng((0, 4)).choice([-1.0, 1.0], (intervals.NUM_RESAMPLES - 1, len(sums)))
    drawn = 0.5 * np.abs(signs @ residual).sum(1) / accepted.sum()
    observed = reweighting(accepted.sum(0), everyone.sum(0)) - 1e-12
    return float((1 + (drawn >= observed).sum()) / (1 + len(drawn)))  # the observed one is a draw
