"""The numbers of a rollout batch: who counts as right, wrong or neither."""

import math

import numpy as np
import pytest

from fairlen.batch import NO_VERDICT, build_responses, build_segments
from fairlen.loop.tally import scored_metrics
from fairlen.methods.compose import compose


def measure(
    method: str, outcome: list[float], active: list[bool], truncated: list[bool] | None = None
) -> dict[str, float]:
    """Four answers to a first prompt, of 2, 4, 6 and 8 tokens, and two to a second one, of 1 and 3."""
    composed = compose(method, ["sampling.n=4"])
    length, verdict = [2, 4, 6, 8, 1, 3], np.where(active, outcome, NO_VERDICT)
    responses = build_responses([0] * 4 + [1] * 2, length, outcome, verdict, truncated or [False] * 6, 10)
    segments = build_segments(responses, length)
    return scored_metrics(composed.score_tables(responses, segments), composed)


def test_an_answer_without_verdict_is_neither_right_nor_wrong():
    """1, 0, none, 1 and 1, none: 3 of 4 graded are right, with population std sqrt(3/16); one prompt of two is all correct."""
    found = measure("grpo", [1, 0, 0, 1, 1, 0], [True, True, False, True, True, False])
    assert [found[name] for name in ("accuracy/mean", "outcome/mean", "reward/mean")] == pytest.approx([3 / 4] * 3)
    assert found["reward/std"] == pytest.approx((3 / 16) ** 0.5)
    assert (found["length/correct"], found["length/incorrect"]) == (pytest.approx((2 + 8 + 1) / 3), 4.0)
    assert (found["length/mean"], found["responses/active"]) == (pytest.approx(24 / 6), pytest.approx(4 / 6))
    assert (found["prompts/all_correct"], found["prompts/all_incorrect"]) == (0.5, 0.0)


def test_nothing_judged_is_no_accuracy_of_zero():
    found = measure("grpo", [0] * 6, [False] * 6)
    assert all(math.isnan(found[name]) for name in ("accuracy/mean", "reward/mean", "reward/std", "length/incorrect"))
    assert found["length/mean"] == 4.0


def test_truncated_answers_that_a_filter_leaves_out_were_judged():
    """The last of the first prompt was cut off, and is wrong: 3 of 6 are right with the filter as without."""
    outcome, cut = [1, 1, 0, 0, 1, 0], [False, False, False, True, False, False]
    plain, filtered = (measure(name, outcome, [True] * 6, cut) for name in ("grpo", "grpo+overlong_filter"))
    assert plain["accuracy/mean"] == filtered["accuracy/mean"] == 0.5
    assert (plain["responses/active"], filtered["responses/active"]) == (1.0, pytest.approx(5 / 6))
