"""How often a bound accepts sequences of each length, how far that is from equal, when any band would have accepted one, and
the law of their log ratios.

Source: 2509.09177, definition 2.1: LRE = 1/2 E|q(L) / qbar - 1| over bins of length. Departures: samples and shares are of the
old policy; sequences that are exactly on-policy do not count, because every bound accepts them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fairlen.audit.log import Log, OffPolicy, off_policy
from fairlen.audit.statistics.intervals import (
    MIN_IN_BIN,
    NAN,
    NOTHING,
    NUM_BINS,
    NUM_RESAMPLES,
    Bins,
    Estimate,
    Estimates,
    bootstrap,
    length_bins,
    quantiles,
    ratio,
    ratio_over,
    resample,
    sums_by_block,
    unknown,
)
from fairlen.batch import Bools, Floats, Ints, centred_squares, sum_by
from fairlen.methods.stages.fair_band import FairBand
from fairlen.methods.stages.surrogate import PowerClip, SequenceClip, SequenceRatioClip

MAX_DRAWS = 20_000_000
"""Rows that may be shuffled for a p-value, all shuffles together; at least 99 shuffles are made."""
MIN_PROMPTS = 10
NUM_TRIED = 25


@dataclass(frozen=True)
class Acceptance:
    """q(L) and what follows from it, of off-policy sequences; numbers are nan where `undefined` says why."""

    num_sequences: int
    bins: Bins
    share: Estimates
    """q of each bin, [K], with intervals over prompts."""
    overall: Estimate
    """qbar, the accepted share of all."""
    lre: Estimate
    """Length Reweighting Error, 0..1. The estimate is biased upwards (`floor`); its interval is not, and reaches 0 where the
    error cannot be told from none."""
    floor: float
    """What the estimate would be on average if acceptance did not depend on length."""
    p_value: float
    """Of an error as large, lengths shuffled over segments: exact where answers to one prompt are independent of each other."""
    p_value_prompts: float
    """The same where they are not: signs of the prompts' residuals flipped. nan of fewer than 10 prompts."""
    undefined: str = ""


def acceptance(log: Log) -> Acceptance:
    """Return q(L) of the recorded updates, two-sided; a recorded share of tokens counts as that much of a sequence."""
    rows = off_policy(log)
    return acceptance_by_length(rows.length, rows.inside, rows.prompt, rows.segment)


def acceptance_by_length(
    length: Ints,
    accepted: Floats | Bools,
    prompt: Ints,
    segment: Ints | None = None,
    num_bins: int = NUM_BINS,
    seed: int = 0,
) -> Acceptance:
    """Return the same from columns [N]; `accepted` is 0, 1 or a share of tokens, rows of one `segment` have one length.

        floor = sqrt(1/2pi) sum_b sd_b,   sd_b^2 = sum_i (a_i - qbar)^2 (1[i in b] - p_b)^2 / (qbar N)^2

    which for 0/1 and K equal bins is 0.399 sqrt((1 - qbar) / qbar) sqrt((K - 1) / N).
    """
    bins, accepted = length_bins(length, num_bins), accepted.astype(np.float64)
    size = len(bins)
    undefined = reason_against(len(length), size, float(accepted.sum()))
    if undefined:
        overall = Estimate(float(accepted.mean())) if len(accepted) else NOTHING
        return Acceptance(len(length), bins, unknown(size), overall, NOTHING, NAN, NAN, NAN, undefined)
    sums = sums_by_block(prompt, [accepted, np.ones(len(length))], seed, bins.index, size)
    p_value = shuffle_lengths(bins, accepted, np.arange(len(length)) if segment is None else segment, seed)
    floor = noise_floor(bins, accepted)
    return Acceptance(len(length), bins, *intervals(sums, seed), floor, p_value, flip_prompts(sums, seed))


