"""Where the weight of an update goes under every aggregation: by length and by sign.

Mass of a sequence is weight * |advantage| * tokens: what it can move,
at ratio 1. Weights are those of methods/stages/aggregation.py, of
the recorded updates, or of each rollout batch as one update. An aggregation over a whole update is one over groups in which each
update is one group, so that all updates are weighed at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fairlen.batch import Floats, Ints, count_by, sum_by
from fairlen.diagnostics.bins import NUM_BINS, Bins, length_bins
from fairlen.diagnostics.log import Log
from fairlen.diagnostics.rows import Weighed, weighed
from fairlen.diagnostics.uncertainty import NOTHING, Estimate, bootstrap, ratio
from fairlen.methods.stages.aggregation import (
    Aggregation,
    Balanced,
    ConstantBudget,
    LengthPower,
    SequenceMean,
    TokenMean,
    TokenSum,
)

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
    """Mass of wrong answers over mass of right ones, whatever their signs."""
    unit: Ints
    """Update, or rollout batch where updates are unknown, of the next two, [units]."""
    loss: Floats
    """Policy-gradient loss at ratio 1, -sum w A L, of each unit: 2605.04077, figure 2."""
    negative_to_positive_by_unit: Floats


def weight_masses(log: Log, names: tuple[str, ...] = AGGREGATIONS, num_bins: int = NUM_BINS) -> tuple[WeightMass, ...]:
    """Every aggregation side by side, on the same sequences and advantages."""
    rows = weighed(log)
    bins = length_bins(rows.segments.length, num_bins)
    return tuple(mass_of(name, rows, bins) for name in names)


def weights_of(name: str, rows: Weighed) -> Floats:
    """The weight per token that the aggregation gives each row in its update, [n]."""
    aggregation, per = RULES[name]
    segments, size = rows.segments, rows.num_units
    if per == "update":
        weight = aggregation(replace(segments, group=rows.unit), rows.advantage) * size
    else:
        weight = aggregation(segments, rows.advantage)
        here = count_by(rows.unit, size) if per == "rows" else groups_by_unit(rows)
        weight = weight * here.sum() / here[rows.unit]
    return weight * segments.mass


def groups_by_unit(rows: Weighed) -> Floats:
    """How many groups each unit has, [units]."""
    owner = np.zeros(rows.segments.num_groups, np.int64)
    owner[rows.segments.group] = rows.unit
    return count_by(owner, rows.num_units)


def mass_of(name: str, rows: Weighed, bins: Bins) -> WeightMass:
    weight, size, units = weights_of(name, rows), len(bins), rows.num_units
    length, advantage = rows.segments.length, rows.advantage
    signed = weight * advantage * length
    above, below = np.maximum(signed, 0.0), np.maximum(-signed, 0.0)
    total = float(above.sum() + below.sum())
    by_bin = [ratio(sum_by(bins.index, column, size), np.full(size, total)) for column in (above, below)]
    tokens = sum_by(bins.index, length, size)
    mean = ratio(np.array((weight * length).sum()), np.array(length.sum()))
    both = above + below
    return WeightMass(
        aggregation=name,
        bins=bins,
        positive=by_bin[0],
        negative=by_bin[1],
        per_token=ratio(ratio(sum_by(bins.index, weight * length, size), tokens), np.full(size, mean)),
        negative_to_positive=quotient(rows.prompt, below, above),
        incorrect_to_correct=quotient(rows.prompt, np.where(rows.right, 0.0, both), np.where(rows.right, both, 0.0)),
        unit=rows.names,
        loss=-sum_by(rows.unit, signed, units),
        negative_to_positive_by_unit=ratio(sum_by(rows.unit, below, units), sum_by(rows.unit, above, units)),
    )


def quotient(prompt: Ints, over: Floats, under: Floats) -> Estimate:
    """Sum over sum, with an interval over prompts; nan of nothing."""
    if not len(prompt):
        return NOTHING
    return bootstrap(prompt, [over, under], lambda sums: ratio(sums[..., 0], sums[..., 1])).at(0)
