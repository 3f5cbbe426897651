"""Weights of the ragged batch as fractions, the balance of signs, and how the rules relate."""

from itertools import combinations

import numpy as np
import pytest
from fixtures import LENGTH, make_batch, random_batch
from loops import over

from fairlen.methods.stages.advantage import GroupNormalized
from fairlen.methods.stages.aggregation import (
    Balanced,
    ConstantBudget,
    InverseLength,
    LengthPower,
    SequenceMean,
    TokenMean,
    TokenSum,
)

CENTRED = np.array([1 / 4, 1 / 4, 1 / 4, -3 / 4, 2 / 3, -1 / 3, -1 / 3, 0, 0, 0])
EXPECTED = {
    SequenceMean(): [1 / (10 * t) for t in LENGTH],  # 1 / (N T)
    TokenMean("group"): [1 / 68] * 4 + [1 / 32] * 3 + [1 / 20] * 3,  # 1 / (4 * 17), 1 / (4 * 8), 1 / (4 * 5), 1 / (4 * 5)
    TokenMean("update"): [1 / 35] * 10,  # 17 + 8 + 5 + 5
    TokenSum(): [1 / 10] * 10,
    ConstantBudget(): [1 / 80] * 10,  # N * 8
    LengthPower(0.5): [1 / (10 * t**0.5) for t in LENGTH],
    LengthPower(0.6): [1 / (10 * t**0.6) for t in LENGTH],
    # 1/T adds up to 1 + 1/3 + 1/5 + 1/8 + 1/2 + 1/5 + 1 + 1/2 + 1/3 + 1/5 = 527/120, times the budget of 8
    InverseLength(1.0): [120 / (527 * 8 * t) for t in LENGTH],
    # prompt 0: right M = 3/4, Z = (1 + 3 + 5)/4 = 9/4, 1/3 / (4 rows * 4 groups); wrong 3/4 / (3/4 * 8) = 1/8, over 16
    # prompt 1: right 1/T = 1/2, over 3 rows * 4 groups; wrong M = 2/3, Z = (5 + 1)/3 = 2, 1/3, over 12
    Balanced("group"): [1 / 48] * 3 + [1 / 128] + [1 / 24] + [1 / 36] * 2 + [0] * 3,
    # right M = 3/4 + 2/3 = 17/12, Z = 9/4 + 4/3 = 43/12, 17/43 over N = 10; wrong M = 17/12, Z = 8, 17/96 over 10
    Balanced("update"): [17 / 430] * 3 + [17 / 960] + [17 / 430] + [17 / 960] * 2 + [0] * 3,
}  # fmt: skip


@pytest.mark.parametrize("rule", EXPECTED, ids=str)
def test_weights_by_hand(ragged, rule):
    assert rule(ragged.segments, CENTRED) == pytest.approx(EXPECTED[rule], rel=1e-14)


def test_no_two_aggregations_agree(ragged):
    for one, other in combinations(EXPECTED, 2):
        gap = np.abs(one(ragged.segments, CENTRED) - other(ragged.segments, CENTRED))
        assert gap.max() > 1e-3, (one, other)


@pytest.mark.parametrize("rule", EXPECTED, ids=str)
def test_term_weights_are_a_function_of_length_and_group_alone(ragged, rule):
    expected = EXPECTED[TokenMean(rule.scope)] if isinstance(rule, Balanced) else EXPECTED[rule]
    assert rule.term_weight(ragged.segments) == pytest.approx(expected, rel=1e-14)


def test_length_power_ends_in_the_token_sum_and_the_sequence_mean(ragged):
    for power, end in ((0.0, TokenSum()), (1.0, SequenceMean())):
        assert LengthPower(power)(ragged.segments, CENTRED) == pytest.approx(end(ragged.segments, CENTRED), rel=1e-15)


def test_inverse_length_adds_up_to_a_constant_budget(ragged):
    """At every power, so that the expected gradient of equal segments has one scale; at 0 it is the constant budget itself."""
    for power in (0.0, 0.75, 1.0):
        assert InverseLength(power)(ragged.segments, CENTRED).sum() == pytest.approx(1 / 8, rel=1e-14)  # N / (N C)
    expected = ConstantBudget()(ragged.segments, CENTRED)
    assert InverseLength(0.0)(ragged.segments, CENTRED) == pytest.approx(expected, rel=1e-14)


def test_with_equal_lengths_balanced_sequence_mean_and_token_mean_are_one_update():
    batch = make_batch([0] * 4 + [1] * 4, [6] * 8, [1, 0, 0, 0, 1, 1, 0, 1])
    advantage = GroupNormalized()(batch.segments, batch.responses.outcome)
    expected = SequenceMean()(batch.segments, advantage)  # 1/48
    for rule in (Balanced("group"), TokenMean("group"), TokenMean("update")):
        assert rule(batch.segments, advantage) == pytest.approx(expected, rel=1e-14)
    # pooled, the right rows of both prompts share one weight as well: M/(N Z) = 1/T/N for any A
    assert Balanced("update")(batch.segments, advantage) == pytest.approx(expected, rel=1e-14)


def count_form(segments, advantage):
    """(k/G)/N+ for right rows, ((G-k)/G)/N- for incorrect ones, averaged over groups: equation 18 of 2605.04077."""
    weight = np.zeros(len(segments))
    for group in range(segments.num_groups):
        for side in (advantage > 0, advantage < 0):
            rows = side & (segments.group == group)
            if rows.any():
                size = (segments.group == group).sum()
                weight[rows] = rows.sum() / size / segments.length[rows].sum() / segments.num_groups
    return weight


