"""Advantage of a segment relative to a baseline:  advantage(segments, value [B]) -> advantage [B]

Active segments only, groups dense from 0; one that is alone in its group gets 0. What differs from a mean by its rounding alone
is exactly 0: it must not become a sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fairlen.batch import ROUNDING, Floats, Ints, Segments, count_by, mean_by, sum_by
from fairlen.channels import Of
from fairlen.checks import Amount, Checked, added_later
from fairlen.methods.stages.reward import sigmoid_by
from fairlen.precision import PARTS, tolerance


def centre_by(index: Ints, value: Floats, weight: Floats | None = None) -> Floats:
    """value - (weighted) mean over equal index, exact zeros where they do not vary, however large they are."""
    size, weight = int(index.max(initial=-1)) + 1, np.ones(len(value)) if weight is None else weight
    total = np.maximum(sum_by(index, weight, size), 1.0)
    mean, scale = (sum_by(index, weight * part, size) / total for part in (value, np.abs(value)))
    centred = value - mean[index]
    rounding = tolerance(scale, parts=PARTS + count_by(index, size))
    return np.where(np.abs(centred) <= rounding[index], 0.0, centred)


@dataclass(frozen=True)
class GroupCentered:
    """value - mean of the group.

    Source: Dr. GRPO (arXiv:2503.20783, section 3.2), which leaves the standard deviation out.
    """

    def __call__(self, segments: Segments, value: Floats) -> Floats:
        return centre_by(segments.group, value)


@dataclass(frozen=True)
class LengthCentered:
    """value - sum T value / sum T of the group, so that the sum of T A is 0: no coupling of sign and length.

    Source: OPO (arXiv:2505.23585), by verl 0.9.1. The baseline of least variance where the variance of a sequence's gradient
    grows with T.
    """

    def __call__(self, segments: Segments, value: Floats) -> Floats:
        return centre_by(segments.group, value, segments.length.astype(np.float64))


@dataclass(frozen=True)
class ShareScaled:
    """(value - mean of the group) N / M, N the rows of the rollout batch and M those whose value is not 0.

    Source: GPG (arXiv:2504.02546), by verl 0.9.1.
    """

    def __call__(self, segments: Segments, value: Floats) -> Floats:
        return centre_by(segments.group, value) * len(value) / max(np.count_nonzero(value), 1)


@dataclass(frozen=True)
class GroupNormalized(Checked):
    """(value - mean) / std of the group; exactly 0 in groups that do not vary.

        std = sqrt(sum (value - mean)^2 / (G - ddof)),   divided by std + eps, or by sqrt(std^2 + eps) with eps_in="variance"

    Source: GRPO (arXiv:2402.03300, section 4.1.2). Population std and no eps by default, as the papers write it. In code: TRL has
    ddof 1 and eps 1e-4, verl ddof 1 and eps 1e-6; 2605.04077 has ddof 0 and eps inside the root.
    """

    ddof: Literal[0, 1] = 0
    """0 for the population, 1 for Bessel's correction."""
    eps: Amount = 0.0
    """Added to the denominator."""
    eps_in: Literal["std", "variance"] = "std"
    """Where eps is added: std or variance."""

    def __call__(self, segments: Segments, value: Floats) -> Floats:
        centred = centre_by(segments.group, value)
        free = np.maximum(count_by(segments.group, segments.num_groups) - self.ddof, 1.0)
        variance = sum_by(segments.group, centred**2, segments.num_groups) / free
        scale = np.sqrt(variance) + self.eps if self.eps_in == "std" else np.sqrt(variance + self.eps)
        scale[variance == 0.0] = 1.0
        return centred / scale[segments.group]


@dataclass(frozen=True)
class LeaveOneOut(Checked):
    """value - mean of the others of the group, divided by their std + eps where `normalized` and the others vary.

    Source: RLOO (arXiv:2402.14740, equation 8); equals G / (G - 1) times GroupCentered. Normalised, with Bessel's correction:
    NeMo-RL's default.
    """

    normalized: bool = added_later(False)
    """Whether the difference is divided by the standard deviation of the others."""
    eps: Amount = added_later(0.0)
    """Added to that standard deviation."""

    def __call__(self, segments: Segments, value: Floats) -> Floats:
        centred, group = centre_by(segments.group, value), segments.group
        count = count_by(group, segments.num_groups)[group]
        advantage = centred * count / np.maximum(count - 1.0, 1.0)
        if not self.normalized:
            return advantage
        squares = sum_by(group, centred**2, segments.num_groups)[group]
        others = squares - centred * advantage  # of the others about their own mean
        std = np.sqrt(np.where(others > ROUNDING * squares, others, 0.0) / np.maximum(count - 2.0, 1.0))
        return advantage / np.where(std > 0.0, std + self.eps, 1.0)


