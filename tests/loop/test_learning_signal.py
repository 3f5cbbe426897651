"""When a run is told that it has nothing to learn from, and what the sentence says."""

from dataclasses import replace

import numpy as np
import pytest

from fairlen.batch import build_responses
from fairlen.loop.learning_signal import PATIENCE, Counts, LearningSignal, Remedies
from fairlen.methods.compose import compose
from fairlen.tasks.task import NO_FAILURES, Failures

REMEDIES = Remedies("raise the budget", "move the threshold", "make more updates")
MIXED = Counts(size=8, correct=3, incorrect=5, trained=8, low=0.0, high=1.0)
NONE_CORRECT = Counts(size=8, incorrect=8, low=0.0, high=0.0)


def told(*batches: Counts) -> list[str]:
    """What is said of a run, rollout batch by rollout batch, without what is said of nothing."""
    signal = LearningSignal(REMEDIES)
    return [text for batch in batches if (text := signal.look(batch))]


def test_a_run_that_learns_is_told_nothing():
    assert told(*[MIXED] * 20) == []


def test_it_takes_some_rollout_batches_in_a_row_and_is_said_once():
    assert told(*[NONE_CORRECT] * (PATIENCE - 1)) == []
    assert told(*[NONE_CORRECT, NONE_CORRECT, MIXED] * 5) == []
    (text,) = told(MIXED, *[NONE_CORRECT] * 20)
    assert text.startswith("nothing was trained in 3 rollout batches (24 responses: 0 correct, 24 incorrect, ")


@pytest.mark.parametrize(
    "batch, why, remedy",
    [
        (NONE_CORRECT, "all count as incorrect, with outcomes from 0 to 0", "give easier problems or a stronger model"),
        (Counts(8, incorrect=8, low=-7.0, high=-2.0), "incorrect, with outcomes from -7 to -2", "move the threshold, or"),
        (Counts(8, correct=8, low=1.0, high=1.0), "all count as correct", "give harder problems"),
        (Counts(8, correct=8, low=3.0, high=9.0), "all count as correct", "move the threshold, or give harder problems"),
        (Counts(8, incorrect=8, truncated=8, low=0.0, high=0.0), "all were truncated", "raise the budget, or see whether"),
        (Counts(8, truncated=8), "all were truncated", "raise the budget"),
        (Counts(8, ungraded=6, truncated=2), "none that ended has a verdict", "look for timeouts and errors"),
        (Counts(8, correct=4, incorrect=4, low=0.0, high=1.0), "no prompt or pair", "give more responses to a prompt"),
    ],
)  # fmt: skip
def test_the_sentence_says_why_and_what_to_do(batch, why, remedy):
    (text,) = told(*[batch] * 4)
    assert text.startswith("nothing was trained in 3 rollout batches") and why in text
    assert remedy in text.rpartition("; ")[2] and "\n" not in text


@pytest.mark.parametrize("side", ["correct", "incorrect"])
def test_verdicts_of_one_side_are_told_also_where_rewards_train(side):
    batch = Counts(8, **{side: 8}, trained=8, low=-2.0, high=5.0)
    (text,) = told(*[batch] * 5)
    assert text.startswith(f"every response of 3 rollout batches counts as {side} (24 responses: ")
    assert "outcomes from -2 to 5" in text and "move the threshold, or give" in text


def test_the_advice_follows_what_the_responses_say():
    """Of 8 responses none has an answer in the form that is read, and 8 of 8 end with the reference as their last number."""
    failures = sum([Failures.of("no_answer", False, "so 7.", "7", True)] * 8, NO_FAILURES)
    (text,) = told(*[replace(NONE_CORRECT, failures=failures)] * 4)
    assert "; give --answer last-number, which finds the right answer in 24 of 24; show the form" in text


def test_a_surrogate_that_never_acts_is_told():
    (text,) = told(*[Counts(8, 3, 5, trained=8, low=0.0, high=1.0, idle_surrogate="TokenClip()")] * 9)
    assert text.startswith("note: every ratio of 3 rollout batches was 1, as it should be") and "TokenClip()" in text
    assert text.endswith("for more updates make more updates")


def test_truncation_is_what_is_advised_on_where_all_are_truncated():
    (text,) = told(*[Counts(8, incorrect=8, truncated=8, trained=8, low=-1.0, high=0.0)] * 4)
    assert text.startswith("every response of 3 rollout batches counts as incorrect")
    assert text.endswith("; raise the budget")


def test_the_end_of_a_run_says_it_of_the_whole_run():
    signal = LearningSignal(REMEDIES)
    assert signal.conclude() == ""
    signal.look(NONE_CORRECT)
    assert signal.conclude().startswith("nothing was trained in 1 rollout batch (8 responses: ")
    signal.look(Counts(8, incorrect=8, trained=4, low=0.0, high=0.5))
    assert signal.conclude().startswith("every response of 2 rollout batches counts as incorrect (16 responses: ")
    signal.look(MIXED)
    assert signal.conclude() == ""


def test_counts_of_a_rollout_batch():
    """Five responses: right; wrong and truncated; truncated and left out; timed out; right. One of two plans weighs 0."""
    length, outcome, verdict = np.full(5, 4), [2.0, -1.0, 9.0, 9.0, 1.0], [1.0, 0.0, np.nan, np.nan, 1.0]
    responses = build_responses(np.zeros(5, np.int64), length, outcome, verdict, [False, True, True, False, False], 4)
    found = Counts.of(responses, np.array([0.5, 0.0, -0.25]), compose("grpo"), num_updates=1)
    assert found == Counts(5, correct=2, incorrect=1, truncated=2, ungraded=1, trained=2, low=-1.0, high=2.0,
                           idle_surrogate="TokenClip()")  # fmt: skip
    assert Counts.of(responses, np.zeros(0), compose("grpo"), num_updates=4).idle_surrogate == ""
    assert Counts.of(responses, np.zeros(0), compose("grpo", ["surrogate=PolicyGradient"]), 1).idle_surrogate == ""
