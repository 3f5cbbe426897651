"""Which prompts train:  filter(responses) -> bool [P], by the verdict unless a source goes by the reward after shaping.

A filter whose `of_responses` is true chooses among the responses of every prompt:  filter(responses) -> bool [R]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fairlen.batch import Bools, Responses, Rewarded, count_by, mean_by, sum_by
from fairlen.checks import Checked, Fraction, PositiveFraction
from fairlen.methods.stages.advantage import centre_by


@dataclass(frozen=True)
class Everything:
    """Every prompt trains."""

    def __call__(self, responses: Responses) -> Bools:
        return np.ones(responses.num_prompts, np.bool_)


@dataclass(frozen=True)
class MixedOutcomes:
    """Prompts with at least one correct and one incorrect response: those whose 0/1 rewards differ.

    Source: dynamic sampling of DAPO (arXiv:2503.14476, equation 11: 0 < number correct < G).
    """

    def __call__(self, responses: Responses) -> Bools:
        return SomeCorrect()(responses) & SomeIncorrect()(responses)


@dataclass(frozen=True)
class MixedRewards:
    """Prompts whose responses differ in what they are worth after the reward stages.

    Source: the training script of DLER (github.com/NVlabs/DLER, `filter_groups.metric=seq_reward`): a correct response that is
    truncated is worth 0, so that a prompt of correct responses alone may have something to compare, and a mixed one nothing.
    """

    def __call__(self, responses: Rewarded) -> Bools:
        differs = centre_by(responses.prompt, responses.reward) != 0.0
        return sum_by(responses.prompt, differs, responses.num_prompts) > 0


@dataclass(frozen=True)
class SomeCorrect:
    """Prompts with at least one correct response; all-correct ones stay, for rewards that tell correct responses apart."""

    def __call__(self, responses: Responses) -> Bools:
        return sum_by(responses.prompt, responses.correct, responses.num_prompts) > 0


@dataclass(frozen=True)
class SomeIncorrect:
    """Prompts with at least one incorrect response: drops those where every reward is the highest.

    Source: online filtering of GR3 (arXiv:2603.10535): in an all-correct group its constraint on the reward always fails.
    """

    def __call__(self, responses: Responses) -> Bools:
        right = sum_by(responses.prompt, responses.correct, responses.num_prompts)
        return right < count_by(responses.prompt, responses.num_prompts)


@dataclass(frozen=True)
class LengthWindow(Checked):
    """Prompts with mixed outcomes whose mean response length is among the shortest, or among the long but not longest.

    Percentiles are those of the mixed prompts of one rollout batch.
    Source: LSPO (arXiv:2510.01459): at most the 30th percentile, or from the 65th to the 95th.
    """

    short: Fraction = 0.30
    """Upper end of the lower window, quantile in 0..1."""
    long_from: Fraction = 0.65
    """Lower end of the upper window, quantile in 0..1."""
    long_to: Fraction = 0.95
    """Upper end of the upper window, quantile in 0..1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.short <= self.long_from <= self.long_to:
            raise ValueError(
                f"LengthWindow: short={self.short}, long_from={self.long_from}, long_to={self.long_to}: give them in rising order"
            )

    def __call__(self, responses: Responses) -> Bools:
        mixed = MixedOutcomes()(responses)
        if not mixed.any():
            return mixed
        length = mean_by(responses.prompt, responses.length, responses.num_prompts)
        low, middle, high = np.quantile(length[mixed], [self.short, self.long_from, self.long_to])
        return mixed & ((length <= low) | ((length >= middle) & (length <= high)))


@dataclass(frozen=True)
class ShortestKept(Checked):
    """The shortest responses of every prompt, or those of most reward per token; the others are in no comparison and no loss.

    Of G responses the first max(1, round(share G)) in that order, and those that are equal to the last of them.
    Source: GFPO (arXiv:2508.09726), at second hand: more responses are drawn than train. Departure: denominators count those that
    train alone.
    """

    share: PositiveFraction = 0.5
    """Of a prompt's responses."""
    by: Literal["length", "efficiency"] = "length"
    """Order: length from the shortest, or reward over length from the largest."""
    of_responses: ClassVar[bool] = True

    def __call__(self, responses: Rewarded) -> Bools:
        key = responses.length.astype(np.float64)
        key = key if self.by == "length" else -responses.reward / key
        order = np.lexsort((key, responses.prompt))
        count = count_by(responses.prompt, responses.num_prompts)
        first = np.cumsum(count) - count
        number = np.maximum(np.floor(self.share * count + 0.5), 1.0)
        last = np.minimum(first + number - 1.0, max(len(key) - 1, 0)).astype(np.int64)
        return key <= key[order][last][responses.prompt]


Filter = Everything | MixedOutcomes | MixedRewards | SomeCorrect | SomeIncorrect | LengthWindow | ShortestKept