@dataclass(frozen=True)
class BatchNormalized(Checked):
    """value - baseline, then normalised to mean 0 and std 1 over the rollout batch.

    Source: DLER (arXiv:2510.15110, section 3; REINFORCE++ with the group mean as baseline). Population std over sequences, unless
    fields say otherwise: REINFORCE++ (arXiv:2501.03262) as verl 0.9.1 has it has neither a group nor sequences, but one mean and
    one std of all tokens, by which a long response counts more in both.
    """

    eps: Amount = 0.0
    """Added to the denominator."""
    baseline: Literal["group", "none"] = added_later("group")
    """Mean that is subtracted first: the group's, or none."""
    over: Literal["sequences", "tokens"] = added_later("sequences")
    """Unit of the mean and the std of the batch."""
    spread: Literal["centred", "value"] = added_later("centred")
    """Whose std divides: that of what is left after the baseline, or of the values, whose mean is then not subtracted (TRL)."""
    ddof: Literal[0, 1] = added_later(0)
    """0 for the population, 1 for Bessel's correction."""
    eps_in: Literal["std", "variance"] = added_later("std")
    """Where eps is added: std or variance."""

    def __call__(self, segments: Segments, value: Floats) -> Floats:
        whole, centred = np.zeros(len(value), np.int64), value
        weight = segments.length.astype(np.float64) if self.over == "tokens" else np.ones(len(value))
        if self.baseline == "group":
            centred = centre_by(segments.group, value)
        if self.baseline == "none" or (self.over == "tokens" and self.spread == "centred"):
            centred = centre_by(whole, centred, weight)  # by group the mean over sequences is 0
        deviation = centred if self.spread == "centred" else centre_by(whole, value, weight)
        variance = (weight * deviation**2).sum() / max(weight.sum() - self.ddof, 1.0)
        scale = np.sqrt(variance) + self.eps if self.eps_in == "std" else np.sqrt(variance + self.eps)
        return centred / (scale if variance > 0.0 else 1.0)


@dataclass(frozen=True)
class OutcomeNormalized(Checked):
    """Several outcomes, each normalised in the group by itself, added up with weights and normalised over the rollout batch.

        S = sum_k w_k (x_k - mean) / (std + eps),   A = (S - mean of S) / (std of S + whole_eps)

    so that an outcome of small spread is not drowned by one of large spread; every std has Bessel's correction. A row that an
    outcome does not apply to (None) is left out of that outcome. Without names the value is the one outcome.
    Source: GDPO (arXiv:2601.05242), as `normalize_then_sum` of TRL 1.16; verl's and NeMo-RL's differ by fields.
    """

    outcomes: str = "none"
    """Names of reward functions with their weights, as verifier=1,format=0.5; none: the value alone."""
    baseline: Literal["group", "others"] = "group"
    """Whose mean and std normalise an outcome: the group's, or those of the others."""
    eps: Amount = 1e-4
    """Added to the std of an outcome."""
    over: Literal["sequences", "tokens"] = "sequences"
    """Unit of the mean and the std of the batch."""
    whole_eps: Amount = 1e-4
    """Added to the std of the batch."""
    whole_eps_in: Literal["std", "variance"] = "std"
    """Where it is added: std or variance."""

    @property
    def weights(self) -> dict[str, float]:
        parts = [one.partition("=") for one in self.outcomes.split(",") if self.outcomes != "none"]
        try:
            return {name.strip(): float(weight or 1.0) for name, _, weight in parts}
        except ValueError:
            raise ValueError(f"OutcomeNormalized: outcomes={self.outcomes!r}: give NAME=WEIGHT,…") from None

    @property
    def reads(self) -> dict[str, tuple[float, ...]]:
        return dict.fromkeys(self.weights, (0.0, 1.0))

    def __call__(self, segments: Segments, value: Floats) -> Floats:
        each = LeaveOneOut(True, self.eps) if self.baseline == "others" else GroupNormalized(1, self.eps)
        total = np.zeros(len(value))
        for name, weight in self.weights.items():
            outcome = segments.named[name]
            known = ~np.isnan(outcome)
            total[known] += weight * each(segments.take(known).with_dense_groups(), outcome[known])
        total = total if self.weights else each(segments, value)
        return BatchNormalized(self.whole_eps, "none", self.over, "centred", 1, self.whole_eps_in)(segments, total)


@dataclass(frozen=True)
class MeanNormalized:
    """(value - mean) / mean of the group; exactly 0 in groups that do not vary, or whose mean is 0 or less.

    Source: MaxRL (arXiv:2602.02710). For values 0 and 1 the mean is the share of correct responses p and the expected gradient is
    that of log p, to the order of the group's size. Departure: the authors' code adds 1e-6 to the denominator.
    """

    def __call__(self, segments: Segments, value: Floats) -> Floats:
        mean, scale = (mean_by(segments.group, part, segments.num_groups) for part in (value, np.abs(value)))
        rounding = tolerance(scale, parts=PARTS + count_by(segments.group, segments.num_groups))
        scale = np.where(mean > rounding, mean, np.inf)
        return centre_by(segments.group, value) / scale[segments.group]


@dataclass(frozen=True)
class ConditionalLength(Checked):
    """(value - mean) / std of the group, and for segments of value above 0 a length penalty that is centred among them.

        A = (value - mean) / std - alpha p (s - mean of s),   s = sigmoid((T - mean of T) / std of T)

    The means and the std on the right are over the group's segments of value above 0 alone, p is their share of the group; the
    others have the first term only. Population std, 0 where lengths do not vary.
    Source: DDCA (arXiv:2602.02099), by its authors' code, which is dynamic (with p) by default.
    """

    alpha: Amount = 0.2
    """Strength of the penalty beside a normalised advantage, the paper's beta."""
    of: Of = added_later("response")
    """Length that is penalised: of the response, or of one of its channels."""

    def __call__(self, segments: Segments, value: Floats) -> Floats:
        solved, group, num = value > 0.0, segments.group, segments.num_groups
        score = sigmoid_by(group[solved], segments.length_of(self.of)[solved], num)
        share = mean_by(group, solved, num)[group[solved]]
        penalty = np.zeros(len(value))
        penalty[solved] = share * centre_by(group[solved], score)
        return GroupNormalized()(segments, value) - self.alpha * penalty


Advantage = (
    GroupCentered | LengthCentered | ShareScaled | GroupNormalized | LeaveOneOut | BatchNormalized
    | OutcomeNormalized | MeanNormalized | ConditionalLength
)  # fmt: skip
