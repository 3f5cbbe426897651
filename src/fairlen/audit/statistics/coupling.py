"""Whether sign and length of responses are coupled, and where weight goes under each aggregation (2605.04077).

A group is mixed where it has advantages above and below 0; T_sign is its mean length of one of both. An aggregation over a whole
update is one over groups in which each update is one group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fairlen.audit.log import Log, Weighed, advantages, weighed
from fairlen.audit.statistics.intervals import NAN, Bins, Estimate, bootstrap, length_bins, ratio, ratio_over
from fairlen.batch import Floats, Ints, Segments, count_by, sum_by
from fairlen.methods.stages import aggregation


@dataclass(frozen=True)
class Coupling:
    """Intervals are over prompts, the second of mixed groups alone."""

    sign_length: Estimate  # sum A L / sum L over all rows: the objective of a token mean over them at ratio 1
    variation_within_sign: Estimate
    """sqrt(sum (L / T_sign - 1)^2 / sum (rows - 2)): spread of lengths about the mean of their own sign. Where lengths are
    skewed and a sign has few responses it reads low (by a seventh for 4 responses of lognormal lengths)."""


def coupling(log: Log) -> Coupling:
    """Return how lengths go with signs, of the recorded updates or of each rollout batch as one."""
    rows = weighed(log)
    group, size = rows.segments.group, rows.segments.num_groups
    length, sign = rows.segments.length.astype(np.float64), np.sign(rows.advantage).astype(np.int64) + 1
    by_sign = ratio(sum_by(3 * group + sign, length, 3 * size), count_by(3 * group + sign, 3 * size))
    below, _, above = by_sign.reshape(size, 3).T
    mixed, cluster = np.isfinite(below - above), np.zeros(size, np.int64)
    cluster[group] = rows.cluster
    apart = sum_by(group, np.where(sign != 1, (length / by_sign[3 * group + sign] - 1.0) ** 2, 0.0), size)
    freedom = sum_by(group, sign != 1, size) - 2
    within = bootstrap(
        cluster[mixed], [apart[mixed], freedom[mixed]], lambda sums: np.sqrt(ratio(sums[..., 0], sums[..., 1]))
    )
    return Coupling(ratio_over(rows.cluster, rows.advantage * length, length), within.at(0))


Per = Literal["rows", "turns", "groups", "update"]

RULES: dict[str, tuple[aggregation.Aggregation, Per]] = {
    "sequence_mean": (aggregation.SequenceMean(), "rows"),
    "token_mean": (aggregation.TokenMean(), "groups"),
    "token_mean_update": (aggregation.TokenMean(), "update"),
    "token_sum": (aggregation.TokenSum(), "rows"),
    "constant_budget": (aggregation.ConstantBudget(), "rows"),
    "length_power": (aggregation.LengthPower(), "rows"),
    "balanced": (aggregation.Balanced(), "groups"),
    "balanced_update": (aggregation.Balanced(), "update"),
}
"""Each with what its weights are divided by the number of; "update": of the scope that is the whole update."""


@dataclass(frozen=True)
class MeanOverTurns(aggregation.Unsigned):
    """Every turn counts the same: K / (N T), N the number of all turns; SequenceMean of turns, K of each trajectory together."""

    def term_weight(self, segments: Segments) -> Floats:
        return segments.num_turns / (segments.num_turns.sum() * segments.length)


RULES_OF_TURNS: dict[str, tuple[aggregation.Aggregation, Per]] = {
    "mean_over_turns": (MeanOverTurns(), "turns"),
    "turn_mean": (aggregation.TurnMean(), "rows"),
    "turn_count": (aggregation.TurnCount(), "rows"),
    "balanced_turns": (aggregation.Balanced("group", "turns"), "groups"),
}
"""Weight of the turns of a trajectory together; rollouts without turns have none."""
ALL_RULES = RULES | RULES_OF_TURNS


@dataclass(frozen=True)
class WeightShares:
    """Of one aggregation. Intervals are over prompts, weights as they are: what normalises them is not resampled."""

    bins: Bins
    per_token: Floats
    """Mean weight of a token in each bin of length over that of all tokens, [K]: 1 everywhere is length-neutral per token."""
    incorrect_to_correct: Estimate
    """Weight * |advantage| * tokens of incorrect responses over that of correct ones, whatever their signs."""
    turn_bins: Bins  # of the turns of the trajectory
    per_turn: Floats  # mean weight of a turn, all of its tokens together, in each of those over that of all turns

    @property
    def long_to_short(self) -> float:
        """Weight of a token in the last bin of length over that of one in the first; nan of one bin, or of none."""
        return float(ratio(self.per_token[-1], self.per_token[0])) if len(self.bins) > 1 else NAN

    @property
    def many_to_few(self) -> float:
        """Weight of a turn in the last bin of turns over that of one in the first; nan of one bin, or of none."""
        return float(ratio(self.per_turn[-1], self.per_turn[0])) if len(self.turn_bins) > 1 else NAN


def weight_shares(log: Log) -> dict[str, WeightShares]:
    """Return every aggregation side by side, on the same sequences and advantages; those of turns where there are any."""
    rows = join_turns(weighed(log))
    bins, turn_bins = (length_bins(of) for of in (rows.segments.length, rows.segments.num_turns))
    return {name: shares_under(name, rows, bins, turn_bins) for name in (ALL_RULES if log.has_turns else RULES)}


def join_turns(rows: Weighed) -> Weighed:
    """Return turns that were sequences as one row for each trajectory of an update, of the mean advantage of its tokens."""
    old = rows.segments
    if not old.turn.any():
        return rows
    _, first, at = np.unique(np.stack([rows.unit, old.response]), axis=1, return_index=True, return_inverse=True)
    length, turns, total = (
        sum_by(at, of, len(first)) for of in (old.length, old.num_turns, rows.advantage * old.length)
    )
    group = np.unique(np.stack([rows.unit, rows.prompt])[:, first], axis=1, return_inverse=True)[1]
    sums = {"length": length.astype(np.int64), "num_turns": turns.astype(np.int64)}
    columns = {name: getattr(rows, name)[first] for name in ("unit", "prompt", "cluster", "correct")}
    return replace(
        rows,
        segments=replace(old.take(first), turn=0 * first, group=group, **sums),
        advantage=total / length,
        **columns,
    )


def token_weights(name: str, rows: Weighed) -> Floats:
    """Return the weight per token that the aggregation gives each trajectory, a row, in its update, [n]."""
    rule, per = ALL_RULES[name]
    size = len(rows.names)
    segments = rows.segments
    if per == "update":
        return rule(replace(segments, group=rows.unit), rows.advantage) * size * segments.mass
    if per == "groups":
        unit_of_group = np.zeros(segments.num_groups, np.int64)
        unit_of_group[segments.group] = rows.unit
        here = count_by(unit_of_group, size)
    else:
        here = sum_by(rows.unit, segments.num_turns if per == "turns" else np.ones(len(rows.unit)), size)
    return rule(segments, rows.advantage) * here.sum() / here[rows.unit] * segments.mass


def shares_under(name: str, rows: Weighed, bins: Bins, turn_bins: Bins) -> WeightShares:
    weight, length = token_weights(name, rows), rows.segments.length
    either = weight * np.abs(rows.advantage) * length
    incorrect = np.where(rows.correct, 0.0, either)

    def mean_of(amount: Ints, of: Bins) -> Floats:
        found = ratio(sum_by(of.index, weight * length, len(of)), sum_by(of.index, amount, len(of)))
        return found * ratio(amount.sum(), (weight * length).sum())

    return WeightShares(
        bins=bins,
        per_token=mean_of(length, bins),
        incorrect_to_correct=ratio_over(rows.cluster, incorrect, either - incorrect),
        turn_bins=turn_bins,
        per_turn=mean_of(rows.segments.num_turns, turn_bins),
    )


REASONS = ("all correct", "all incorrect", "truncated", "stale, or without a verdict", "other")
QUARTERS = 4


@dataclass(frozen=True)
class Untrained:
    """Share of tokens whose advantage is 0, or that no recorded update had, by the first reason that holds; over prompts."""

    bins: Bins
    share: dict[str, Floats]  # of the tokens in each bin of length, [K]
    total: dict[str, Estimate]  # of all tokens
    together: Estimate


def untrained(log: Log) -> Untrained:
    """Return which tokens trained nothing, and why."""
    reason, length = find_reasons(log), log.segments.length
    bins, cluster = length_bins(length, QUARTERS), log.clusters[log.segments.response]
    tokens, here = sum_by(bins.index, length, len(bins)), [length * (reason == place) for place in range(len(REASONS))]
    share = {name: ratio(sum_by(bins.index, of, len(bins)), tokens) for name, of in zip(REASONS, here, strict=True)}
    total = {name: ratio_over(cluster, of, length) for name, of in zip(REASONS, here, strict=True)}
    return Untrained(bins, share, total, ratio_over(cluster, length * (reason >= 0), length))


def find_reasons(log: Log) -> Ints:
    """Return the place in REASONS of each segment, -1 of one that trained, [B]."""
    table, own, size = log.responses, log.segments.response, log.responses.num_prompts
    trained = advantages(log) != 0
    if len(log.trained):
        trained &= np.bincount(log.trained.segment, minlength=len(trained)) > 0
    hits, number = sum_by(table.prompt, log.correct & table.active, size), count_by(table.prompt[table.active], size)
    alike = (hits == number)[table.prompt], (hits == 0)[table.prompt]
    dropped = ~table.active & ~table.truncated, ~table.active & table.truncated
    found = np.select([*dropped, *alike, table.truncated], [3, 2, 0, 1, 2], 4)
    return np.where(trained, -1, found[own])
