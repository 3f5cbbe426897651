"""Whether sign and length of responses are coupled, which aggregation 2605.04077 would choose, and where weight goes.

A group is mixed where it has advantages above and below 0. T+ and T- are its mean lengths of those; population stds. The mass of
a sequence is weight * |advantage| * tokens: what it can move, at ratio 1. Weights are those of methods/stages/aggregation.py, of
the recorded updates, or of each rollout batch as one update. An aggregation over a whole update is one over groups in which each
update is one group, so that all updates are weighed at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fairlen.batch import Bools, Floats, Ints, centred_squares, count_by, sum_by
from fairlen.diagnostics.log import Log, Weighed, weighed
from fairlen.diagnostics.uncertainty import (
    NOTHING,
    NUM_BINS,
    Bins,
    Estimate,
    bootstrap,
    length_bins,
    mean_over,
    ratio,
    ratio_over,
)
from fairlen.methods.stages.aggregation import (
    Aggregation,
    Balanced,
    ConstantBudget,
    LengthPower,
    SequenceMean,
    TokenMean,
    TokenSum,
)


@dataclass(frozen=True)
class Coupling:
    """Intervals are over prompts."""

    num_groups: int
    num_mixed: int
    sign_length: Estimate
    """sum A L / sum L over all rows: the objective of a token mean over them at ratio 1."""
    gap: Estimate
    """(T- - T+) / mean length, mean over mixed groups."""
    gap_tokens: Estimate
    """T- - T+, mean over mixed groups."""
    variation: Estimate
    """std / mean of length, mean over mixed groups."""
    imbalance: Estimate
    """(T- - T+) / (T- + T+), mean over mixed groups: the imbalance of mass under a token mean of the group."""
    variation_within_sign: Estimate
    """sqrt(sum (L / T_sign - 1)^2 / sum (rows - 2)) over mixed groups: spread of lengths about the mean of their own sign. Where
    lengths are skewed and a sign has few responses it reads low (by a seventh for 4 responses of lognormal lengths)."""
    unit: Ints
    """Update, or rollout batch where updates are unknown, of the next two, [units]."""
    gap_by_unit: Floats
    variation_by_unit: Floats


@dataclass(frozen=True)
class Criterion:
    """Token mean or sequence mean? 2605.04077, section 4.3.3.

    The paper prefers a token mean where lengths vary much and the gap is mild, a sequence mean in the opposite case, and gives no
    numbers. Ours compares the harm of each in the same unit: a token mean misweighs signs by `imbalance`, a sequence mean
    misweighs tokens within a sign by `variation_within_sign`.
    """

    prefers: str
    """token_mean, sequence_mean, or undecided where the interval of the difference holds 0."""
    imbalance: Estimate
    variation_within_sign: Estimate
    difference: Estimate
    """variation_within_sign - |imbalance|."""
    coupled: bool
    """Whether the interval of the imbalance excludes 0: balanced averaging removes it, and keeps tokens equal."""


@dataclass(frozen=True)
class Groups:
    """Sums of each group, [G]."""

    num: Floats
    tokens: Floats
    squares: Floats
    num_above: Floats
    above: Floats
    """Tokens of rows whose advantage is above 0."""
    num_below: Floats
    below: Floats
    deviations: Floats
    """Sum of (L / mean length of its sign - 1)^2 over rows with a sign."""
    prompt: Ints
    unit: Ints

    @property
    def mixed(self) -> Bools:
        return (self.num_above > 0) & (self.num_below > 0)


def groups_of(rows: Weighed) -> Groups:
    """Return the sums of each group over its rows."""
    group, size = rows.segments.group, rows.segments.num_groups
    length = rows.segments.length.astype(np.float64)
    above, below = rows.advantage > 0, rows.advantage < 0
    side, signed = 2 * group + above, above | below
    mean = ratio(sum_by(side, length * signed, 2 * size), sum_by(side, signed, 2 * size))[side]
    deviations = np.where(signed, (length / np.where(signed, mean, 1.0) - 1.0) ** 2, 0.0)
    columns = (np.ones(len(group)), length, length**2, above, length * above, below, length * below, deviations)
    prompt, unit = np.zeros(size, np.int64), np.zeros(size, np.int64)
    prompt[group], unit[group] = rows.prompt, rows.unit
    return Groups(*(sum_by(group, column, size) for column in columns), prompt=prompt, unit=unit)


def coupling(log: Log) -> Coupling:
    """Return how lengths go with signs, of the recorded updates or of each rollout batch as one."""
    rows = weighed(log)
    groups, units = groups_of(rows), len(rows.names)
    mixed, (long, short) = groups.mixed, mean_lengths(groups)
    mean = groups.tokens / groups.num
    spread = np.sqrt(centred_squares(groups.num, groups.tokens, groups.squares) / groups.num) / mean
    each = {"gap": (long - short) / mean, "gap_tokens": long - short, "variation": spread}
    each["imbalance"] = (long - short) / (long + short)
    unit = groups.unit[mixed]
    by_unit = [ratio(sum_by(unit, each[n][mixed], units), count_by(unit, units)) for n in ("gap", "variation")]
    return Coupling(
        num_groups=len(mixed),
        num_mixed=int(mixed.sum()),
        **{name: mean_over(groups.prompt[mixed], values[mixed]) for name, values in each.items()},
        sign_length=ratio_over(rows.prompt, rows.advantage * rows.segments.length, rows.segments.length),
        variation_within_sign=within_sign(groups)[0],
        unit=rows.names,
        gap_by_unit=by_unit[0],
        variation_by_unit=by_unit[1],
    )


def mean_lengths(groups: Groups) -> tuple[Floats, Floats]:
    """Return T- and T+ of each group; nan where a sign is absent."""
    return ratio(groups.below, groups.num_below), ratio(groups.above, groups.num_above)


def within_sign(groups: Groups) -> tuple[Estimate, Estimate]:
    """Return the spread of lengths within signs, and that minus the size of the imbalance, from one bootstrap."""
    mixed = groups.mixed
    if not mixed.any():
        return NOTHING, NOTHING
    long, short = mean_lengths(groups)
    free = groups.num_above + groups.num_below - 2
    columns = [groups.deviations, free, (long - short) / (long + short), np.ones(len(mixed))]

    def measure(sums: Floats) -> Floats:
        spread = np.sqrt(ratio(sums[..., 0], sums[..., 1]))
        return np.stack([spread, spread - np.abs(ratio(sums[..., 2], sums[..., 3]))], -1)

    found = bootstrap(groups.prompt[mixed], [column[mixed] for column in columns], measure)
    return found.at(0), found.at(1)


def criterion(log: Log) -> Criterion:
    """Return the choice of the paper's criterion; undecided where there are no mixed groups of three or more."""
    found = coupling(log)
    difference = within_sign(groups_of(weighed(log)))[1]
    prefers = "token_mean" if difference.low > 0 else "sequence_mean" if difference.high < 0 else "undecided"
    return Criterion(prefers, found.imbalance, found.variation_within_sign, difference, found.imbalance.excludes(0.0))


