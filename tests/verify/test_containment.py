"""Hostile programs are contained and earn nothing, honest ones pass, for root and for a user who is not."""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import honest_programs
import hostile_programs
import pytest
from bait import Bait, laid_bait
from leftovers import find_files, find_processes
from loops import over

ROOT, USER = 0, 60500
USERS = {"root": ROOT, "user": USER} if os.geteuid() == 0 else {"user": -1}
"""Who runs the sandbox. Tests that run as a user cannot become root."""

pytestmark = pytest.mark.slow  # a hundred programs for each user; test_sandbox.py has some


def run_battery(uid: int, kind: str, bait: Bait, file_bytes: int) -> dict:
    facts = bait.facts | {"folder": str(bait.canary.parent)}
    request = {"kind": kind, "facts": facts, "answer": f"answer-{facts['secret']}", "file_bytes": file_bytes}
    environment = dict(os.environ, FAIRLEN_TOKEN=str(facts["secret"]))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("battery.py")), str(uid if uid != os.geteuid() else -1)],
        input=json.dumps(request), capture_output=True, text=True, timeout=300, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def battery(uid: int, kind: str) -> Iterator[dict]:
    """Results, with what happened to the bait and what was left behind half a second later."""
    file_bytes = (8 << 20) + 4096 * (1 + secrets.randbelow(1 << 10))
    with laid_bait() as bait:
        before = bait.canary.stat()
        results = run_battery(uid, kind, bait, file_bytes)
        time.sleep(0.5)
        after = bait.canary.stat() if bait.canary.exists() else None
        yield results | {
            "bites": bait.find_bites(),
            "changes": [] if after == before else [before, after],
            "processes": find_processes(file_bytes),
            "files": find_files(str(bait.facts["secret"])),
        }


@pytest.fixture(scope="module", params=USERS)
def hostile(request) -> Iterator[dict]:
    with battery(USERS[request.param], "hostile") as results:
        yield results


@pytest.fixture(scope="module", params=USERS)
def honest(request) -> Iterator[dict]:
    with battery(USERS[request.param], "honest") as results:
        yield results


def test_there_are_enough_programs() -> None:
    assert len(hostile_programs.PROGRAMS) >= 50 and len(honest_programs.PROGRAMS) >= 40


@over("name", hostile_programs.PROGRAMS)
def test_hostile_programs_get_nothing(hostile: dict, name: str) -> None:
    result = hostile["programs"][name]
    assert result["said"] == [], result
    assert result["verdict"] == "incorrect", result  # never right, and never excused
    assert result["stdout"] <= 1 << 20 and result["stderr"] <= 1 << 20


def test_hostile_programs_leave_nothing_behind(hostile: dict) -> None:
    assert hostile["bites"] == [] and hostile["changes"] == []
    assert hostile["processes"] == [] and hostile["files"] == []


def test_hostile_programs_end_as_expected(hostile: dict) -> None:
    status = {name: result["status"] for name, result in hostile["programs"].items()}
    certain = (
        "busy_loop", "sleep_for_ever", "ignores_every_signal", "closes_everything", "becomes_something_else",
        "huge_power",
    )  # fmt: skip
    assert {status[name] for name in certain} == {"timeout"}
    assert {name for name in status if status[name] == "timeout"} <= hostile_programs.ENDLESS
    assert {status[name] for name in ("floods_stdout", "floods_stderr", "one_huge_line")} == {"output_limit"}
    assert status["memory_bomb"] == "memory" and status["segfault"] == "crashed"
    assert status["exits_zero"] == status["exits_at_once"] == "ok"  # and yet incorrect: they print nothing
    assert "infrastructure" not in status.values()


@over("name", honest_programs.PROGRAMS)
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
    with battery(USERS[user], "parallel") as results:
        assert [result["verdict"] for result in results["programs"].values()] == ["correct"] * 6
