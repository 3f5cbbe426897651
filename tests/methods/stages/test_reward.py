"""Rewards by hand, and the ten defects of a third party's listing of 2505.18086 as regressions."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from fixtures import make_batch
from loops import over

from fairlen.methods.compose import compose
from fairlen.methods.stages.advantage import GroupCentered, GroupNormalized
from fairlen.methods.stages.reward import (
    LengthPenalty,
    RelativeLength,
    SoftOverlong,
    SolvedLength,
    TopLambda,
    TruncationPenalty,
)
from fairlen.rollouts import Response, Rollouts, whole_segments


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


def shape(stage, batch):
    return stage(batch.responses, batch.responses.outcome)


def test_soft_overlong_by_hand():
    # budget 20, margin 1/5: free until 16, then a quarter for each token
    batch = make_batch([0] * 6, [1, 16, 17, 18, 19, 20], [1, 1, 1, 0, 0, 1], max_response_length=20)
    assert shape(SoftOverlong(), batch) == pytest.approx([1, 1, 3 / 4, -1 / 2, -3 / 4, 0])
    assert shape(SoftOverlong(margin=0.1, factor=2.0), batch) == pytest.approx([1, 1, 1, 0, -1, -1])


def test_relative_length_by_hand(ragged):
    # mean lengths 17/4 and 8/3 (incorrect responses count in the mean): 1 / (1 + 0.33 * T / mean)
    reward = shape(RelativeLength(), ragged)
    assert reward[:4] == pytest.approx([1 / (1 + 0.33 * t * 4 / 17) for t in (1, 3, 5)] + [0])
    assert reward[4:7] == pytest.approx([1 / (1 + 0.33 * 2 * 3 / 8), 0, 0])
    assert reward[9] == 0


def test_relative_length_refuses_rewards_that_length_would_raise(ragged):
    with pytest.raises(ValueError, match=r"reward -0.5 is below 0.*put penalties after RelativeLength"):
        RelativeLength()(ragged.responses, ragged.responses.outcome - 0.5)


def test_solved_length_by_hand(ragged):
    # 1/4 * mean reward * T / longest: prompt 0: 3/4 and 8; prompt 1: 1/3 and 5; prompt 2: 1 and 3; prompt 3: 0
    reward = shape(SolvedLength(), ragged)
    assert reward[:4] == pytest.approx([1 - 3 / 128, 1 - 9 / 128, 1 - 15 / 128, -3 / 16])
    assert reward[4:7] == pytest.approx([1 - 2 / 60, -1 / 12, -1 / 60])
    assert reward[7:].tolist() == pytest.approx([1 - 1 / 6, 1 - 1 / 4, 0])


def test_solved_length_never_pays_for_length(ragged):
    """With rewards of -1 and 1 prompt 1 has mean -1/3: its penalty would be a bonus, and is 0."""
    reward = SolvedLength()(ragged.responses, 2 * ragged.responses.outcome - 1)
    assert reward[4:7].tolist() == [1, -1, -1]
    assert reward[:4] == pytest.approx([1 - 1 / 64, 1 - 3 / 64, 1 - 5 / 64, -1 - 1 / 8])  # mean 1/2


def test_truncation_penalty_by_hand(ragged):
    correct_truncated = replace(ragged.responses, truncated=np.arange(10) == 2)
    assert TruncationPenalty()(correct_truncated, ragged.responses.outcome).tolist() == [1, 1, 0, 0, 1, 0, 0, 1, 1, 0]
    # accuracy 3/4 and 1 are above 1/2: target 4 of 8 tokens there, 8 elsewhere: row 2 (5 tokens) loses its reward
    assert shape(TruncationPenalty(easy_target=0.5), ragged).tolist() == [1, 1, 0, 0, 1, 0, 0, 1, 1, 0]
    short = shape(TruncationPenalty(hard_target=0.125, easy_target=0.25), ragged)
    assert short.tolist() == [1, 0, 0, 0, 0, 0, 0, 1, 0, 0]


def test_length_penalty_by_hand(ragged):
    # right lengths: prompt 0: 1, 3, 5: mean 3, std sqrt(8/3), z = -+sqrt(3/2); prompt 1: one; prompt 2: 2, 3: z = -+1
    z = math.sqrt(3 / 2)
    expected = [1 - 0.6 * sigmoid(-z), 1 - 0.3, 1 - 0.6 * sigmoid(z), 0, 1 - 0.3, 0, 0]
    expected += [1 - 0.6 * sigmoid(-1), 1 - 0.6 * sigmoid(1), 0]
    assert shape(LengthPenalty(), ragged) == pytest.approx(expected, abs=1e-15)


def test_top_lambda_penalises_the_best_solved_prompts_only(ragged):
    # accuracies 3/4, 1/3, 1, 0: a quarter of four prompts is one, prompt 2; half of them also prompt 0
    penalised = shape(LengthPenalty(), ragged)
    assert shape(TopLambda(fraction=0.25), ragged).tolist() == [1, 1, 1, 0, 1, 0, 0, *penalised[7:9], 0]
    assert shape(TopLambda(fraction=0.5), ragged).tolist() == [*penalised[:4], 1, 0, 0, *penalised[7:9], 0]


def test_fraction_0_is_the_plain_reward_and_fraction_1_the_length_penalty(ragged):
    assert shape(TopLambda(fraction=0.0), ragged).tolist() == ragged.responses.outcome.tolist()
    assert shape(TopLambda(fraction=1.0), ragged).tolist() == shape(LengthPenalty(), ragged).tolist()


def test_a_base_with_toplambda_at_fraction_0_is_the_base(ragged):
    none = compose("grpo+toplambda", ["reward.TopLambda.fraction=0", "filter=Everything"])
    plain = compose("grpo").score_tables(ragged.responses, ragged.segments)
    assert none.score_tables(ragged.responses, ragged.segments).advantage.tolist() == plain.advantage.tolist()


# ten defects of the listing in a third party's report on 2505.18086, one test each


@over("stage", [TopLambda(fraction=1.0), LengthPenalty()])
def test_defect_1_a_short_wrong_answer_is_never_rewarded(stage):
    batch = make_batch([0] * 4, [1, 6, 7, 8], [0, 1, 1, 1])
    reward = shape(stage, batch)
    assert reward[0] == 0.0 < reward[1:].min() and reward[1:].min() >= 1 - 0.6


def test_defect_2_a_prompt_without_a_right_answer_is_never_selected():
    batch = make_batch([0, 0, 1, 1], [1, 2, 3, 4], [0, 0, 0, 0])
    assert not TopLambda(fraction=1.0).select(batch.responses).any()
    assert shape(TopLambda(fraction=0.2), batch).tolist() == [0, 0, 0, 0]  # the listing has a KeyError here


@over("stage", [TopLambda(fraction=1.0), LengthPenalty()])
def test_defect_3_equal_lengths_and_single_right_answers_have_no_z_and_nothing_overflows(stage):
    with np.errstate(all="raise", under="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = make_batch([0, 0, 0, 1, 1], [4, 4, 1, 7, 1], [1, 1, 0, 1, 0])
        long = replace(batch.responses, length=np.array([4, 4, 10**9, 7, 10**9]), max_response_length=10**9)
        assert stage(long, batch.responses.outcome).tolist() == [0.7, 0.7, 0, 0.7, 0]  # 1 - 0.6 * sigmoid(0)
        batch = make_batch([0] * 3, [4, 5, 1], [1, 1, 0])
        length = np.array([4, 5, 10**9])  # z of the incorrect one is 2e9
        long = replace(batch.responses, length=length, max_response_length=10**9)
        assert stage(long, batch.responses.outcome)[2] == 0


def test_defect_4_the_spread_is_of_the_population():
    batch = make_batch([0, 0], [2, 4], [1, 1])
    # mean 3, population std 1: z = -1, 1; with Bessel's correction it would be sqrt 2 and z = -+0.707
    assert shape(LengthPenalty(), batch) == pytest.approx([1 - 0.6 * sigmoid(-1), 1 - 0.6 * sigmoid(1)])


def test_defect_5_ties_do_not_follow_the_order_of_the_data():
    """Twenty all-correct prompts; the same four must win when the prompts come in another order."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 50, (20, 4))
    stage = TopLambda(fraction=0.2)

    def winners(order):
        batch = make_batch(np.repeat(np.arange(20), 4), lengths[order].ravel(), [1] * 80, max_response_length=50)
        return {int(order[place]) for place in np.flatnonzero(stage.select(batch.responses))}

    first = winners(np.arange(20))
    assert len(first) == 4 and first != {0, 1, 2, 3}
    for _ in range(10):
        assert winners(rng.permutation(20)) == first


