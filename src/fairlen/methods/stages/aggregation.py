"""How much each token of a sequence weighs: one number per sequence, fixed before the forward pass.

    aggregation(segments, advantage [B]) -> weight [B]
    aggregation.term_weight(segments)    -> weight [B] for terms (KL, entropy), which have no advantage

Rows are the active segments of one update, groups dense from 0, never split over updates. In the formulas N is the number of
rows, G the number of groups, N_g the rows of group g and T the trained tokens of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from fairlen.batch import Floats, Ints, Segments, count_by, sum_by
from fairlen.checks import Checked, Fraction, added_later

Scope = Literal["group", "update"]
Count = Literal["rows", "planned"]


class Aggregation(Protocol):
    def __call__(self, segments: Segments, advantage: Floats) -> Floats: ...

    def term_weight(self, segments: Segments) -> Floats: ...


class Unsigned(Checked):
    """Weights that do not depend on the advantage are those of terms."""

    def __call__(self, segments: Segments, advantage: Floats) -> Floats:
        return self.term_weight(segments)

    def term_weight(self, segments: Segments) -> Floats:
        raise NotImplementedError


@dataclass(frozen=True)
class SequenceMean(Unsigned):
    """Every sequence counts the same, whatever its length: 1 / (N T).

    Source: GRPO (arXiv:2402.03300, equation 3), whose groups are of one size; a group of fewer active rows weighs less here, as
    in TRL and verl. A token of a long answer weighs less than one of a short answer.
    """

    def term_weight(self, segments: Segments) -> Floats:
        return 1.0 / (len(segments) * segments.length)


@dataclass(frozen=True)
class TurnMean(Unsigned):
    """Every trajectory counts the same, and so does every turn of it: 1 / (M K T), M trajectories, K turns of this one.

    For turns that are sequences (unit=turn). There a mean over sequences is one over turns, by which a trajectory weighs the more
    the more turns it takes (rllm#512).
    """

    def term_weight(self, segments: Segments) -> Floats:
        turns = count_by(segments.trajectory, segments.num_trajectories)[segments.trajectory]
        return 1.0 / (segments.num_trajectories * turns * segments.length)


@dataclass(frozen=True)
class TurnCount(Unsigned):
    """Every token of a trajectory of K turns counts the same: 1 / (M K C), M trajectories, C the update's mean tokens per turn.

    Source: cua-lite#13, whose mean over a trajectory's tokens paid for turns of fewer tokens: of those this weight knows nothing.
    """

    def term_weight(self, segments: Segments) -> Floats:
        trajectory, number = segments.trajectory, segments.num_trajectories
        turns = sum_by(trajectory, segments.num_turns, number)
        return turns.sum() / (number * turns[trajectory] * segments.length.sum())


@dataclass(frozen=True)
class TokenMean(Unsigned):
    """Every token of its scope counts the same: 1 / (G sum of T in the group), or 1 / (sum of T in the update).

    Source: DAPO (arXiv:2503.14476, equation 8: group). Its code in verl, and TRL's `dapo`, normalise over the update.
    """

    scope: Scope = "group"
    """Scope of the sum over tokens: group, or update."""

    def term_weight(self, segments: Segments) -> Floats:
        scope, size = scope_index(segments, self.scope)
        return 1.0 / (size * sum_by(scope, segments.length, size)[scope])


@dataclass(frozen=True)
class TokenSum(Unsigned):
    """Every token counts the same, in every update: 1 / N. With leave-one-out advantages the unbiased policy gradient.

    Source: RLOO (arXiv:2402.14740), FSPO (2509.09177 v1, section 3.1), LUSPO (arXiv:2602.05261).
    """

    count: Count = "rows"
    """Meaning of N: the rows of the update, turns of one trajectory once, or the tracks planned for its prompts, which no outcome
    can change."""

    def term_weight(self, segments: Segments) -> Floats:
        number = segments.num_trajectories if self.count == "rows" else segments.planned
        if number < 1 <= len(segments):
            raise ValueError("TokenSum: count=planned of segments without a plan: make the update with `updates`")
        return np.full(len(segments), 1.0 / max(number, 1))


@dataclass(frozen=True)
class ConstantBudget(Unsigned):
    """Every token counts the same: 1 / (N C), C the max response length of the run.

    Source: Dr. GRPO (arXiv:2503.20783, section 3.2).
    """

    def term_weight(self, segments: Segments) -> Floats:
        return TokenSum().term_weight(segments) / segments.max_response_length


@dataclass(frozen=True)
class LengthPower(Unsigned):
    """Between the token sum (power 0) and the sequence mean (power 1): 1 / (N T^power).

    Source: P-GSPO (OpenReview OeYb0K8gEu), whose ratio has the same power.
    """

    power: Fraction = 0.6
    """0..1."""

    def term_weight(self, segments: Segments) -> Floats:
        return TokenSum().term_weight(segments) / segments.length**self.power


@dataclass(frozen=True)
class InverseLength(Unsigned):
    """Weights that fall with a power of the length and add up to those of ConstantBudget: T^-power / (C sum of T^-power).

    Source: VL Norm, first named Delta-L Normalization (arXiv:2509.07558), by its authors' code. Where the variance of a
    sequence's gradient grows with T, power 1 has the least variance of all weights with this sum. Departure: the sum is over the
    update, in their code over the rollout batch.
    """

    power: Fraction = 0.75
    """0..1: from ConstantBudget to the sequence mean in all but scale."""

    def term_weight(self, segments: Segments) -> Floats:
        share = segments.length**-self.power
        return share / (share.sum() * segments.max_response_length)


@dataclass(frozen=True)
class Balanced(Checked):
    """Tokens of correct responses count the same, so do those of incorrect ones; both sides together as in a mean over sequences.

        weight = M_s / (N_g Z_s G),   M_s = sum |A|,  Z_s = sum |A| T   over the rows of sign s in the group
        (scope "update": one set of M, Z and N for the update, without G)

    Source: 2605.04077, equations 18 and 19, in the general form of appendix B, which equals the count form for 0/1 rewards and,
    unlike it, keeps the balance of the two sides where groups are pooled. A trajectory of several rows, its turns, counts once in
    M and N. Groups weigh the same whatever their size (equation 20); with SequenceMean they weigh by their size. Rows of
    advantage 0 count in N and weigh nothing. Terms have no sign: they get the token mean of the scope.
    """

    scope: Scope = "group"
    """Scope of the sum over tokens: group, or update."""
    by: Literal["tokens", "turns"] = added_later("tokens")
    """Unit with equal weight on a side: its tokens, or with unit=turn its turns, each whatever its length (Z = sum |A|)."""

    def __call__(self, segments: Segments, advantage: Floats) -> Floats:
        scope, size = scope_index(segments, self.scope)
        side, sides = 2 * scope + (advantage > 0), 2 * size
        strength = np.abs(advantage)
        share = 1.0 / count_by(segments.trajectory, segments.num_trajectories)[segments.trajectory]
        mass = sum_by(side, strength * share, sides)
        amount = segments.length if self.by == "tokens" else segments.num_turns
        total = sum_by(side, strength * amount, sides)
        each = np.divide(mass, total, out=np.zeros(sides), where=total > 0)[side] * (amount / segments.length)
        return np.where(strength > 0, each / sum_by(scope, share, size)[scope] / size, 0.0)

    def term_weight(self, segments: Segments) -> Floats:
        return TokenMean(self.scope).term_weight(segments)


def scope_index(segments: Segments, scope: Scope) -> tuple[Ints, int]:
    """Unit of the scope that each row belongs to, [B], and the number of units."""
    if scope == "group":
        return segments.group, segments.num_groups
    return np.zeros(len(segments), np.int64), 1
