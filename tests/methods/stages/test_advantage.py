"""Advantages of the ragged batch, by hand, and what makes an advantage zero."""

import math
from dataclasses import replace

import numpy as np
import pytest
from fixtures import make_batch
from loops import over

from fairlen.methods.stages.advantage import (
    BatchNormalized,
    ConditionalLength,
    GroupCentered,
    GroupNormalized,
    LeaveOneOut,
    MeanNormalized,
)

OUTCOME = np.array([1, 1, 1, 0, 1, 0, 0, 1, 1, 0], float)
CENTRED = [1 / 4, 1 / 4, 1 / 4, -3 / 4, 2 / 3, -1 / 3, -1 / 3, 0, 0, 0]
# prompt 0: mean 3/4; prompt 1: mean 1/3; prompt 2 does not vary; prompt 3 is alone


def test_centred_by_hand(ragged):
    assert GroupCentered()(ragged.segments, OUTCOME) == pytest.approx(CENTRED, abs=1e-15)


def test_normalized_by_hand(ragged):
    # prompt 0: var = (3/16 + 9/16) / 4 = 3/16; prompt 1: var = (4/9 + 1/9 + 1/9) / 3 = 2/9
    a, b = math.sqrt(3 / 16), math.sqrt(2 / 9)
    expected = [1 / 4 / a] * 3 + [-3 / 4 / a, 2 / 3 / b, -1 / 3 / b, -1 / 3 / b, 0, 0, 0]
    assert GroupNormalized()(ragged.segments, OUTCOME) == pytest.approx(expected, rel=1e-14)
    assert expected[0] == pytest.approx(1 / math.sqrt(3)) and expected[4] == pytest.approx(math.sqrt(2))


def test_normalized_with_bessel_and_eps_by_hand(ragged):
    # prompt 0: sum of squares 3/4, over 3: 1/4, std 1/2; prompt 1: 2/3 over 2: 1/3
    low, high = -1 / 3 / (math.sqrt(1 / 3) + 0.1), 2 / 3 / (math.sqrt(1 / 3) + 0.1)
    expected = [1 / 4 / 0.6] * 3 + [-3 / 4 / 0.6, high, low, low, 0, 0, 0]
    assert GroupNormalized(ddof=1, eps=0.1)(ragged.segments, OUTCOME) == pytest.approx(expected, rel=1e-14)
    inside = GroupNormalized(eps=1 / 16, eps_in="variance")(ragged.segments, OUTCOME)
    assert inside[3] == pytest.approx(-3 / 4 / math.sqrt(3 / 16 + 1 / 16))  # = -3/2


def test_leave_one_out_by_hand(ragged):
    # row 0: 1 - (1 + 1 + 0)/3 = 1/3; row 3: 0 - 1; row 4: 1 - 0; row 5: 0 - 1/2
    expected = [1 / 3, 1 / 3, 1 / 3, -1, 1, -1 / 2, -1 / 2, 0, 0, 0]
    assert LeaveOneOut()(ragged.segments, OUTCOME) == pytest.approx(expected, abs=1e-15)


def test_batch_normalized_by_hand(ragged):
    # centred values sum to 0; squares: 3/16 + 9/16 + 4/9 + 2/9 = 3/4 + 2/3 = 17/12 over 10 rows
    std = math.sqrt(17 / 120)
    assert BatchNormalized()(ragged.segments, OUTCOME) == pytest.approx([x / std for x in CENTRED], abs=1e-14)


def test_mean_normalized_by_hand(ragged):
    # prompt 0: (1 - 3/4) / (3/4) = 1/3, -1; prompt 1: (2/3) / (1/3) = 2, -1
    expected = [1 / 3] * 3 + [-1, 2, -1, -1, 0, 0, 0]
    assert MeanNormalized()(ragged.segments, OUTCOME) == pytest.approx(expected, rel=1e-14)


