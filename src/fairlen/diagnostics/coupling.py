"""Whether sign and length of answers are coupled, and which aggregation 2605.04077 would choose then.

A group is mixed where it has advantages above and below 0. T+ and T- are its mean lengths of those; population stds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlen.batch import Bools, Floats, Ints, centred_squares, count_by, sum_by
from fairlen.diagnostics.log import Log
from fairlen.diagnostics.rows import Weighed, weighed
from fairlen.diagnostics.uncertainty import NOTHING, Estimate, bootstrap, mean_over, ratio


@dataclass(frozen=True)
class Coupling:
    """Intervals are over prompts. The scale of the paper's gap (figure 3) is not given: all of them are here."""

    num_groups: int
    num_mixed: int
    sign_length: Estimate
    """sum A L / sum L over all rows: what a token mean over them has as its objective at ratio 1."""
    gap: Estimate
    """(T- - T+) / mean length, mean over mixed groups."""
    gap_tokens: Estimate
    """T- - T+, mean over mixed groups."""
    variation: Estimate
    """std / mean of length, mean over mixed groups."""
    gap_batch: Estimate
    """(T- - T+) / mean length over all rows at once."""
    variation_batch: Estimate
    """std / mean of length over all rows at once."""
    imbalance: Estimate
    """(T- - T+) / (T- + T+), mean over mixed groups: the imbalance of mass under a token mean of the group."""
    variation_within_sign: Estimate
    """sqrt(sum (L / T_sign - 1)^2 / sum (rows - 2)) over mixed groups: spread of lengths about the mean of their own sign. Where
    lengths are skewed and a sign has few answers it reads low (by a seventh for 4 answers of lognormal lengths)."""
    unit: Ints
    """Update, or rollout batch where updates are unknown, of the next three, [units]."""
    sign_length_by_unit: Floats
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
    """Whether the imbalance is not 0 (its interval excludes it): balanced averaging removes it, and keeps tokens equal."""


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
    group, size = rows.segments.group, rows.segments.num_groups
    length = rows.segments.length.astype(np.float64)
    above, below = rows.advantage > 0, rows.advantage < 0
    side = 2 * group + above
    signed = above | below
    mean = ratio(sum_by(side, length * signed, 2 * size), sum_by(side, signed, 2 * size))[side]
    deviations = np.where(signed, (length / np.where(signed, mean, 1.0) - 1.0) ** 2, 0.0)
    prompt, unit = np.zeros(size, np.int64), np.zeros(size, np.int64)
    prompt[group], unit[group] = rows.prompt, rows.unit
    return Groups(
        num=count_by(group, size),
        tokens=sum_by(group, length, size),
        squares=sum_by(group, length**2, size),
        num_above=sum_by(group, above, size),
        above=sum_by(group, length * above, size),
        num_below=sum_by(group, below, size),
        below=sum_by(group, length * below, size),
        deviations=sum_by(group, deviations, size),
        prompt=prompt,
        unit=unit,
    )


def coupling(log: Log) -> Coupling:
    """Lengths against signs, of the recorded updates or of each rollout batch as one."""
    rows = weighed(log)
    groups, units = groups_of(rows), rows.num_units
    mixed = groups.mixed
    long, short, mean = (
        ratio(tokens, num)
        for tokens, num in (
            (groups.below, groups.num_below), (groups.above, groups.num_above), (groups.tokens, groups.num)
        )
    )  # fmt: skip
    spread = np.sqrt(centred_squares(groups.num, groups.tokens, groups.squares) / groups.num) / mean
    each = {"gap": (long - short) / mean, "gap_tokens": long - short, "variation": spread}
    each["imbalance"] = (long - short) / (long + short)
    unit, signed = groups.unit[mixed], rows.advantage * rows.segments.length
    count = count_by(unit, units)
    return Coupling(
        num_groups=len(mixed),
        num_mixed=int(mixed.sum()),
        **{name: mean_over(groups.prompt[mixed], values[mixed]) for name, values in each.items()},
        **over_all_rows(groups),
        sign_length=sign_length(rows),
        variation_within_sign=within_sign(groups)[0],
        unit=rows.names,
        sign_length_by_unit=ratio(sum_by(rows.unit, signed, units), sum_by(rows.unit, rows.segments.length, units)),
        gap_by_unit=ratio(sum_by(unit, each["gap"][mixed], units), count),
        variation_by_unit=ratio(sum_by(unit, spread[mixed], units), count),
    )


def sign_length(rows: Weighed) -> Estimate:
    """sum A L / sum L, with an interval over prompts; nan of nothing."""
    if not len(rows.advantage):
        return NOTHING
    columns = [rows.advantage * rows.segments.length, rows.segments.length]
    return bootstrap(rows.prompt, columns, lambda sums: ratio(sums[..., 0], sums[..., 1])).at(0)


def over_all_rows(groups: Groups) -> dict[str, Estimate]:
    """Gap and variation without regard to groups."""
    if not len(groups.num):
        return {"gap_batch": NOTHING, "variation_batch": NOTHING}
    columns = [
        groups.num,
        groups.tokens,
        groups.squares,
        groups.num_above,
        groups.above,
        groups.num_below,
        groups.below,
    ]

    def measure(sums: Floats) -> Floats:
        num, tokens, squares, num_above, above, num_below, below = np.moveaxis(sums, -1, 0)
        mean = ratio(tokens, num)
        spread = np.sqrt(ratio(centred_squares(num, tokens, squares), num))
        return np.stack([ratio(ratio(below, num_below) - ratio(above, num_above), mean), ratio(spread, mean)], -1)

    found = bootstrap(groups.prompt, columns, measure)
    return {"gap_batch": found.at(0), "variation_batch": found.at(1)}


def within_sign(groups: Groups) -> tuple[Estimate, Estimate]:
    """Spread of lengths within signs, and that minus the size of the imbalance, from one bootstrap."""
    mixed = groups.mixed
    if not mixed.any():
        return NOTHING, NOTHING
    long, short = (groups.below / np.maximum(groups.num_below, 1)), groups.above / np.maximum(groups.num_above, 1)
    free = groups.num_above + groups.num_below - 2
    columns = [groups.deviations, free, (long - short) / np.maximum(long + short, 1e-300), np.ones(len(mixed))]

    def measure(sums: Floats) -> Floats:
        spread = np.sqrt(ratio(sums[..., 0], sums[..., 1]))
        return np.stack([spread, spread - np.abs(ratio(sums[..., 2], sums[..., 3]))], -1)

    found = bootstrap(groups.prompt[mixed], [column[mixed] for column in columns], measure)
    return found.at(0), found.at(1)


def criterion(log: Log) -> Criterion:
    """What the paper's criterion says of this log; undecided where there are no mixed groups of three or more."""
    found = coupling(log)
    difference = within_sign(groups_of(weighed(log)))[1]
    prefers = "token_mean" if difference.low > 0 else "sequence_mean" if difference.high < 0 else "undecided"
    return Criterion(prefers, found.imbalance, found.variation_within_sign, difference, found.imbalance.excludes(0.0))
