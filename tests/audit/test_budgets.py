"""Accuracy within a budget, against closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from fairlen.audit.numbers import describe_budgets
from fairlen.audit.statistics.budgets import find_curve, find_enough

PROMPT = np.repeat(np.arange(4), 4)


def curve(length, correct, truncated=(), prompt=PROMPT):
    ended = np.zeros(16, np.bool_)
    ended[list(truncated)] = True
    return find_curve(prompt, np.array(length), np.isin(np.arange(16), list(correct)), ended)


def at(found, budget):
    (place,) = np.flatnonzero(found.budget == budget)
    return place


def test_the_curve_counts_what_ended_within_each_budget():
    """Lengths 8, 16, 32, 64 in each prompt; correct are the 8 and the 32 of two prompts and the 64 of one: 2, 2, 4, 5 of 16."""
    found = curve([8, 16, 32, 64] * 4, (0, 2, 4, 6, 3))
    assert [found.correct.value[at(found, b)] for b in (8, 16, 32, 64)] == [2 / 16, 2 / 16, 4 / 16, 5 / 16]
    assert found.longest == 64 == found.budget[-1] and found.budget[found.half] == 32
    lost = found.lost.at(found.half)
    assert lost.value == 1 / 16 and lost.low > 0 and found.enough.value == 64  # 4 of 5 end within 32, less than .9
    # budgets double every four places
    assert found.budget[4:] / found.budget[:-4] == pytest.approx(2.0, rel=0.07)
    assert (found.highest.value == found.correct.value).all()


def test_a_truncated_response_is_incorrect_within_its_limit_and_may_be_anything_beyond():
    """Half of the prompts had a limit of 32, which ended 2 of their responses: 5/16 or 7/16 within 64 tokens."""
    length = [8, 16, 32, 32] * 2 + [8, 16, 32, 64] * 2
    found = curve(length, (0, 4, 8, 12, 15), truncated=(3, 7))
    low, high = found.correct.value, found.highest.value
    assert (low[at(found, 32)], high[at(found, 32)]) == (4 / 16, 4 / 16)
    assert (low[at(found, 64)], high[at(found, 64)]) == (5 / 16, 7 / 16)
    assert found.longest == 64 and found.budget[-1] == 128 and found.budget[found.half] == 32


def test_intervals_are_over_prompts():
    """Four prompts all or nothing: the share of 16 responses is known as well as that of 4, and no better."""
    found = curve([10] * 16, range(8))
    alone = curve([10] * 16, range(8), prompt=np.arange(16))
    low, high = found.correct.low[-1], found.correct.high[-1]
    # Clopper and Pearson's interval of 2 of 4: quantiles of Beta(2, 3) and Beta(3, 2), 0.0676 and 0.9324, drawn 4,000 times
    assert (low, high) == (pytest.approx(0.0676, abs=0.01), pytest.approx(0.9324, abs=0.01))
    assert alone.correct.high[-1] - alone.correct.low[-1] < 0.6 * (high - low)


def test_no_responses_have_no_curve():
    nothing = np.zeros(0, np.int64)
    found = find_curve(nothing, nothing, nothing > 0, nothing > 0)
    assert len(found.budget) == 0 and found.half == -1 and not found.enough.exists


def test_none_correct_has_a_curve_of_zeros_and_one_prompt_no_interval():
    found = curve([8, 16, 32, 64] * 4, ())
    assert found.correct.value.tolist() == [0.0] * len(found.budget) and not found.enough.exists
    alone = curve([8, 16, 32, 64] * 4, (0,), prompt=0 * PROMPT)
    assert np.isnan(alone.correct.low).all() and alone.enough.value == 8 and np.isnan(alone.enough.low)


@pytest.mark.parametrize(("prompts", "has_end"), [(8, False), (30, False), (40, True), (64, True)])
def test_the_budget_that_is_enough_has_an_upper_end_only_if_prompts_can_prove_it(prompts, has_end):
    """Even if all of n prompts ended, the share that ends is at least 0.025^(1/n): 0.9 from n = 36 on."""
    length = np.random.default_rng(prompts).integers(10, 100, prompts)
    found = find_enough(np.arange(prompts), length)
    assert np.isfinite(found.high) == has_end
    assert found.low <= found.value and not found.high < found.value


def test_the_budget_that_is_enough_holds_the_truth_with_few_correct_responses():
    """64 prompts, of which some have a correct response, of 1 to 200 tokens alike: nine tenths end within 180."""
    rng, held, bounded = np.random.default_rng(3), 0, 0
    for _ in range(200):
        prompt = np.repeat(np.arange(64), rng.integers(0, 4, 64))
        found = find_enough(prompt, rng.integers(1, 201, len(prompt)))
        is_held = not found.excludes(180.0)
        held += is_held
        bounded += np.isfinite(found.high)
    assert held >= 180 and bounded > 100  # 90%


def test_the_sentence_on_budgets_names_a_missing_upper_end():
    few = find_curve(np.arange(16), np.full(16, 10), np.ones(16, np.bool_), np.zeros(16, np.bool_))
    many = find_curve(np.arange(80), np.full(80, 10), np.ones(80, np.bool_), np.zeros(80, np.bool_))
    assert "too few prompts" in describe_budgets(few, "tokens") and "too few" not in describe_budgets(many, "tokens")