def reason_against(num: int, size: int, accepted: float) -> str:
    """Return why the error does not exist; nothing where it does."""
    if num < 2 * MIN_IN_BIN:
        return f"{num} off-policy sequences: at least {2 * MIN_IN_BIN} are needed"
    if size < 2:
        return "too few different lengths for two bins"
    return "" if accepted > 0 else "no sequence was accepted"


def distances(accepted: Floats | Ints, everyone: Floats | Ints) -> Floats:
    """Return the share of accepted ones in each bin minus that of all, from sums by bin, [..., K]."""
    return ratio(accepted, accepted.sum(-1, keepdims=True)) - ratio(everyone, everyone.sum(-1, keepdims=True))


def reweighting(accepted: Floats | Ints, everyone: Floats | Ints) -> Floats:
    """Return LRE from sums by bin: half the sum of the sizes of distances, [...]."""
    return 0.5 * np.abs(distances(accepted, everyone)).sum(-1)


def intervals(sums: Floats, seed: int) -> tuple[Estimates, Estimate, Estimate]:
    """Return shares by bin, the share of all, and the error, from sums by prompt [P, 2K] (accepted, everyone)."""
    size = sums.shape[1] // 2

    def measure(total: Floats) -> Floats:
        accepted, everyone = total[..., :size], total[..., size:]
        overall = ratio(accepted.sum(-1), everyone.sum(-1))
        return np.concatenate([ratio(accepted, everyone), overall[..., None], distances(accepted, everyone)], -1)

    value = measure(sums.sum(0))
    drawn = measure(resample(sums, seed)) if len(sums) > 1 else np.full((1, len(value)), np.nan)
    low, high = quantiles(drawn[:, : size + 1])
    lre = invert(value[size + 1 :], drawn[:, size + 1 :])
    overall = Estimate(float(value[size]), float(low[size]), float(high[size]))
    return Estimates(value[:size], low[:size], high[:size]), overall, lre


def invert(distance: Floats, drawn: Floats) -> Estimate:
    """Return the error with the interval of errors under which it is not unusual, from distances [K] and resampled ones.

    A percentile interval would have the upward bias of a sum of sizes twice. Errors of the same profile over bins and any size
    are tried, with the noise of the resamples added: those for which the one found is in the central 95% make the interval,
    which is widened to hold it. Covers 89% to 98% in simulation, least where the error is near the floor.
    """
    error = 0.5 * float(np.abs(distance).sum())
    noise = (drawn - distance)[np.isfinite(drawn).all(1)]
    if not len(noise):
        return Estimate(error)
    unit, reach = distance / max(error, 1e-300), 4.0 * float(0.5 * np.abs(noise).sum(1).mean())
    tried = np.linspace(max(error - reach, 0.0), error + reach, NUM_TRIED)
    ends = [np.quantile(0.5 * np.abs(size * unit + noise).sum(1), [0.025, 0.975]) for size in tried]
    below, above = np.maximum.accumulate(np.array(ends)).T
    return Estimate(
        error, min(float(np.interp(error, above, tried)), error), max(float(np.interp(error, below, tried)), error)
    )


def noise_floor(bins: Bins, accepted: Floats) -> float:
    """Return the mean of LRE where acceptance does not depend on length and sequences are independent."""
    total, overall = len(accepted), float(accepted.mean())
    spread, part = sum_by(bins.index, (accepted - overall) ** 2, len(bins)), bins.count / total
    variance = (1 - part) ** 2 * spread + part**2 * (spread.sum() - spread)
    return float(np.sqrt(variance).sum() / (overall * total) / math.sqrt(2 * math.pi))