@over("seed", range(5))
def test_balanced_is_the_count_form_for_0_1_rewards(seed):
    batch = random_batch(seed)
    advantage = GroupNormalized()(batch.segments, batch.responses.outcome)
    assert Balanced("group")(batch.segments, advantage) == pytest.approx(
        count_form(batch.segments, advantage), rel=1e-12
    )


def test_balanced_is_not_the_count_form_for_graded_rewards(ragged):
    advantage = np.array([0.1, 0.5, 0.2, -0.8, 0.6, -0.5, -0.1, 0, 0, 0])
    assert np.abs(Balanced("group")(ragged.segments, advantage) - count_form(ragged.segments, advantage)).max() > 1e-3


def masses(weight, advantage, length):
    """Sum over positive and over negative rows of weight * |A| * T."""
    push = weight * np.abs(advantage) * length
    return push[advantage > 0].sum(), push[advantage < 0].sum()


@over("right", [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0]])
def test_sign_balance_of_one_group(right):
    """2605.04077: both sides weigh sqrt(k (G - k)) / G under Balanced and SequenceMean, and differ under TokenMean."""
    batch = make_batch([0] * 5, [1, 2, 3, 5, 8], right)
    advantage = GroupNormalized()(batch.segments, batch.responses.outcome)
    k, size = sum(right), 5
    expected = np.sqrt(k * (size - k)) / size
    for rule in (Balanced("group"), Balanced("update"), SequenceMean()):
        assert masses(rule(batch.segments, advantage), advantage, batch.segments.length) == pytest.approx(
            (expected, expected)
        )
    positive, negative = masses(TokenMean("group")(batch.segments, advantage), advantage, batch.segments.length)
    # correct responses are the shorter ones: k sqrt((G-k)/k) * mean T+ against (G-k) sqrt(k/(G-k)) * mean T-, over 19
    mean_positive, mean_negative = np.mean([1, 2, 3, 5, 8][:k]), np.mean([1, 2, 3, 5, 8][k:])
    assert positive == pytest.approx(np.sqrt(k * (size - k)) * mean_positive / 19)
    assert negative == pytest.approx(np.sqrt(k * (size - k)) * mean_negative / 19)
    assert negative > 1.5 * positive


def test_over_the_update_the_general_form_keeps_the_balance_where_the_count_form_does_not():
    """Two prompts with k = 1 of 4 and k = 3 of 4: |A| differs between the correct responses of the two."""
    batch = make_batch([0] * 4 + [1] * 4, [1, 2, 3, 5, 8, 5, 2, 1], [1, 0, 0, 0, 1, 1, 1, 0])
    advantage, length = GroupNormalized()(batch.segments, batch.responses.outcome), batch.segments.length
    positive, negative = masses(Balanced("update")(batch.segments, advantage), advantage, length)
    assert positive == pytest.approx(negative, rel=1e-12)
    # each prompt brings sum |A+| = sqrt(k (G - k)) = sqrt 3, over N = 8
    assert positive == pytest.approx(2 * np.sqrt(3) / 8)
    # counts: both sides have 4 of 8 rows; right tokens 16, wrong 11: weights 1/32 and 1/22
    count = np.where(advantage > 0, 1 / 32, 1 / 22)
    positive, negative = masses(count, advantage, length)
    # A+ = sqrt 3 (T 1) and 1/sqrt 3 (T 8, 5, 2); A- = -1/sqrt 3 (T 2, 3, 5) and -sqrt 3 (T 1);
    # times sqrt 3: (3 + 15)/32 against (10 + 3)/22
    assert (positive * np.sqrt(3), negative * np.sqrt(3)) == pytest.approx((18 / 32, 13 / 22))


def test_a_group_of_one_sign_weighs_its_own_side_only():
    batch = make_batch([0, 0, 0], [2, 3, 5], [1, 1, 0])
    weight = Balanced("group")(batch.segments, np.array([0.5, 0.5, 0.0]))  # after filtering: nothing negative left
    assert weight == pytest.approx([2 / 15, 2 / 15, 0])  # M = 1, Z = (2 + 3) / 2, N_g = 3, G = 1: 1 / (5/2) / 3


def test_nothing_is_divided_by_zero_on_an_update_without_signal():
    batch = make_batch([0, 0], [2, 3], [1, 1])
    with np.errstate(all="raise"):
        assert not Balanced("group")(batch.segments, np.zeros(2)).any()
        assert not Balanced("update")(batch.segments, np.zeros(2)).any()


def test_groups_of_unequal_size_weigh_as_the_docstrings_say():
    """8 and 2 rows of 5 tokens, half of each correct, |A| = 1: the share of mass in the first group.

    By rows 8/10. By groups 1/2: equations 6, 7 and 20 of 2605.04077 are means over groups, and `SequenceMean` of a group would be
    1 / (G N_g T).
    """
    batch = make_batch([0] * 8 + [1] * 2, [5] * 10, [1, 0] * 5)
    advantage = np.array([1.0, -1.0] * 5)
    by_rows = (SequenceMean(), TokenSum(), ConstantBudget(), LengthPower(), TokenMean("update"), Balanced("update"))
    for rules, share in ((by_rows, 0.8), ((TokenMean("group"), Balanced("group")), 0.5)):
        for rule in rules:
            mass = rule(batch.segments, advantage) * batch.segments.length
            assert mass[:8].sum() / mass.sum() == pytest.approx(share), rule
    assert "whatever their size" in Balanced.__doc__ and "SequenceMean they weigh by their size" in Balanced.__doc__
    assert "a group of fewer active rows weighs less" in SequenceMean.__doc__


def test_unknown_scopes_are_refused():
    for rule in (TokenMean, Balanced):
        with pytest.raises(ValueError, match=r"scope='batch': give one of group, update"):
            rule("batch")
