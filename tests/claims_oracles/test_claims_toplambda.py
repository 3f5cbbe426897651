"""Claims of 2505.18086 by exact arithmetic: what alpha does, whom the selection presses, what the listing in a
third party's report computes."""

import math

import numpy as np
import pytest
from fixtures import make_batch
from loops import over

from fairlen.methods.compose import compose
from fairlen.methods.stages.advantage import GroupCentered, GroupNormalized
from fairlen.methods.stages.reward import LengthPenalty, TopLambda


@over("length", [[10, 11], [10, 1000]])
@over("alpha", [0.01, 0.6, 1.0])
def test_two_right_answers_get_advantages_of_1_whatever_alpha_and_their_lengths(length, alpha):
    """z is -1 and 1 for any two lengths, rewards 1 - alpha sigmoid(-+1), and the normalised difference of two numbers is +-1:
    one token of difference and 990 press equally, with alpha 0.01 as with 1. Without the division alpha is the strength: alpha
    (sigmoid(1) - 1/2) = 0.231 alpha."""
    batch = make_batch([0, 0], length, [1, 1], max_response_length=1000)
    reward = LengthPenalty(alpha)(batch.responses, batch.responses.outcome)
    assert GroupNormalized()(batch.segments, reward) == pytest.approx([1, -1], rel=1e-9)
    strength = alpha * (1 / (1 + math.exp(-1)) - 1 / 2)
    assert GroupCentered()(batch.segments, reward) == pytest.approx([strength, -strength])
    assert strength == pytest.approx(0.231 * alpha, rel=1e-3)


@over("right", [1, 8, 16])
def test_the_selection_takes_its_share_however_weak_the_model_is(right):
    """10 prompts of 16 answers with 1, 8 or 16 of them right, all alike: fraction 0.2 selects 2 in the first rollout batch of a
    model that knows nothing as in the last. What waits for ability is a floor of accuracy, which the text does not have."""
    length = [1 + (7 * at) % 50 for at in range(160)]
    verdicts = [int(at % 16 < right) for at in range(160)]
    responses = make_batch(np.repeat(np.arange(10), 16), length, verdicts, max_response_length=64).responses
    assert TopLambda().select(responses).sum() == 2
    assert TopLambda(min_accuracy=0.5).select(responses).sum() == (0 if right == 1 else 2)


def listed(length, correct, group, fraction=0.2, alpha=0.6):
    """What the listing computes, restated: the selection and its order, the statistics of correct responses, and a penalty
    that every response of a selected group gets, without asking whether it is right."""
    groups = list(dict.fromkeys(group))
    accuracy = {g: np.mean([c for c, h in zip(correct, group, strict=True) if h == g]) for g in groups}
    chosen = sorted(groups, key=lambda g: accuracy[g], reverse=True)[: max(1, math.ceil(len(groups) * fraction))]
    stats = {}
    for g in groups:
        lengths = [n for n, c, h in zip(length, correct, group, strict=True) if h == g and c]
        if lengths:
            stats[g] = np.mean(lengths), np.std(lengths) if len(lengths) > 1 else 0.0001
    rewards = []
    for n, c, g in zip(length, correct, group, strict=True):
        if g in chosen:
            mean, std = stats[g]
            rewards.append(1 - alpha * (1 / (1 + math.exp(-(n - mean) / std))))
        else:
            rewards.append(float(c))
    return rewards


def test_the_listing_pays_short_incorrect_responses():
    """Correct responses of 100 and 120 tokens and an incorrect one of 10: mean 110, std 10, z = -10. The listing gives the
    incorrect one 1 - 0.6 sigmoid(-10) = 0.99997, more than the correct ones (0.839 and 0.561); the text says 0, as the stage."""
    length, correct = [100, 120, 10], [True, True, False]
    rewards = listed(length, correct, [0, 0, 0])
    assert rewards == pytest.approx([0.839, 0.561, 0.99997], abs=5e-4) and rewards[2] > max(rewards[:2])
    batch = make_batch([0] * 3, length, [1, 1, 0], max_response_length=200)
    assert TopLambda()(batch.responses, batch.responses.outcome) == pytest.approx([*rewards[:2], 0.0])


def test_the_listing_fails_on_three_ordinary_rollout_batches():
    """No correct response in the selected group: no statistics, KeyError. One correct response of 50 tokens beside an incorrect
    one of 40: std 1e-4, z = -1e5, exp overflows. Two correct responses of equal length: 0/0, nan."""
    with pytest.raises(KeyError):
        listed([5, 6], [False, False], [0, 0])
    with pytest.raises(OverflowError):
        listed([50, 40], [True, False], [0, 0])
    with np.errstate(invalid="ignore"):
        assert math.isnan(listed([30, 30], [True, True], [0, 0])[0])


def test_all_right_prompts_train_under_the_penalty_and_a_filter_of_mixed_ones_would_drop_them():
    """Two prompts of two answers, all right; fraction 0.2 selects one. Under verdicts of 0 and 1 nothing trains; with the
    penalty one prompt of 2 does, and dynamic sampling by verdicts keeps 0 of 2."""
    batch = make_batch([0, 0, 1, 1], [10, 20, 10, 30], [1, 1, 1, 1], max_response_length=50)
    plain = compose("grpo").score_tables(batch.responses, batch.segments)
    assert not plain.advantage.any()
    scored = compose("grpo+toplambda").score_tables(batch.responses, batch.segments)
    moved = {int(p) for p in batch.responses.prompt[scored.advantage != 0]}
    assert len(moved) == 1
    assert compose("grpo+dynamic").filter(batch.responses).sum() == 0