Per = Literal["rows", "groups", "update"]

RULES: dict[str, tuple[Aggregation, Per]] = {
    "sequence_mean": (SequenceMean(), "rows"),
    "token_mean": (TokenMean(), "groups"),
    "token_mean_update": (TokenMean(), "update"),
    "token_sum": (TokenSum(), "rows"),
    "constant_budget": (ConstantBudget(), "rows"),
    "length_power": (LengthPower(), "rows"),
    "balanced": (Balanced(), "groups"),
    "balanced_update": (Balanced(), "update"),
}
"""Each with what its weights are divided by the number of; "update": of the scope that is the whole update."""
AGGREGATIONS = tuple(RULES)


@dataclass(frozen=True)
class WeightMass:
    """Of one aggregation. Intervals are over prompts, weights as they are: what normalises them is not resampled."""

    aggregation: str
    bins: Bins
    positive: Floats
    """Share of all mass that is on advantages above 0, by length bin, [K]."""
    negative: Floats
    """The same below 0; both together add up to 1."""
    per_token: Floats
    """Mean weight of a token in the bin over that of all tokens, [K]: 1 everywhere is length-neutral per token."""
    negative_to_positive: Estimate
    """Mass below 0 over mass above 0."""
    incorrect_to_correct: Estimate
    """Mass of incorrect responses over mass of correct ones, whatever their signs."""
    unit: Ints
    """Update, or rollout batch where updates are unknown, of the next two, [units]."""
    loss: Floats
    """Policy-gradient loss at ratio 1, -sum w A L, of each unit: 2605.04077, figure 2."""
    negative_to_positive_by_unit: Floats


def weight_masses(log: Log, names: tuple[str, ...] = AGGREGATIONS, num_bins: int = NUM_BINS) -> tuple[WeightMass, ...]:
    """Return every aggregation side by side, on the same sequences and advantages."""
    rows = weighed(log)
    bins = length_bins(rows.segments.length, num_bins)
    return tuple(mass_of(name, rows, bins) for name in names)


def weights_of(name: str, rows: Weighed) -> Floats:
    """Return the weight per token that the aggregation gives each row in its update, [n]."""
    aggregation, per = RULES[name]
    segments, size = rows.segments, len(rows.names)
    if per == "update":
        weight = aggregation(replace(segments, group=rows.unit), rows.advantage) * size
    else:
        weight = aggregation(segments, rows.advantage)
        unit_of_group = np.zeros(segments.num_groups, np.int64)
        unit_of_group[segments.group] = rows.unit
        here = count_by(rows.unit if per == "rows" else unit_of_group, size)
        weight = weight * here.sum() / here[rows.unit]
    return weight * segments.mass


def mass_of(name: str, rows: Weighed, bins: Bins) -> WeightMass:
    """Return where the mass goes under one aggregation."""
    weight, size, units = weights_of(name, rows), len(bins), len(rows.names)
    length, advantage = rows.segments.length, rows.advantage
    signed = weight * advantage * length
    above, below = np.maximum(signed, 0.0), np.maximum(-signed, 0.0)
    both = above + below
    by_bin = [ratio(sum_by(bins.index, column, size), np.full(size, both.sum())) for column in (above, below)]
    mean = ratio(np.array((weight * length).sum()), np.array(length.sum()))
    per_token = ratio(sum_by(bins.index, weight * length, size), sum_by(bins.index, length, size))
    incorrect = np.where(rows.correct, 0.0, both)
    return WeightMass(
        aggregation=name,
        bins=bins,
        positive=by_bin[0],
        negative=by_bin[1],
        per_token=ratio(per_token, np.full(size, mean)),
        negative_to_positive=ratio_over(rows.prompt, below, above),
        incorrect_to_correct=ratio_over(rows.prompt, incorrect, both - incorrect),
        unit=rows.names,
        loss=-sum_by(rows.unit, signed, units),
        negative_to_positive_by_unit=ratio(sum_by(rows.unit, below, units), sum_by(rows.unit, above, units)),
    )
