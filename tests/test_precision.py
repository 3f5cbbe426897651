"""Rewards that differ by the rounding of the type in which they came are equal, in every method and home; others differ."""

import asyncio
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fairlen import compose, plan_rows
from fairlen.batch import build_responses, build_segments
from fairlen.methods.presets import BASES
from fairlen.precision import add_parts
from fairlen.rollouts import Response, Rollouts
from fairlen.tasks.grader import Grader, WeightedReward
from fairlen.tasks.playground import Playground

WHOLE = [name for name, build in BASES.items() if build().sampling.is_whole]
SINGLE, HALF, DOUBLE = np.float32, np.float16, np.float64
TENTHS = np.cumsum(np.full(10, 0.1, SINGLE), dtype=SINGLE)[-1]
"""0.1 ten times, which in float32 is 1 + 2^-23."""
EQUAL: dict[str, Any] = {
    "float32, .6 + .1": np.array([SINGLE(0.6) + SINGLE(0.1), 0.7], SINGLE),
    "float32, as a list": [float(SINGLE(0.6) + SINGLE(0.1)), float(SINGLE(0.7))],
    "float32, a tensor": torch.tensor([0.6, 0.7]) + torch.tensor([0.1, 0.0]), "float32, ten tenths": [float(TENTHS), 1.0],
    "float32, what is left of .3 - .1 - .2": np.array([SINGLE(0.3) - SINGLE(0.1) - SINGLE(0.2), 0.0], SINGLE),
    "float32, negative": -np.array([SINGLE(0.6) + SINGLE(0.1), 0.7], SINGLE),
    "float32, large": np.array([1e6 + 0.1, 1e6 + 0.2], SINGLE),
    "bfloat16": torch.tensor([0.6, 0.7]).bfloat16() + torch.tensor([0.1, 0.0]).bfloat16(),
    "float16": np.array([HALF(0.1) + HALF(0.2) + HALF(0.4), 0.7], HALF), "float64, .1 + .2": [0.1 + 0.2, 0.3],
    "float64, what is left of .3 - .1 - .2": [0.3 - 0.1 - 0.2, 0.0], "float64, large": [1e9 + 0.1 + 0.2, 1e9 + 0.3],
}  # fmt: skip
DIFFERENT: dict[str, Any] = {
    "float64, 1e-9": [0.7, 0.7 + 1e-9], "float64, small": [1e-9, 2e-9], "float64, 2^-40": [1.0, 1.0 + 2.0**-40],
    "float64, large": [1e9, 1e9 + 0.01], "float32, 1e-5": np.array([0.7, 0.70001], SINGLE),
    "float16, .01": np.array([0.7, 0.71], HALF), "bfloat16, .05": torch.tensor([0.95, 1.0]).bfloat16(),
    "whole numbers": [10**9, 10**9 + 1],
}  # fmt: skip


