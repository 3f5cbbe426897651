"""Turns in TRL and verl: read from masks, refused where nobody says what one earned; test_contract.py trains with them."""

import re

import pytest
from trl_runs import config

from fairlen import plan_rows
from fairlen.integrations.rows import was_truncated
from fairlen.integrations.trl.settings import prepare
from fairlen.integrations.verl.launch import VerlConfig
from fairlen.integrations.verl.settings import read_method
from fairlen.methods.compose import compose

TURNED = (("grpo+turns", (), "sampling"), ("grpo+turn_count", (), "aggregation"))


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
