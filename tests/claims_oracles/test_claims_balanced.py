"""Claims of 2605.04077 by exact arithmetic: what is left of the length bias in small groups, drop-in, and what the coupling
is."""

from dataclasses import fields
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from fixtures import make_batch
from test_closed_forms import balanced_form, sequence_mean_form, token_mean_form

from fairlen.methods.stages.advantage import GroupCentered, GroupNormalized, LeaveOneOut
from fairlen.methods.stages.aggregation import Balanced, ConstantBudget, SequenceMean, TokenMean, TokenSum


def weigh(rule, prompt, length, right, stage=None):
    """Weights and advantages of one update, budget 100."""
    batch = make_batch(prompt, length, right, max_response_length=100)
    advantage = (stage or GroupNormalized())(batch.segments, batch.responses.outcome)
    return rule(batch.segments, advantage), advantage


def test_one_answer_of_a_sign_is_weighed_as_by_the_sequence_mean():
    """The mean over the tokens of one answer is its sequence mean. Pairs: both weights are 1/(2 T), 1/4 and 1/20 for 2 and 10
    tokens. Groups of 4 with one right answer of 10 tokens: 1/40, as in the sequence mean; the wrong ones of 1, 2, 3 tokens
    share 3/4 over 6 tokens: 1/8 each instead of 1/4, 1/8, 1/12."""
    for rule in (Balanced(), SequenceMean()):
        weight, _ = weigh(rule, [0, 0], [2, 10], [1, 0])
        assert weight == pytest.approx([1 / 4, 1 / 20])
    balanced, _ = weigh(Balanced(), [0] * 4, [10, 1, 2, 3], [1, 0, 0, 0])
    mean, _ = weigh(SequenceMean(), [0] * 4, [10, 1, 2, 3], [1, 0, 0, 0])
    assert balanced == pytest.approx([1 / 40, 1 / 8, 1 / 8, 1 / 8])
    assert mean == pytest.approx([1 / 40, 1 / 4, 1 / 8, 1 / 12])


def test_what_is_left_of_the_push_on_stopping_by_group_size():
    """Answers stop with 0.1 at every token and are right with 1/2 whatever their length. The push of wrong answers on the stop
    logit under balanced, as a share of the sequence mean's: all of it in pairs (100%), 53%, 22% and 9% in groups of 4, 8 and
    16. At 4 the terms are C(4, k) sqrt(k m) (m E[1/N_m] - s) for m = 4 - k wrong ones, over their sum with E[1/T] - s in place
    of m E[1/N_m]."""
    share = {size: balanced_form(size, 0.1) / sequence_mean_form(size, 0.1) for size in (2, 4, 8, 16)}
    assert share[2] == pytest.approx(1.0, abs=1e-12)
    assert [round(100 * share[size]) for size in (4, 8, 16)] == [53, 22, 9]


def test_at_small_groups_the_token_mean_pushes_less_than_balanced():
    """The same push under the token mean of the group, as a share of the sequence mean's: 42%, 18%, 8% and 4% in groups of 2,
    4, 8 and 16; in pairs 2 (E[1/N_2] - s/2) / (E[1/T] - s) = 2 (0.0827 - 0.05) / 0.1558. Less than balanced has, where length
    and verdict have nothing to do with each other."""
    share = {size: token_mean_form(size, 0.1) / sequence_mean_form(size, 0.1) for size in (2, 4, 8, 16)}
    other = {size: balanced_form(size, 0.1) / sequence_mean_form(size, 0.1) for size in share}
    assert [round(100 * value) for value in share.values()] == [42, 18, 8, 4]
    assert [round(100 * value) for value in other.values()] == [100, 53, 22, 9]


def test_equal_lengths_within_a_sign_are_enough_for_equality():
    """Equation 23: right answers of 2 tokens, wrong ones of 10: balanced is the sequence mean, the token mean is not. With one
    wrong answer of 11 it is not any more."""
    right = [1, 1, 0, 0, 0]
    for length, equal in (([2, 2, 10, 10, 10], True), ([2, 2, 10, 10, 11], False)):
        balanced, _ = weigh(Balanced(), [0] * 5, length, right)
        mean, _ = weigh(SequenceMean(), [0] * 5, length, right)
        token, _ = weigh(TokenMean(), [0] * 5, length, right)
        assert np.allclose(balanced, mean, rtol=1e-12) is equal
        assert not np.allclose(balanced, token, rtol=1e-3)


