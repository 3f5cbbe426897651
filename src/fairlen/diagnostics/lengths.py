"""Length by outcome, and what depends on length: accuracy, truncation, entropy, mismatch.

Of active responses that started from their prompt: forks of EqLen's streams continue what survived and are longer than the
policy's answers. Lengths are in the log's unit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlen.batch import Bools, Floats, Ints, centred_squares, count_by, sum_by
from fairlen.diagnostics.bins import NUM_BINS, Bins, length_bins
from fairlen.diagnostics.log import Log
from fairlen.diagnostics.rates import rate
from fairlen.diagnostics.uncertainty import NOTHING, Estimate, Estimates, bootstrap, mean_over, ratio

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Lengths:
    """Intervals are over prompts."""

    num_responses: int
    mean: Estimate
    right: Estimate
    wrong: Estimate
    difference: Estimate
    """Mean length of wrong answers minus that of right ones."""
    accuracy: Estimate
    truncated: Estimate
    """Share that the budget stopped; nan where that is not known."""
    quantiles: Floats
    """Of length, at QUANTILES."""
    batch: Ints
    """Rollout batch of what follows, [batches]."""
    mean_by_batch: Floats
    correct_by_batch: Floats
    incorrect_by_batch: Floats
    accuracy_by_batch: Estimates
    truncated_by_batch: Estimates
    trend: Estimate
    """Change of the mean length a rollout batch: least squares over responses."""


@dataclass(frozen=True)
class ByLength:
    """What answers of each length are like, [K]."""

    bins: Bins
    accuracy: Estimates
    """Intervals over prompts, as of all."""
    truncated: Estimates
    """nan where truncation is not known."""
    columns: dict[str, Estimates]
    """Means of the log's columns, intervals over prompts; only columns that the log has."""


def counted(log: Log) -> Bools:
    """Responses that are plain samples of the policy and count, [R]."""
    return log.responses.active & (log.responses.round == 0)


def lengths(log: Log) -> Lengths:
    """Length by outcome, accuracy and truncation, of all and over training."""
    rows = counted(log)
    table, right = log.responses.take(rows), log.right[rows]
    length, prompt = table.length.astype(np.float64), table.prompt
    batch, place = np.unique(log.batch[rows], return_inverse=True)
    size = len(batch)
    cut = table.truncated if "truncated" in log.known else None
    of_all, by_side = split(prompt, length, right), [right, ~right]
    number = count_by(place, size)
    return Lengths(
        num_responses=len(length),
        mean=of_all[0],
        right=of_all[1],
        wrong=of_all[2],
        difference=of_all[3],
        accuracy=mean_over(prompt, right),
        truncated=NOTHING if cut is None else mean_over(prompt, cut),
        quantiles=np.quantile(length, QUANTILES) if len(length) else np.full(len(QUANTILES), np.nan),
        batch=batch,
        mean_by_batch=ratio(sum_by(place, length, size), number),
        correct_by_batch=ratio(sum_by(place, length * by_side[0], size), sum_by(place, by_side[0], size)),
        incorrect_by_batch=ratio(sum_by(place, length * by_side[1], size), sum_by(place, by_side[1], size)),
        accuracy_by_batch=shares(prompt, place, right, size),
        truncated_by_batch=shares(prompt, place, cut, size),
        trend=trend_of(prompt, log.batch[rows].astype(np.float64), length),
    )


def split(prompt: Ints, length: Floats, right: Bools) -> list[Estimate]:
    """Mean length of all, right and wrong answers, and wrong minus right, from one bootstrap."""
    if not len(length):
        return [NOTHING] * 4

    def measure(sums: Floats) -> Floats:
        num, tokens, hits, long = np.moveaxis(sums, -1, 0)
        means = [ratio(tokens, num), ratio(long, hits), ratio(tokens - long, num - hits)]
        return np.stack([*means, means[2] - means[1]], -1)

    found = bootstrap(prompt, [np.ones(len(length)), length, right, length * right], measure)
    return [found.at(place) for place in range(4)]


def shares(prompt: Ints, place: Ints, hits: Bools | None, size: int) -> Estimates:
    """Shares of hits by place with intervals over prompts, [size]; nan where hits are not known."""
    if hits is not None:
        return rate(hits, prompt, place, size)
    unknown = np.full(size, np.nan)
    return Estimates(unknown, unknown, unknown)


def trend_of(prompt: Ints, batch: Floats, length: Floats) -> Estimate:
    """Slope of length on rollout batch, interval over prompts; nan of one batch."""
    if not len(length):
        return NOTHING
    x, y = batch - batch.mean(), length - length.mean()

    def measure(sums: Floats) -> Floats:
        num, a, b, ab, aa = np.moveaxis(sums, -1, 0)
        return ratio(ab - a * ratio(b, num), centred_squares(num, a, aa))

    return bootstrap(prompt, [np.ones(len(x)), x, y, x * y, x * x], measure).at(0)


def by_length(log: Log, columns: tuple[str, ...] = ("entropy", "mismatch"), num_bins: int = NUM_BINS) -> ByLength:
    """Accuracy, truncation and any columns of the log by length bin."""
    rows = counted(log)
    table, right = log.responses.take(rows), log.right[rows]
    bins = length_bins(table.length, num_bins)
    return ByLength(
        bins=bins,
        accuracy=shares(table.prompt, bins.index, right, len(bins)),
        truncated=shares(table.prompt, bins.index, table.truncated if "truncated" in log.known else None, len(bins)),
        columns={
            name: mean_by_bin(table.prompt, log.columns[name][rows], bins) for name in columns if name in log.columns
        },
    )


def mean_by_bin(prompt: Ints, values: Floats, bins: Bins) -> Estimates:
    """Means by bin of the values that are finite, [K], intervals over prompts."""
    known, size = np.isfinite(values), len(bins)
    if not known.any():
        none = np.full(size, np.nan)
        return Estimates(none, none, none)

    def measure(sums: Floats) -> Floats:
        return ratio(sums[..., :size], sums[..., size:])

    return bootstrap(prompt, [np.where(known, values, 0.0), known], measure, bins.index, size)
