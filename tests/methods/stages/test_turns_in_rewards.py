"""Length rewards that count tokens, turns or both."""

from __future__ import annotations

import math

import numpy as np
import pytest
from loops import over

from fairlen.batch import build_responses
from fairlen.methods.compose import compose
from fairlen.methods.description import hash_method, to_dict
from fairlen.methods.stages.reward import LengthPenalty, RelativeLength, TopLambda

LENGTH, TURNS = [10, 30, 20, 20], [1, 1, 3, 4]
"""Of one prompt: three correct trajectories and an incorrect one."""
TABLE = build_responses(
    np.zeros(4, np.int64), LENGTH, [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0], [False] * 4, 100, num_turns=TURNS
)
REWARD = np.array([1.0, 1.0, 1.0, 0.0])


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


TOKENS_Z = [-10, 10, 0]  # of 10, 30, 20: mean 20, variance 200 / 3
TURNS_Z = [1 - 5 / 3, 1 - 5 / 3, 3 - 5 / 3]  # of 1, 1, 3: mean 5/3, variance (2 * 4/9 + 16/9) / 3 = 8/9
BY_TOKENS = [sigmoid(z / math.sqrt(200 / 3)) for z in TOKENS_Z]
BY_TURNS = [sigmoid(z / math.sqrt(8 / 9)) for z in TURNS_Z]
EXPECTED = {
    "tokens": BY_TOKENS,
    "turns": BY_TURNS,
    "both": [(a + b) / 2 for a, b in zip(BY_TOKENS, BY_TURNS, strict=True)],
}


@over("of", ["tokens", "turns", "both"])
@over("stage", [LengthPenalty, TopLambda])
def test_a_penalty_of_correct_trajectories(stage, of):
    found = stage(alpha=0.6, of=of)(TABLE, REWARD)
    assert found.tolist() == pytest.approx([1 - 0.6 * share for share in EXPECTED[of]] + [0.0])


@over(
    "of, relative",
    [
        ("tokens", [10 / 20, 30 / 20, 1.0]),  # mean of all four: 80 / 4
        ("turns", [1 / 2.25, 1 / 2.25, 3 / 2.25]),  # 9 / 4
        ("both", [(0.5 + 1 / 2.25) / 2, (1.5 + 1 / 2.25) / 2, (1 + 3 / 2.25) / 2]),
    ],
)
def test_a_division_by_relative_length(of, relative):
    found = RelativeLength(alpha=0.33, of=of)(TABLE, REWARD)
    assert found.tolist() == pytest.approx([1 / (1 + 0.33 * share) for share in relative] + [0.0])


def test_it_is_set_by_its_name_and_written_down_where_it_is_set():
    plain, by_turns = compose("grpo+lp"), compose("grpo+lp", ["reward.0.of=turns"])
    assert plain.reward[0] == LengthPenalty() and by_turns.reward[0] == LengthPenalty(of="turns")
    assert "of" not in to_dict(plain)["reward"][0] and to_dict(by_turns)["reward"][0]["of"] == "turns"
    assert hash_method(plain) != hash_method(by_turns)
    with pytest.raises(ValueError, match="of='words': give one of tokens, turns, both"):
        compose("grpo+lp", ["reward.0.of=words"])
