"""The tables: what they hold, what they refuse, and sums by group."""

from dataclasses import replace

import numpy as np
import pytest
from fixtures import LENGTH, PROMPT, RIGHT, ragged_rollouts
from loops import over

from fairlen.batch import (
    NO_COLUMNS,
    NO_VERDICT,
    Responses,
    build_responses,
    build_segments,
    count_by,
    mean_by,
    number_keys,
    sum_by,
)
from fairlen.methods.method import Method
from fairlen.rollouts import Response


def test_tables_of_rollouts_are_the_ragged_batch(ragged):
    rollouts = ragged_rollouts()
    ragged = replace(ragged, responses=replace(ragged.responses, named=NO_COLUMNS))
    for ours, expected in ((rollouts.response_table, ragged.responses), (rollouts.segment_table, ragged.segments)):
        for name, column in expected.columns().items():
            assert getattr(ours, name).tolist() == column.tolist(), name
            assert getattr(ours, name).dtype == column.dtype, name
        assert ours.max_response_length == expected.max_response_length == 8
    assert rollouts.response_table.num_prompts == rollouts.segment_table.num_groups == 4


def test_rows_of_a_framework_become_tables():
    """Prompts by any key; a verdict is above the threshold or not, or there is none; a row without a token does not count."""
    responses = build_responses(
        ["b", "a", "b", "a"], [2, 3, 4, 0], [1.0, 0.2, 0.0, 0.0], [1.0, 0.2, NO_VERDICT, 0.0], [0, 0, 1, 0], 4,
        correct_threshold=0.1, stream=[0, 0, 1, 1],
    )  # fmt: skip
    assert responses.prompt.tolist() == [0, 1, 0, 1] and responses.length.tolist() == [2, 3, 4, 1]
    assert responses.correct.tolist() == [True, True, False, False]
    assert responses.active.tolist() == [True, True, False, False]
    assert responses.truncated.tolist() == [False, False, True, False] and responses.round.tolist() == [0] * 4
    whole = build_segments(responses, [2, 3, 4, 0])
    assert whole.response.tolist() == [0, 1, 2, 3] and whole.group.tolist() == [0, 1, 0, 1]
    assert whole.active.tolist() == [True, True, True, False] and whole.mass.tolist() == [1.0] * 4
    pieces = build_segments(
        responses, [1, 1, 2], response=[2, 0, 2], group=["x", "x", "y"], survivor=[0, 1, 0], mass=0.5
    )
    assert pieces.group.tolist() == [0, 0, 1] and pieces.survivor.tolist() == [False, True, False]
    assert pieces.mass.tolist() == [0.5] * 3 and pieces.max_response_length == 4


@over(
    "keys", [["b", "a", "b", "c", "a"], np.array([7, 3, 7, 9, 3]), np.array([[1, 2], [0, 2], [1, 2], [1, 3], [0, 2]])]
)
def test_prompts_are_numbered_by_their_first_row(keys):
    assert number_keys(keys).tolist() == [0, 1, 0, 2, 1]


def test_a_segment_is_inactive_with_its_response():
    """Once it is scored: which responses a segment depends on is the sampler's to say."""
    rollouts = ragged_rollouts()
    responses = tuple(replace(r, active=row != 4) for row, r in enumerate(rollouts.responses))
    scored = Method().score(replace(rollouts, responses=responses))
    assert scored.segments.active.tolist() == [row != 4 for row in range(10)]


def test_take_keeps_the_type_and_the_budget(ragged):
    for rows in (np.array([3, 0]), np.isin(np.arange(10), [0, 3])):
        taken = ragged.responses.take(rows)
        assert sorted(taken.length.tolist()) == [1, 8] and taken.max_response_length == 8 and len(taken) == 2


def test_active_rows_are_those_that_count(ragged):
    table = replace(ragged.responses, active=np.arange(10) != 3)
    assert table.active_rows().length.tolist() == [t for t in LENGTH if t != 8]
    assert ragged.responses.active_rows() is ragged.responses


def test_groups_become_dense_in_their_order(ragged):
    sparse = replace(ragged.segments, group=np.array([9, 9, 2, 2, 2, 5, 5, 9, 9, 0]))
    assert sparse.with_dense_groups().group.tolist() == [3, 3, 1, 1, 1, 2, 2, 3, 3, 0]
    assert ragged.segments.with_dense_groups() is ragged.segments


def test_sums_counts_and_means_by_hand():
    index, values = np.array([0, 2, 2]), np.array([1.0, 2.0, 4.0])
    assert sum_by(index, values, 4).tolist() == [1, 0, 6, 0]
    assert count_by(index, 4).tolist() == [1, 0, 2, 0]
    assert mean_by(index, values, 4).tolist() == [1, 0, 3, 0]
    assert sum_by(np.array(PROMPT), np.array(RIGHT, bool), 4).tolist() == [3, 1, 2, 0]


def test_columns_become_what_they_are_declared_as(ragged):
    given = {"prompt": [0, 1], "length": [3.0, 4.0], "outcome": [1, 0], "correct": [1, 0], "truncated": [0.0, 1.0]}
    rest = {"active": [1, 1], "stream": [0, 0], "round": [0, 0], "max_response_length": 8}
    table = Responses(**{name: np.array(column) for name, column in given.items()}, **rest)
    for name, column in replace(ragged.responses, named=NO_COLUMNS).columns().items():
        assert getattr(table, name).dtype == column.dtype, name
    assert table.outcome.tolist() == [1.0, 0.0] and table.length.tolist() == [3, 4]


REFUSED: tuple[tuple[dict, str], ...] = (
    ({"length": np.array([1, 0] + [1] * 8)}, r"Responses: length 0 in row 1: every row has a token"),
    ({"outcome": np.array([0.0] * 9 + [np.nan])}, r"outcome=nan in row 9: rewards must be finite, or the row inactive"),
    ({"outcome": np.zeros(3)}, r"Responses: columns differ in length: .*'outcome': 3"),
    ({"max_response_length": 0}, r"budget=0: the max response length is at least 1 token"),
    ({"length": np.array([2.5] * 10)}, r"Responses: length=2.5 in row 0: give whole numbers"),
    ({"length": np.array([3.0] * 9 + [np.nan])}, r"Responses: length=nan in row 9: give whole numbers"),
    ({"correct": np.array([1] * 9 + [2])}, r"Responses: correct=2 in row 9: give 0 or 1"),
    ({"outcome": np.array(["1"] * 10)}, r"Responses: outcome is a column of <U1: give numbers"),
)


def test_tables_that_contradict_themselves_are_refused(ragged):
    for change, message in REFUSED:
        with pytest.raises(ValueError, match=message):
            replace(ragged.responses, **change)
    inactive = replace(ragged.responses, outcome=np.array([0.0] * 9 + [np.nan]), active=np.arange(10) < 9)
    assert np.isfinite(inactive.active_rows().outcome).all()


def test_a_response_needs_a_prompt_a_token_and_a_logprob_for_each():
    with pytest.raises(ValueError, match=r"num_prompt=3 of 3 token_ids: .*at least one generated token"):
        Response(0, (1, 2, 3), 3, (), "stop", seed=0)
    with pytest.raises(ValueError, match=r"num_prompt=0 of 3"):
        Response(0, (1, 2, 3), 0, (-1.0,) * 3, "stop", seed=0)
    with pytest.raises(ValueError, match=r"1 logprobs for 2 generated tokens: give one for each, EOS included"):
        Response(0, (1, 2, 3), 1, (-1.0,), "stop", seed=0)
