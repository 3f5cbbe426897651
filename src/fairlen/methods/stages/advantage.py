"""Advantage of a segment relative to a baseline:  advantage(segments, value [B]) -> advantage [B]

Active segments only, groups dense from 0; one that is alone in its group gets 0. What differs from a mean by its rounding alone
is exactly 0: it must not become a sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fairlen.batch import Floats, Ints, Segments, count_by, mean_by, sum_by
from fairlen.checks import Checked, NotNegative
from fairlen.methods.stages.reward import sigmoid_by
from fairlen.precision import PARTS, tolerance


def centre_by(index: Ints, value: Floats) -> Floats:
    """value - mean over equal index, exact zeros where they do not vary, however large they are."""
    size = int(index.max(initial=-1)) + 1
    centred = value - mean_by(index, value, size)[index]
    return np.where(np.abs(centred) <= mean_rounding(index, value, size)[index], 0.0, centred)


def mean_rounding(index: Ints, value: Floats, size: int) -> Floats:
    """The most that rounding makes of a mean over equal index, [size]: of n terms added up one by one, and of their parts."""
    return tolerance(mean_by(index, np.abs(value), size), parts=PARTS + count_by(index, size))


@dataclass(frozen=True)
class GroupCentered:
    """value - mean of the group.

    Source: Dr. GRPO (arXiv:2503.20783, section 3.2), which leaves the standard deviation out.
    """

    def __call__(self, segments: Segments, value: Floats) -> Floats:
        return centre_by(segments.group, value)


@dataclass(frozen=True)
class GroupNormalized(Checked):
    """(value - mean) / std of the group; exactly 0 in groups that do not vary.

        std = sqrt(sum (value - mean)^2 / (G - ddof)),   divided by std + eps, or by sqrt(std^2 + eps) with eps_in="variance"

    Source: GRPO (arXiv:2402.03300, section 4.1.2). Population std and no eps by default, as the papers write it. In code: TRL has
    ddof 1 and eps 1e-4, verl ddof 1 and eps 1e-6; 2605.04077 has ddof 0 and eps inside the root.
    """

    ddof: Literal[0, 1] = 0
    """0 for the population, 1 for Bessel's correction."""
    eps: NotNegative = 0.0
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
class LeaveOneOut:
    """value - mean of the others of the group.

    Source: RLOO (arXiv:2402.14740, equation 8); equals G / (G - 1) times GroupCentered.
    """

    def __call__(self, segments: Segments, value: Floats) -> Floats:
        count = count_by(segments.group, segments.num_groups)[segments.group]
        return centre_by(segments.group, value) * count / np.maximum(count - 1.0, 1.0)


@dataclass(frozen=True)
class BatchNormalized(Checked):
    """value - mean of the group, then normalised to mean 0 and std 1 over the rollout batch.

    Source: DLER (arXiv:2510.15110, section 3; REINFORCE++ with the group mean as baseline). Population std.
    """

    eps: NotNegative = 0.0
    """Added to the denominator."""

    def __call__(self, segments: Segments, value: Floats) -> Floats:
        centred = centre_by(segments.group, value)
        std = np.sqrt(np.mean(centred**2)) if centred.any() else 1.0  # the mean of what is centred by group is 0
        return centred / (std + self.eps)


@dataclass(frozen=True)
class MeanNormalized:
    """(value - mean) / mean of the group; exactly 0 in groups that do not vary, or whose mean is 0 or less.

    Source: MaxRL (arXiv:2602.02710). For values 0 and 1 the mean is the share of correct responses p and the expected gradient is
    that of log p, to the order of the group's size. Departure: the authors' code adds 1e-6 to the denominator.
    """

    def __call__(self, segments: Segments, value: Floats) -> Floats:
        mean = mean_by(segments.group, value, segments.num_groups)
        scale = np.where(mean > mean_rounding(segments.group, value, segments.num_groups), mean, np.inf)
        return centre_by(segments.group, value) / scale[segments.group]


@dataclass(frozen=True)
class ConditionalLength(Checked):
    """(value - mean) / std of the group, and for segments of value above 0 a length penalty that is centred among them.

        A = (value - mean) / std - alpha p (s - mean of s),   s = sigmoid((T - mean of T) / std of T)

    The means and the std on the right are over the group's segments of value above 0 alone, p is their share of the group; the
    others have the first term only. Population std, 0 where lengths do not vary.
    Source: DDCA (arXiv:2602.02099), by its authors' code, which is dynamic (with p) by default.
    """

    alpha: NotNegative = 0.2
    """Strength of the penalty beside a normalised advantage, the paper's beta."""

    def __call__(self, segments: Segments, value: Floats) -> Floats:
        solved, group, num = value > 0.0, segments.group, segments.num_groups
        score = sigmoid_by(group[solved], segments.length[solved], num)
        share = mean_by(group, solved, num)[group[solved]]
        penalty = np.zeros(len(value))
        penalty[solved] = share * centre_by(group[solved], score)
        return GroupNormalized()(segments, value) - self.alpha * penalty


Advantage = GroupCentered | GroupNormalized | LeaveOneOut | BatchNormalized | MeanNormalized | ConditionalLength
