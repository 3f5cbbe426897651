"""The table of weights of docs/turns.md is what the methods do."""

from pathlib import Path

import numpy as np
import pytest
from loops import over

from fairlen.methods.compose import compose
from fairlen.rollouts import Response, Rollouts

PAGE = (Path(__file__).parents[1] / "docs" / "turns.md").read_text()


TURNS = [[2, 3], [4], [1, 1, 6], [5]]
"""Tokens of the turns of four trajectories to one prompt, the first and third correct: M = 4, N = 7, T = 5, 4, 8, 5, sum 22."""
BUDGET = 40
FORMS = {
    "grpo": lambda t, i, k: 1 / (4 * sum(t[i])),
    "grpo+turns": lambda t, i, k: 1 / (7 * t[i][k]),
    "grpo+turn_mean": lambda t, i, k: 1 / (4 * len(t[i]) * t[i][k]),
    "grpo+turn_count": lambda t, i, k: 7 / (4 * len(t[i]) * 22),
    "dr_grpo": lambda t, i, k: 1 / (4 * BUDGET),
    "dapo_verl": lambda t, i, k: 1 / 22,
    "dapo+balanced": lambda t, i, k: (2 / (4 * (13 if i in (0, 2) else 9))),  # M_s = 2 |A|, Z_s = |A| tokens of the side, N = 4
    "dapo+balanced_turns": lambda t, i, k: 2 / (4 * (5 if i in (0, 2) else 2)) / t[i][k],
}  # fmt: skip


@over("name", FORMS)
def test_a_token_weighs_what_the_table_says(name):
    assert f"| `{name}` |" in PAGE
    responses = []
    for row, turns in enumerate(TURNS):
        starts = np.cumsum([1, *turns])[:-1] + np.arange(len(turns))
        spans = tuple((int(a), int(a) + n) for a, n in zip(starts, turns, strict=True))
        right = row in (0, 2)
        responses.append(
            Response(
                0, tuple(range(spans[-1][1])), 1, (-1.0,) * sum(turns), "stop", seed=row, turns=spans,
                outcome=float(right), status="correct" if right else "incorrect",
            )
        )  # fmt: skip
    method = compose(name, ["sampling.n=4"])
    rollouts = Rollouts(tuple(responses), method.sampling.cut(tuple(responses)), BUDGET)
    plan = method.plan(method.score(rollouts))
    for row, weight in zip(plan.rows.tolist(), plan.weight.tolist(), strict=True):
        segment = rollouts.segments[row]
        assert weight == pytest.approx(FORMS[name](TURNS, segment.response, segment.turn), rel=1e-12)
    assert len(plan) == (7 if "turn" in name and name != "grpo+turn_count" else 4)
