"""Which code is graded, what verdict it gets, and that failures of the sandbox are never the program's."""

from __future__ import annotations

import asyncio

import pytest

from fairlen.verify.bubblewrap import Bubblewrap
from fairlen.verify.execution import Execution, Limits, failed
from fairlen.verify.program import ProgramTest, ProgramTests, ProgramVerdict, extract_code, grade_code, grade_program

DOUBLE = ProgramTests((ProgramTest("3\n", "6\n"), ProgramTest("-4\n", "-8\n"), ProgramTest("0\n", "0\n")))
PAIR = ProgramTests((ProgramTest('[1, 2]\n"x"', '[[1, 2], "x"]'),), function="pair")


def grade(sandbox: Bubblewrap, code: str, tests: ProgramTests) -> ProgramVerdict:
    return asyncio.run(grade_code(sandbox, code, tests))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("So:\n```\nprint(1)\n```\nDone.", "print(1)\n"),
        ("```py\na\n```\ntext\n```python3\nb\nc\n```\n", "b\nc\n"),  # the last block
        ("```python\na\n```\nand\n```python\nb", "a\n"),  # an unclosed block is no answer
        ("```python\na\n\n```python\nb\n```", "b\n"),  # the first was never closed
        ("  ```python\n  a\n  ```", "  a\n"),
        ("```python title='x'\na\n```", "a\n"),
        ("```\n\n```", None),
        ("```python\nb", None),
        ("no code", None),
        ("inline ```a``` only", None),
        ("", None),
        ("<think>\n```\na\n```\n</think>\n```\nb\n```", "b\n"),
        ("<think>\n```\na\n```\n</think>\nI am sure.", None),  # nothing after the thinking
        ("<think>\n```\na\n```", None),
        ("```python\ns = '```'\nprint(s)\n```", "s = '```'\nprint(s)\n"),
        ("```python\r\nprint(1)\r\n```", "print(1)\r\n"),
    ],
)
def test_the_last_closed_block_counts(text: str, code: str | None) -> None:
    assert extract_code(text) == code


def test_thinking_that_the_prompt_began_must_end() -> None:
    assert extract_code("```\na\n```", starts_inside=True) is None
    assert extract_code("```\na\n```\n</think>\n```\nb\n```", starts_inside=True) == "b\n"


@pytest.mark.parametrize(
    ("code", "status", "passed"),
    [
        ("print(2 * int(input()))", "correct", 3),
        ("n = int(input())\nprint(float(2 * n))", "correct", 3),  # 6.0 is 6
        ("print(abs(2 * int(input())))", "incorrect", 1),  # 8 is not -8
        ("print(6)", "incorrect", 1),
        ("print(2 * int(input())", "incorrect", 0),  # does not compile
        ("print(2 * int(input()))\n1 / 0", "incorrect", 0),  # the right output, and then a crash
        ("\0", "incorrect", 0),
        ("print('\ud800')", "incorrect", 0),
        ("while True: pass", "incorrect", 0),
    ],
)
def test_programs(sandbox: Bubblewrap, code: str, status: str, passed: int) -> None:
    tests = ProgramTests(DOUBLE.tests, seconds=2.0)
    verdict = grade(sandbox, code, tests)
    assert (verdict.status, verdict.passed, verdict.total) == (status, passed, 3), verdict


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("def pair(a, b): return a, b", "correct"),
        ("def pair(a, b):\n    return [tuple(a), b]", "correct"),
        ("class Solution:\n    def pair(self, a: List[int], b: str) -> List: print('debugging'); return [a, b]", "correct"),
        ("from __future__ import annotations\nimport threading\ndef pair(a: X, b): return [a, b]", "correct"),
        ("pair = lambda a, b: [a, b]\nif __name__ == '__main__': 1 / 0", "correct"),
        ("class Number:\n    def __init__(self, n): self.n = n\n    def __index__(self): return self.n\n"
         "def pair(a, b): return [[Number(n) for n in a], b]", "correct"),
        ("def pair(a, b): return [a]", "incorrect"),
        ("def pair(a, b): return {1}", "incorrect"),
        ("def pair(a): return a", "incorrect"),
        ("def other(a, b): return [a, b]", "incorrect"),
        ("def pair(a, b): print([a, b])", "incorrect"),
        ("def pair(a, b): import sys; sys.exit(0)", "incorrect"),
        ("def pair(a, b): raise SystemExit", "incorrect"),
        ("import os\nos._exit(0)", "incorrect"),
        ("def pair(a, b): return pair(a, b)", "incorrect"),
        ("def pair(a, b):\n    x = []\n    x.append(x)\n    return x", "incorrect"),
    ],
)  # fmt: skip
def test_functions(sandbox: Bubblewrap, code: str, status: str) -> None:
    assert grade(sandbox, code, PAIR).status == status