def plan(name: str, rewards: Any, **more: Any) -> Any:
    """A plan of two responses of 3 and 5 tokens to one prompt, one of them correct where nothing else is said."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where nothing trains
        given = {"groups": [0, 0], "lengths": [3, 5], "correct": [1, 0], "max_response_length": 512} | more
        return plan_rows(compose(name), rewards=rewards, **given)


@pytest.mark.parametrize("name", ["grpo", "gspo", "dapo", "dr_grpo", "rloo", "dler", "maxrl", "fspo", "grpo+balanced"])
def test_rewards_that_differ_by_rounding_have_no_advantage(name):
    wrong = {
        kind: list(plan(name, rewards).advantage)
        for kind, rewards in EQUAL.items()
        if plan(name, rewards).advantage.any()
    }
    assert wrong == {}


@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_rewards_that_differ_otherwise_keep_their_sign(name):
    """Of two values the normalised advantages are -1 for the first, the smaller one, and 1."""
    for kind, rewards in DIFFERENT.items():
        assert plan(name, rewards).advantage == pytest.approx([-1.0, 1.0], rel=1e-4), kind


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_rounding_changes_no_method(name):
    """The plan of rewards in float32 arithmetic is that of the same rewards as decimals, whatever a method makes of them."""
    exact = [0.7, 0.7, 0.0, 1.0, 0.7, 0.7, 0.3, 0.0]
    rounded = np.array([SINGLE(0.6) + SINGLE(0.1), 0.7, 0.0, TENTHS, SINGLE(0.8) - SINGLE(0.1), 0.7, 0.3, 0], SINGLE)
    rounded[7] = SINGLE(0.3) - SINGLE(0.1) - SINGLE(0.2)
    more = {"groups": [0] * 4 + [1] * 4, "lengths": [3, 5, 4, 9, 3, 5, 4, 9], "correct": [1, 1, 0, 1, 1, 1, 0, 0]}
    one, other = plan(name, exact, **more), plan(name, rounded, **more)
    assert other.trains.tolist() == one.trains.tolist()
    assert np.sign(other.advantage).tolist() == np.sign(one.advantage).tolist()
    assert other.advantage == pytest.approx(one.advantage, rel=1e-5, abs=1e-6)
    assert other.weight == pytest.approx(one.weight, rel=1e-5)


def test_the_order_of_rows_decides_nothing():
    draw = np.random.default_rng(0)
    rewards = (draw.integers(0, 4, 24) / 10).astype(SINGLE) + draw.choice([0.0, 6e-8, -6e-8], 24).astype(SINGLE)
    order, groups, lengths = draw.permutation(24), np.repeat([0, 1, 2], 8), draw.integers(1, 9, 24)
    given = {"correct": np.arange(24) % 2}
    one = plan("grpo", rewards, groups=groups, lengths=lengths, **given)
    other = plan("grpo", rewards[order], groups=groups[order], lengths=lengths[order], correct=given["correct"][order])
    assert other.advantage == pytest.approx(one.advantage[order], abs=1e-12)


def test_a_filter_by_rewards_drops_a_prompt_whose_rewards_differ_by_rounding():
    """dler keeps prompts of different rewards: of two, 0.7 and .6 + .1 in float32 are none, 0.7 and 0.8 are one."""
    rewards = np.array([SINGLE(0.6) + SINGLE(0.1), 0.7, 0.7, 0.8], SINGLE)
    found = plan("dler", rewards, groups=[0, 0, 1, 1], lengths=[3, 5] * 2, correct=[1, 1, 1, 0])
    assert found.trains.tolist() == [False, False, True, True]


def respond(tokens: Sequence[int], track: int, outcome: float) -> Response:
    return Response(
        prompt=0, token_ids=(9, *tokens), num_prompt=1, logprobs=(-1.0,) * len(tokens), finish="stop", seed=track,
        temperature=1.0,
        policy_version=0, track=track, round=0, inherited=0, outcome=outcome, status="correct", active=True,
    )  # fmt: skip


@pytest.mark.parametrize(("low", "high", "trains"), [
    (float(SINGLE(0.7)), float(SINGLE(0.6) + SINGLE(0.1)), False), (0.3, 0.1 + 0.2, False), (0.3, 0.3 + 1e-9, True),
])  # fmt: skip
def test_a_pair_worth_the_same_but_for_rounding_is_skipped(low, high, trains):
    """One stream that ends in a tie: two tracks of two tokens."""
    method = compose("eqlen", ["sampling.streams=1"])
    responses = (respond((1, 2), 0, low), respond((3, 2), 1, high))
    scored = method.score(Rollouts(responses, method.sampling.cut(responses), 8))
    assert scored.trains.tolist() == [trains] * 2
    assert scored.advantage == pytest.approx([-1.0, 1.0] if trains else [0.0, 0.0], rel=1e-6)


def test_what_equals_a_threshold_but_for_rounding_is_not_above_it():
    verdicts = [0.1 + 0.2, 0.3, 0.3 + 1e-9, float(SINGLE(0.3)), 0.2]
    table = build_responses([0] * 5, [1] * 5, verdicts, verdicts, [False] * 5, 8, correct_threshold=0.3)
    assert table.correct.tolist() == [False, False, True, False, False]
    half = SINGLE(0.1) * SINGLE(5) + SINGLE(2**-24)  # 0.5 + 2^-24, a sum of float32 that should be 1/2
    assert not build_responses([0], [1], [half], [half], [False], 8).correct.any()


def test_trls_rewards_are_compared_in_float32():
    """.6 + .1 and .7 + 0 of two functions: the same outcome, and not above a threshold of .7."""
    outcomes = pytest.importorskip("fairlen.integrations.trl.rows")
    found = outcomes.Outcomes.read(torch.tensor([[0.6, 0.1], [0.7, 0.0], [0.7, 0.1]]), torch.ones(2), 0.7, ["a", "b"])
    assert found.verdict.tolist() == [0.0, 0.0, 1.0]
    table = build_responses([0, 0, 0], [3, 5, 4], found.outcome, found.verdict, [False] * 3, 8)
    rewards = compose("grpo").score_tables(table, build_segments(table, table.length)).reward
    assert rewards[0] == rewards[1] < rewards[2]


def test_parts_of_float32_add_up_to_a_number_of_float32():
    """A verdict of 1 and 0.9 times a reward of .7, as .6 + .1 in float32 and at once: equal outcomes in our own grader."""
    found = []
    for value in (SINGLE(0.6) + SINGLE(0.1), SINGLE(0.7)):
        reward = WeightedReward("style", lambda prompts, completions, value=value, **columns: [value], 0.9)
        grader, task = Grader(Playground(), lambda ids: "", [reward]), Playground()
        found.append(asyncio.run(grader(task.train(0), replace(respond((1, 2), 0, 1.0), status="correct"))).outcome)
    assert found == pytest.approx([1.63] * 2)
    assert add_parts([1.0, 0.3], [1.0, 1 / 3]) == 1.0 + 0.3 * (1 / 3)  # of float64, to the last digit
    assert not plan("grpo", found).advantage.any()


def test_means_of_nearly_nothing_are_nothing():
    """-.3 + .1 + .2 is 2.8e-17 in binary and 0 in decimals: maxrl, which divides by the mean, has nothing to divide by."""
    found = plan("maxrl", [-0.3, 0.1, 0.2], groups=[0] * 3, lengths=[3, 5, 4], correct=[0, 1, 1])
    assert np.abs(found.advantage).max() < 10