def test_defect_6_selection_is_over_the_rollout_batch_whatever_the_split_into_updates(ragged):
    from fairlen.methods.method import updates

    scored = compose("grpo+toplambda", ["reward.0.fraction=0.25"]).score_tables(ragged.responses, ragged.segments)
    assert scored.reward.tolist()[:7] == [1, 1, 1, 0, 1, 0, 0] and scored.reward[7] < 1
    split = np.concatenate([update.advantage for update in updates(scored, 3)])
    # one call a process would select one of each part
    assert split.tolist() == scored.advantage[scored.trains].tolist()


def test_defect_7_lengths_are_generated_tokens_with_eos():
    rows = tuple(
        Response(0, (9,) * 5 + (1,) * length, 5, (-1.0,) * length, "stop", seed=0, outcome=1.0, status="correct")
        for length in (2, 4)
    )
    rollouts = Rollouts(rows, whole_segments(rows), 8)
    assert rollouts.response_table.length.tolist() == [2, 4]
    scored = replace(compose("grpo+lp"), advantage=GroupCentered()).score(rollouts)
    assert scored.reward == pytest.approx([1 - 0.6 * sigmoid(-1), 1 - 0.6 * sigmoid(1)])


def test_defect_8_right_is_the_verdict_not_a_threshold_on_the_reward():
    batch = make_batch([0, 0, 0], [2, 4, 6], [1, 1, 0], outcome=[0.9, 0.5, 1.5])
    # graded outcomes keep their values; the correct ones of 2 and 4 tokens are penalised, the wrong one of 1.5 is not
    expected = [0.9 - 0.6 * sigmoid(-1), 0.5 - 0.6 * sigmoid(1), 1.5]
    assert shape(LengthPenalty(), batch) == pytest.approx(expected)


