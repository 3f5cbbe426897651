"""Which prompts of the ragged batch each rule keeps: accuracies 3/4, 1/3, 1, 0; mean lengths 17/4, 8/3, 5/2, 5."""

import numpy as np
import pytest
from fixtures import make_batch

from fairlen.methods.stages.filters import (
    Everything,
    LengthWindow,
    MixedOutcomes,
    MixedRewards,
    SomeCorrect,
    SomeIncorrect,
)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Everything(), [1, 1, 1, 1]),
        (MixedOutcomes(), [1, 1, 0, 0]),
        (MixedRewards(), [1, 1, 0, 0]),
        (SomeCorrect(), [1, 1, 1, 0]),
        (SomeIncorrect(), [1, 1, 0, 1]),
        (LengthWindow(), [0, 1, 0, 0]),  # of the mixed ones 8/3 is at the 0th percentile, 17/4 at the 100th: above the 95th
    ],
    ids=lambda value: str(value),
)  # fmt: skip
def test_kept_prompts_by_hand(ragged, rule, expected):
    assert rule(ragged.responses.with_reward(ragged.responses.outcome)).tolist() == [bool(keep) for keep in expected]


def test_length_window_by_hand():
    """21 mixed prompts of mean lengths 1..21: percentile p lies at 1 + 20 p, so 30 -> 7, 65 -> 14, 95 -> 20."""
    lengths = [length for mean in range(1, 22) for length in (mean, mean)]
    batch = make_batch([row // 2 for row in range(42)], lengths, [1, 0] * 21, max_response_length=30)
    kept = LengthWindow()(batch.responses)
    assert [mean for mean in range(1, 22) if kept[mean - 1]] == [*range(1, 8), *range(14, 21)]


def test_the_window_is_of_mixed_prompts_only():
    """A hundred all-correct prompts of length 1 must not push the percentiles down."""
    prompt = [row // 2 for row in range(42)] + [21 + row for row in range(100)]
    lengths = [length for mean in range(1, 22) for length in (mean, mean)] + [1] * 100
    batch = make_batch(prompt, lengths, [1, 0] * 21 + [1] * 100, max_response_length=30)
    kept = LengthWindow()(batch.responses)
    assert kept.sum() == 14 and not kept[21:].any()


def test_keep_judges_the_verdict_not_the_outcome():
    """Graded outcomes of incorrect responses differ, yet none is right."""
    batch = make_batch([0, 0, 0], [1, 2, 3], [0, 0, 0], outcome=[0.2, 0.5, 0.9])
    assert not MixedOutcomes()(batch.responses).any() and not SomeCorrect()(batch.responses).any()


def test_mixed_rewards_goes_by_the_reward_not_by_the_verdict(ragged):
    """Prompt 0: 0.1 four times, whose mean is not exact in binary; 1: 0, 0, 0; 2: right both, worth 1 and 0.5; 3: alone."""
    rewarded = ragged.responses.with_reward(np.array([0.1] * 4 + [0] * 3 + [1, 0.5] + [7]))
    assert MixedRewards()(rewarded).tolist() == [False, False, True, False]


def test_windows_out_of_order_are_refused():
    with pytest.raises(ValueError, match="give them in rising order"):
        LengthWindow(short=0.7, long_from=0.65)
    with pytest.raises(ValueError, match=r"LengthWindow: long_to=1.5: give a fraction from 0 to 1"):
        LengthWindow(long_to=1.5)
