"""What an adapter cannot do it refuses: choices about turns, where a response is one sequence."""

import re

import pytest
from trl_runs import config

from fairlen import plan_rows
from fairlen.integrations.trl.settings import prepare
from fairlen.integrations.verl.launch import VerlConfig
from fairlen.integrations.verl.settings import read_method
from fairlen.methods.compose import compose

TURNED = (
    ("grpo+turns", (), "sampling"), ("dapo+balanced_turns", (), "sampling"), ("grpo+turn_count", (), "aggregation"),
    ("grpo+turn_mean", (), "sampling"), ("grpo+lp", ("reward.0.of=turns",), "reward.0"),
)  # fmt: skip


@pytest.mark.parametrize(("method", "overrides", "choice"), TURNED)
def test_choices_about_turns_are_refused_where_there_are_none(method, overrides, choice):
    """They would be what they are for responses of one turn, and nobody would be told."""
    composed = compose(method, overrides)
    with pytest.raises(ValueError, match=f"^{re.escape(choice)} of turns: in plan_rows a response is one sequence"):
        plan_rows(composed, groups=[0, 0], lengths=[3, 4], rewards=[1.0, 0.0], max_response_length=8)
    with pytest.raises(ValueError, match=f"^{re.escape(choice)} of turns: in verl a response is one sequence"):
        read_method({"method": method, "overrides": overrides})
    with pytest.raises(ValueError, match=f"^{re.escape(choice)} of turns: in verl"):
        VerlConfig(method=method, overrides=overrides)  # before Ray starts
    with pytest.raises(ValueError, match=f"^{re.escape(choice)} of turns: in TRL a response is one sequence"):
        prepare(method, overrides, config("out"), False)