def test_counts_are_the_only_weights_that_balance_the_signs():
    """Appendix A: a side's share w of the mean over its tokens pushes w sqrt((G-k)/k) and (1-w) sqrt(k/(G-k)). Equal only for
    w (G-k) = (1-w) k, that is w = k/G: of 1/10 to 9/10 at k = 3 of 10, 3/10 alone."""
    k, size = 3, 10
    fits = [Fraction(n, 10) for n in range(1, 10) if Fraction(n, 10) ** 2 * Fraction(size - k, k)
            == (1 - Fraction(n, 10)) ** 2 * Fraction(k, size - k)]  # fmt: skip
    assert fits == [Fraction(k, size)] == [Fraction(3, 10)]


def test_a_split_group_is_another_update():
    """Where a loss sees micro-batches its sums are those of half a group. Lengths 2, 4 right and 10, 6 wrong, advantages 1 and
    -1: the whole group weighs right tokens (2/4)/6 = 1/12 and wrong ones (2/4)/16 = 1/32; halves of one right and one wrong
    answer, added with 1/2 each, 1/8, 1/16 and 1/40, 1/24. What is a drop-in for a plan over the group is none for such a
    loss."""
    whole, advantage = weigh(Balanced(), [0] * 4, [2, 4, 10, 6], [1, 1, 0, 0])
    assert whole == pytest.approx([1 / 12, 1 / 12, 1 / 32, 1 / 32])
    assert advantage.tolist() == [1, 1, -1, -1]
    batch = make_batch([0] * 2, [2, 10], [1, 0]), make_batch([0] * 2, [4, 6], [1, 0])
    halves = [Balanced()(half.segments, np.array([1.0, -1.0])) / 2 for half in batch]
    assert np.concatenate(halves) == pytest.approx([1 / 8, 1 / 40, 1 / 16, 1 / 24])


def test_balanced_adds_no_number():
    """Beside what it averages, tokens of a group in the paper, the stage has no field: 0 numbers to choose."""
    assert [f.name for f in fields(Balanced)] == ["scope", "by"] and Balanced() == Balanced("group", "tokens")
    assert sum(f.type in ("float", "int") for f in fields(Balanced)) == 0


def test_the_policy_gradient_itself_couples_sign_and_length():
    """Answers of 1 and of 2 tokens: stop at once with s or go on and stop for certain; the short one is right, the long one
    wrong. Over all pairs, leave-one-out with a token sum: the expected gradient by the stop logit is s (1 - s), exactly that of
    the expected reward s. A mixed pair has sum A T / 2 = (1 - 2)/2 = -1/2: the loss at ratio 1 is 1/2, not 0. Under balanced it
    is 0, and the gradient 3/4 of the true one in direction of stopping: a token of the long answer weighs 1/4."""
    stop = Fraction(1, 3)
    found = {}
    for name, rule, stage in (("sum", TokenSum(), LeaveOneOut()), ("balanced", Balanced(), GroupNormalized())):
        total, loss = Fraction(0), None
        for pair in product((1, 2), repeat=2):
            weight, advantage = weigh(rule, [0, 0], pair, [int(n == 1) for n in pair], stage)
            chance = Fraction(1)
            for n in pair:
                chance *= stop if n == 1 else 1 - stop
            score = [(1 - stop) if n == 1 else -stop for n in pair]  # the second token of a long answer has no choice
            total += chance * sum(
                Fraction(w).limit_denominator(64) * Fraction(a).limit_denominator(64) * z
                for w, a, z in zip(weight, advantage, score, strict=True)
            )
            if set(pair) == {1, 2}:
                loss = -float((weight * advantage * np.array(pair)).sum())
        found[name] = total, loss
    assert found["sum"] == (stop * (1 - stop), pytest.approx(1 / 2))
    # 2 s (1 - s) mixed pairs: (1 - s)/2 + s/4 instead of (1 - s)/2 + s/2
    assert found["balanced"][0] == 2 * stop * (1 - stop) * ((1 - stop) / 2 + stop / 4)
    assert found["balanced"][1] == pytest.approx(0)


def test_the_constant_of_dr_grpo_is_no_token_mean():
    """The paper counts Dr. GRPO among those that divide by the tokens of the group. It divides by a constant: of groups with 4
    and 40 tokens in all the token mean weighs tokens 10 to 1, the constant 1 to 1, 1 / (4 * 100) for 4 rows and a budget of 100
    whatever their lengths."""
    prompt, right = [0, 0, 1, 1], [1, 0, 1, 0]
    token, _ = weigh(TokenMean(), prompt, [1, 3, 10, 30], right, GroupCentered())
    assert token[0] / token[2] == pytest.approx(10)
    for length in ([1, 3, 10, 30], [50, 60, 70, 80]):
        constant, _ = weigh(ConstantBudget(), prompt, length, right, GroupCentered())
        assert constant == pytest.approx(1 / (4 * 100))
