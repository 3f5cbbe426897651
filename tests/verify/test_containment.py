"""Hostile programs are contained and earn nothing, honest ones pass, for root and for a user who is not."""

import os
from typing import Any

import pytest
from battery import AS_FIRST_PROCESS, run_battery
from loops import over
from programs import ENDLESS, HONEST, HOSTILE

USER = 60500
USERS = {"root": -1, "user": USER} if os.geteuid() == 0 else {"user": -1}
"""Who runs the sandbox. Tests that run as a user cannot become root."""

pytestmark = pytest.mark.slow  # a hundred programs for each user; test_sandbox.py has some


@pytest.fixture(scope="module", params=USERS)
def hostile(request) -> dict[str, Any]:
    return run_battery("hostile", USERS[request.param])


@pytest.fixture(scope="module", params=USERS)
def honest(request) -> dict[str, Any]:
    return run_battery("honest", USERS[request.param])


def test_there_are_enough_programs() -> None:
    assert len(HOSTILE) >= 50 and len(HONEST) >= 40


@over("name", HOSTILE)
def test_hostile_programs_get_nothing(hostile: dict, name: str) -> None:
    result = hostile["programs"][name]
    assert result["said"] == [], result
    assert result["verdict"] == "incorrect", result  # never right, and never excused
    assert result["stdout"] <= 1 << 20 and result["stderr"] <= 1 << 20


def test_hostile_programs_leave_nothing_behind(hostile: dict) -> None:
    assert hostile["harm"] == []


def test_hostile_programs_end_as_expected(hostile: dict) -> None:
    status = {name: result["status"] for name, result in hostile["programs"].items()}
    certain = (
        "busy_loop", "sleep_for_ever", "ignores_every_signal", "closes_everything", "becomes_something_else",
        "huge_power",
    )  # fmt: skip
    assert {status[name] for name in certain} == {"timeout"}
    assert {name for name in status if status[name] == "timeout"} <= ENDLESS
    assert {status[name] for name in ("floods_stdout", "floods_stderr", "one_huge_line")} == {"output_limit"}
    assert status["memory_bomb"] == status["segfault"] == "crashed"
    assert status["exits_zero"] == status["exits_at_once"] == "ok"  # and yet incorrect: they print nothing
    assert "infrastructure" not in status.values()


@over("name", HONEST)
def test_honest_programs_pass(honest: dict, name: str) -> None:
    result = honest["programs"][name]
    assert result["verdict"] == "correct", result


def test_the_sandbox_says_who_it_ran_as(hostile: dict) -> None:
    described = hostile["sandbox"]
    assert described["sandbox"] == "bubblewrap" and described["unsafe"] is False
    assert described["uids"] in ("60706-61183", str(USER), str(os.geteuid()))


@pytest.mark.parametrize("user", USERS)
def test_parallel_runs_do_not_share_their_threads(user: str) -> None:
    """Six runs at a time, of 30 threads each where 32 are allowed: counted for the user, all but one would be stopped."""
    assert verdicts_of(run_battery("parallel", USERS[user])) == ["correct"] * 6


def verdicts_of(results: dict[str, Any]) -> list[str]:
    return [result["verdict"] for result in results["programs"].values()]


@over("kind, verdict", [("parallel", "correct"), ("killed", "incorrect")])
def test_nothing_is_left_where_the_first_process_reaps_nothing(kind: str, verdict: str) -> None:
    """In a container whose first process is the trainer nobody waits for orphans."""
    results = run_battery(kind, within=AS_FIRST_PROCESS)
    assert {*verdicts_of(results)} == {verdict}
    assert (results["pid"], results["zombies"], results["harm"]) == (1, 0, [])
