"""Turns in TRL and verl: read from masks, refused where nobody says what one earned; test_contract.py trains with them.

Trees are refused where no whole job of them was tried.
"""

import re

import numpy as np
import pytest
from trl_runs import config

from fairlen import plan_rows
from fairlen.integrations.trl.settings import prepare
from fairlen.integrations.turns import (
    count_tokens,
    cut_responses,
    cut_table,
    find_turns,
    fold_turns,
    read_trajectory,
    was_truncated,
)
from fairlen.integrations.verl.launch import VerlConfig
from fairlen.integrations.verl.settings import read_method
from fairlen.methods.compose import compose
from fairlen.rollouts import Response, Rollouts

TURNED = (
    ("grpo+turns", (), "sampling"), ("dapo+balanced_turns", (), "sampling"), ("grpo+turn_count", (), "aggregation"),
    ("grpo+turn_mean", (), "sampling"), ("grpo+lp", ("reward.0.of=turns",), "reward.0"),
)  # fmt: skip


@pytest.mark.parametrize(("method", "overrides", "choice"), TURNED)
def test_choices_about_turns_are_refused_where_there_are_no_masks(method, overrides, choice):
    """They would be what they are for responses of one turn, and nobody would be told."""
    with pytest.raises(ValueError, match=f"^{re.escape(choice)} of turns: in plan_rows a response is one sequence"):
        plan_rows(compose(method, overrides), groups=[0, 0], lengths=[3, 4], rewards=[1.0, 0.0], max_response_length=8)
    read_method({"method": method, "overrides": overrides})
    prepare(method, overrides, config("out"), False)


def test_baselines_of_turns_are_refused_where_no_turn_is_rewarded():
    """Without rewards of turns every one would be worth what its trajectory is, and nobody would be told."""
    name = "dr_grpo+turn_baseline"
    with pytest.raises(ValueError, match=r"^sampling.compare=turns: verl says what a trajectory is worth"):
        read_method({"method": name})
    with pytest.raises(ValueError, match=r"^sampling.compare=turns: verl"):
        VerlConfig(method=name)  # before Ray starts
    with pytest.raises(ValueError, match=r"^sampling.compare=turns: TRL says what a trajectory is worth"):
        prepare(name, (), config("out"), False)


@pytest.mark.parametrize("method", ["tree_unbiased", "grpo+treerpo"])
def test_trees_are_refused_where_no_whole_job_of_them_was_tried(method):
    with pytest.raises(ValueError, match=r"^Tree in verl: no whole job of it has been tried"):
        read_method({"method": method, "overrides": ()})
    with pytest.raises(ValueError, match=r"^Tree in verl"):
        VerlConfig(method=method)  # before Ray starts
    trains, *_ = prepare(method, (), config("out"), False)
    assert trains.sampling.num_tracks == config("out").num_generations  # in TRL they train


def test_turns_are_runs_of_the_mask():
    assert find_turns([1, 1, 0, 1, 0, 0]) == ((0, 2), (3, 4)) and find_turns(np.array([False, True])) == ((1, 2),)
    assert count_tokens([1, 1, 0, 1, 0, 0]) == (2, 1) and count_tokens([0, 0]) == (0,) == count_tokens([])


@pytest.mark.parametrize(("ids", "mask", "expected"), [
    ((5, 0), (1, 1), False),
    ((5, 5), (1, 1), True),
    ((5, 5, 5, 5, 5, 0), (1,) * 6, False),  # an EOS on the last token that there may be
    ((5, 0, 6, 6), (1, 1, 0, 0), False),  # the environment has the last word
    ((5, 5, 6, 0), (1, 1, 0, 0), True),  # its EOS is none of the policy's
    ((5, 0, 6, 6, 6, 0), (1, 1, 0, 0, 0, 0), True),  # no room for a turn
    ((6, 6), (0, 0), True),  # nothing was written
])  # fmt: skip
def test_what_the_policy_wrote_says_whether_it_was_truncated(ids, mask, expected):
    assert was_truncated(ids, mask, {0}, 6) is expected


def test_a_row_as_a_response():
    """Prompt 8 9, then 5 0 written, 6 read, 7 written, 6 read and left out: positions 2 to 4 and 5 to 6."""
    found = Response(
        0, finish="stop", seed=0, **read_trajectory((8, 9), (5, 0, 6, 7, 6), (1, 1, 0, 1, 0), (-1.0, -2.0, 0.0, -3.0, 0.0))
    )  # fmt: skip
    assert (found.token_ids, found.turns, found.logprobs) == ((8, 9, 5, 0, 6, 7), ((2, 4), (5, 6)), (-1.0, -2.0, -3.0))
    whole = read_trajectory((8,), (5, 0), (1, 1), (-1.0, -2.0))
    assert whole == {"token_ids": (8, 5, 0), "num_prompt": 1, "logprobs": (-1.0, -2.0), "turns": ()}
    assert read_trajectory((8,), (6, 6), (0, 0), (-1.0, 0.0)) == {
        "token_ids": (8, 6), "num_prompt": 1, "logprobs": (-1.0,), "turns": (),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["grpo", "grpo+turns"])
def test_tables_of_masks_are_those_of_responses(name):
    method = compose(name, ["sampling.n=2"])
    rows = (
        Response(0, (8, 5, 0, 6, 7, 0), 1, (-1.0,) * 4, "stop", 0, turns=((1, 3), (4, 6))),
        Response(0, (8, 5, 5, 0), 1, (-1.0,) * 3, "stop", 1),
    )
    expected = Rollouts(rows, cut_responses(method, rows), 6)
    found = cut_table(method, expected.response_table, ((2, 2), (3,)))
    for column, values in expected.segment_table.columns().items():
        assert getattr(found, column).tolist() == values.tolist(), column


def test_columns_of_turns_as_columns_of_rows():
    """Rows 2 and 0 of three have turns of 2 and 1, and of 3 tokens; where no row has two, columns are flat."""
    method = compose("grpo+turns", ["sampling.n=2"])
    rows = (
        Response(0, (8, 5, 0, 6, 7), 1, (-1.0,) * 3, "length", 0, turns=((1, 3), (4, 5))),
        Response(0, (8, 5, 5, 0), 1, (-1.0,) * 3, "stop", 1),
    )
    segments = Rollouts(rows, cut_responses(method, rows), 6).segment_table
    found = fold_turns({"weight": np.array([0.1, 0.2, 0.3])}, np.array([2, 2, 0]), segments, 3)
    assert found["weight"].tolist() == [[0.3, 0], [0, 0], [0.1, 0.2]]
    assert found["length"].tolist() == [[3, 0], [0, 0], [2, 1]]
    last = segments.take(np.array([2]))
    assert fold_turns({"weight": np.array([0.3])}, np.array([1]), last, 2)["weight"].tolist() == [0, 0.3]