def test_defect_9_a_floor_of_accuracy_keeps_weak_prompts_out(ragged):
    assert TopLambda(fraction=1.0, min_accuracy=0.5).select(ragged.responses).tolist() == [True, False, True, False]
    assert TopLambda(fraction=1.0, min_accuracy=0.75).select(ragged.responses)[0]  # at least, not above


def test_defect_10_a_truncated_answer_is_right_only_if_verified(ragged):
    rows = tuple(
        Response(0, (9,) + (1,) * length, 1, (-1.0,) * length, finish, seed=0, status=status)
        for length, finish, status in ((2, "stop", "correct"), (8, "length", "unverified"), (8, "length", "correct"))
    )
    table = Rollouts(rows, whole_segments(rows), 8).response_table
    assert table.correct.tolist() == [True, False, True] and table.truncated.tolist() == [False, True, True]
    # the unverified one takes no part in the statistics: mean 5, std 3, z = -1 and 1
    assert LengthPenalty()(table, np.ones(3)) == pytest.approx([1 - 0.6 * sigmoid(-1), 1, 1 - 0.6 * sigmoid(1)])


# what the paper does not mention


def test_alpha_cancels_in_all_right_groups_under_std_and_not_without_it():
    batch = make_batch([0] * 4, [1, 3, 5, 8], [1] * 4)
    weak, strong = (LengthPenalty(alpha)(batch.responses, batch.responses.outcome) for alpha in (0.1, 0.9))
    normalized = [GroupNormalized()(batch.segments, reward) for reward in (weak, strong)]
    assert normalized[0] == pytest.approx(normalized[1], rel=1e-12)
    assert abs(normalized[0]).max() > 1  # full pressure at whatever alpha
    centred = [GroupCentered()(batch.segments, reward) for reward in (weak, strong)]
    assert centred[1] == pytest.approx(9 * centred[0], rel=1e-12)


def test_alpha_does_not_cancel_in_mixed_groups(ragged):
    advantages = []
    for alpha in (0.1, 0.9):
        reward = LengthPenalty(alpha)(ragged.responses, ragged.responses.outcome)
        advantages.append(GroupNormalized()(ragged.segments, reward)[:4])
    assert np.abs(advantages[0] - advantages[1]).max() > 0.3


def test_selected_is_counted_over_prompts_that_count():
    """Six prompts, the last one without an active response: 0.2 * 5 is one prompt, wherever the silent one stands."""
    for silent in (0, 3, 5):
        batch = make_batch(np.repeat(np.arange(6), 2), [1, 2] * 6, [1, 0] * 6, inactive=[2 * silent, 2 * silent + 1])
        assert TopLambda(fraction=0.2).select(batch.responses.active_rows()).sum() == 1


def test_fractions_of_whole_numbers_are_whole():
    """0.07 * 100 is 7.000000000000001 and 0.29 * 100 is 28.999999999999996 in binary."""
    batch = make_batch(np.arange(100), [1] * 100, [1] * 100)
    assert TopLambda(fraction=0.07).select(batch.responses).sum() == 7
    batch = make_batch([0, 0], [29, 30], [1, 1], max_response_length=100)
    assert shape(TruncationPenalty(hard_target=0.29, easy_target=0.29), batch).tolist() == [1, 0]


@over(
    "make, message",
    [
        (lambda: SoftOverlong(factor=float("inf")), r"SoftOverlong: factor=inf: give a finite number, 0 or more"),
        (lambda: SoftOverlong(margin=0.0), r"SoftOverlong: margin=0.0: give a fraction from more than 0 to 1"),
        (lambda: GroupNormalized(ddof=2), r"GroupNormalized: ddof=2: give one of 0, 1"),
        (lambda: LengthPenalty(alpha=float("nan")), r"LengthPenalty: alpha=nan: give a fraction"),
        (lambda: RelativeLength(alpha=-1), r"RelativeLength: alpha=-1: give a finite number, 0 or more"),
        (lambda: TruncationPenalty(easy_target=0), r"TruncationPenalty: easy_target=0: give a finite number above 0"),
    ],
)
def test_errors_name_stage_field_value_and_fix(make, message):
    with pytest.raises(ValueError, match=message):
        make()