def shuffle_lengths(bins: Bins, accepted: Floats, segment: Ints, seed: int) -> float:
    """Return the p-value of the error under shuffles of lengths over segments; rows [N] of one segment move together."""
    rng, size = np.random.default_rng((seed, 3)), len(bins)
    observed = reweighting(sum_by(bins.index, accepted, size), bins.count) - 1e-12
    _, first, place, number = np.unique(segment, return_index=True, return_inverse=True, return_counts=True)
    accepted, index = sum_by(place, accepted, len(first)), bins.index[first]
    if np.isin(accepted, (0, 1)).all() and (number == 1).all():
        drawn = rng.multivariate_hypergeometric(bins.count, int(accepted.sum()), NUM_RESAMPLES - 1, method="marginals")
        return p_of(reweighting(drawn, bins.count), observed)
    errors = []
    for _ in range(int(np.clip(MAX_DRAWS // len(index), 99, NUM_RESAMPLES - 1))):
        shuffled = rng.permutation(index)
        errors.append(reweighting(sum_by(shuffled, accepted, size), sum_by(shuffled, number, size)))
    return p_of(np.array(errors), observed)


def flip_prompts(sums: Floats, seed: int) -> float:
    """Return the p-value with prompts as independent units: a wild bootstrap of their residuals, from sums [P, 2K]."""
    if len(sums) < MIN_PROMPTS:
        return NAN
    size = sums.shape[1] // 2
    accepted, everyone = sums[:, :size], sums[:, size:]
    part = everyone.sum(0) / everyone.sum()
    residual = accepted - everyone * (accepted.sum() / everyone.sum())
    residual -= part * residual.sum(1, keepdims=True)
    signs = np.random.default_rng((seed, 4)).choice([-1.0, 1.0], (NUM_RESAMPLES - 1, len(sums)))
    drawn = 0.5 * np.abs(signs @ residual).sum(1) / accepted.sum()
    return p_of(drawn, reweighting(accepted.sum(0), everyone.sum(0)) - 1e-12)


def p_of(drawn: Floats, observed: Floats) -> float:
    """Return the share of draws at least as large, the observed one counted as a draw."""
    return float((1 + (drawn >= observed).sum()) / (1 + len(drawn)))


RULES = ("fspo", "fspo_v3", "fspo_centred", "rloo", "gspo", "p_gspo")
CLIPS = {"rloo": (SequenceRatioClip(), 0.0), "gspo": (SequenceClip(), 1.0), "p_gspo": (PowerClip(), PowerClip().power)}
"""Each with the power of length by which S is divided; the other rules are bands of FSPO."""
WIDTHS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(RULES[:3], (FairBand().width * FairBand().lower_share, FairBand().width)),
    **{name: (clip.clip_low, clip.clip_high) for name, (clip, _) in CLIPS.items()},
}
"""Lower and upper, of the presets: nats per square root of a token for fspo*, distance of the ratio from 1 for the others."""


def critical_factor(
    rule: str, length: Ints, log_ratio: Floats, drift: float | Floats, low: float, high: float
) -> Floats:
    """Return the least factor of both widths at which each sequence is inside, [N]; 0 where it always is.

    `drift` is k, of all sequences or of each, in nats per token.

    fspo*: |S + shift| over width sqrt(L), beyond the drift;  others: |exp(S / L^power) - 1| over the distance.
    """
    tokens, moved = length.astype(np.float64), log_ratio
    if rule in CLIPS:
        moved = np.expm1(np.minimum(moved / tokens ** CLIPS[rule][1], 700.0))
        size = np.abs(moved)
    else:
        moved = moved + drift * tokens if rule == "fspo_centred" else moved
        beyond = np.abs(moved) - (drift * tokens if rule == "fspo" else 0.0)
        size = np.maximum(beyond, 0.0) / np.sqrt(tokens)
    return size / np.where(moved > 0, high, low)


def factor_for(critical: Floats, target: float) -> float:
    """Return the least factor at which at least the target share is inside."""
    place = max(math.ceil(target * len(critical) - 1e-9) - 1, 0)
    return float(np.partition(critical, place)[place])


@dataclass(frozen=True)
class RatioLaw:
    """The law of the log ratio S of off-policy sequences, with intervals over prompts.

    Source: 2509.09177, theorem 2.2: S of responses of the old policy is near N(-k L, sigma^2 L). Sequences of all updates are
    pooled; updates that moved by different amounts make a mixture, whose tails are heavier than normal.
    """

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