def test_a_response_is_graded_by_its_code(sandbox: Bubblewrap) -> None:
    answer = "<think>hm</think>Use twice.\n```python\nprint(2 * int(input()))\n```\n"
    assert asyncio.run(grade_program(sandbox, answer, DOUBLE)).status == "correct"
    silent = asyncio.run(grade_program(sandbox, "It is 6.", DOUBLE))
    assert (silent.status, silent.passed, silent.seconds) == ("no_answer", 0, 0.0)


def test_grading_stops_at_the_first_failure(sandbox: Bubblewrap) -> None:
    tests = ProgramTests(tuple(ProgramTest("", "1") for _ in range(50)), seconds=1.0)
    verdict = grade(sandbox, "import time\ntime.sleep(100)", tests)
    assert verdict.status == "incorrect" and verdict.seconds < 30 and verdict.detail.startswith("test 1: timeout")


def test_all_tests_together_have_a_deadline(sandbox: Bubblewrap) -> None:
    tests = ProgramTests(tuple(ProgramTest("", "1") for _ in range(9)), seconds=2.0, total_seconds=0.5)
    verdict = grade(sandbox, "import time\ntime.sleep(0.4)\nprint(1)", tests)
    assert verdict.status == "timeout" and verdict.passed == 2  # 0.4 s and 0.8 s, and then it is too late
    assert ProgramTests(tests.tests).total_seconds == 7 * 9 + 5


class Failing:
    """A sandbox whose first runs fail, whatever the program, as machines do."""

    name = "failing"

    def __init__(self, sandbox: Bubblewrap, failures: int) -> None:
        self.sandbox, self.failures, self.runs = sandbox, failures, 0

    def describe(self) -> dict[str, object]:
        return {"sandbox": self.name}

    async def run(self, program: str, stdin: bytes, limits: Limits) -> Execution:
        self.runs += 1
        if self.runs <= self.failures:
            return failed("no room left")
        return await self.sandbox.run(program, stdin, limits)


def test_a_failing_sandbox_is_asked_again_once_and_then_gives_no_verdict(sandbox: Bubblewrap) -> None:
    right, wrong = "print(2 * int(input()))", "print(5)"
    once, twice, often = (Failing(sandbox, failures) for failures in (1, 2, 2))
    assert asyncio.run(grade_code(once, right, DOUBLE)).status == "correct" and once.runs == 1 + 3
    verdict = asyncio.run(grade_code(twice, right, DOUBLE))
    assert (verdict.status, verdict.detail, twice.runs) == ("error", "test 1: no room left", 2)
    assert asyncio.run(grade_code(often, wrong, DOUBLE)).status == "error"  # nobody knows that it was wrong


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tests": ()}, r"tests=\(\).*give at least one"),
        ({"function": "a b"}, "function='a b'.*give the name"),
        ({"seconds": 0.0}, "seconds=0.0: give a .*above 0"),
        ({"memory_mib": -1}, "memory_mib=-1: give a .*above 0"),
        ({"total_seconds": -1.0}, "total_seconds=-1.0: give 0 or more"),
    ],
)
def test_bad_tests_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProgramTests(**({"tests": DOUBLE.tests} | fields))
    with pytest.raises(ValueError, match="Limits: output_bytes=0"):
        Limits(output_bytes=0)