def test_mean_normalized_where_the_mean_is_no_pass_rate():
    """Means 0, -1/4 and 1/4: nothing is divided by a mean of 0 or less, which would turn the advantage around."""
    batch = make_batch([0] * 2 + [1] * 2 + [2] * 2, [1] * 6, [1, 0] * 3)
    value = np.array([0.5, -0.5, 0.5, -1.0, 1.0, -0.5])
    assert MeanNormalized()(batch.segments, value).tolist() == [0, 0, 0, 0, 3, -3]  # (1 - 1/4) / (1/4)


def test_conditional_length_by_hand(ragged):
    # prompt 0: correct lengths 1, 3, 5: z = -+sqrt(3/2), scores a, 1/2, 1 - a, mean 1/2; p = 3/4; the first term as above
    # prompt 1: one correct response, no spread; prompt 2: lengths 2, 3, z = -+1, p = 1, and no spread of outcomes
    a, b = 1 / (1 + math.exp(math.sqrt(3 / 2))), 1 / (1 + math.exp(1))
    first = GroupNormalized()(ragged.segments, OUTCOME)
    penalty = [3 / 4 * (a - 1 / 2), 0, 3 / 4 * (1 / 2 - a), 0, 0, 0, 0, b - 1 / 2, 1 / 2 - b, 0]
    for alpha in (0.2, 1.5):
        advantage = ConditionalLength(alpha)(ragged.segments, OUTCOME)
        assert advantage == pytest.approx(first - alpha * np.array(penalty), abs=1e-15)
    assert advantage[7] > 0 > advantage[8]  # of two correct responses the shorter one is reinforced


@pytest.mark.parametrize("length", [[4, 4, 1], [10**9, 10**9, 1]], ids=str)
def test_conditional_length_without_a_spread_of_lengths_is_zero(length):
    batch = make_batch([0] * 3, [4, 4, 1], [1, 1, 0])
    segments = replace(batch.segments, length=np.array(length), max_response_length=10**9)
    assert (ConditionalLength()(segments, OUTCOME[[0, 1, 3]]) == GroupNormalized()(segments, OUTCOME[[0, 1, 3]])).all()


@over(
    "stage",
    [
        GroupCentered(), GroupNormalized(), LeaveOneOut(), BatchNormalized(), GroupNormalized(eps=1e-4),
        MeanNormalized(), ConditionalLength(),
    ],
)  # fmt: skip
def test_groups_without_variance_are_exactly_zero_whatever_their_rounding(stage):
    batch = make_batch([0] * 3 + [1] * 7, [1] * 10, [1] * 10)
    value = np.array([0.1] * 3 + [1 / 3] * 7)  # the means of 0.1 x 3 and 1/3 x 7 are not exact in binary
    assert not stage(batch.segments, value).any()


@over("stage", [GroupCentered(), GroupNormalized(), LeaveOneOut(), BatchNormalized()])
def test_large_values_that_do_not_vary_are_zero_too(stage):
    """The mean of 7 x (1e9 + 1/3) is off by up to 1e9 * 2^-53 * 7 = 8e-7, which is no difference between answers."""
    batch = make_batch([0] * 7 + [1] * 2, [1] * 9, [1] * 9)
    value = np.array([1e9 + 1 / 3] * 7 + [1e9, 1e9 + 2])
    advantage = stage(batch.segments, value)
    assert advantage[:7].tolist() == [0.0] * 7
    assert advantage[8] == -advantage[7] > 0


def test_fields_are_checked_and_errors_name_field_value_and_fix():
    with pytest.raises(ValueError, match=r"GroupNormalized: ddof=2: give one of 0, 1"):
        GroupNormalized(ddof=2)
    with pytest.raises(ValueError, match=r"GroupNormalized: eps=-1: give a finite number, 0 or more"):
        GroupNormalized(eps=-1)
    with pytest.raises(ValueError, match=r"eps_in='root': give one of std, variance"):
        replace(GroupNormalized(), eps_in="root")
