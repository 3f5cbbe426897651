"""Which code is graded, what verdict it gets, and that failures of the sandbox are never the program's."""

from __future__ import annotations

import asyncio
import os
import time

import pytest
from naming_programs import CALLS, PROGRAMS
from turns import longest_pause

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
        ("  ```python\n  if a:\n    b\n c\n  ```", "if a:\n  b\nc\n"),  # as CommonMark: as far as the fence is
        ("1. So:\n\n   ```python\n   a\n   ```", "a\n"),
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


PROGRAM = "```python\nprint(1)\n```\n"
ENDINGS = {
    "output": "Output:\n```\n1\n```\n",
    "marked output": "```text\n1\n```",
    "shell": "Run it:\n```bash\npython3 main.py\n```",
    "session": "```pycon\n>>> 1\n1\n```",
    "input in tildes": "Input:\n~~~\n5\n~~~",
    "quoted output": "> ```\n> 1\n> ```",
    "unclosed output": "```\n1\n",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_block_after_the_program_is_not_judged_in_its_place(ending: str) -> None:
    assert extract_code(PROGRAM + ENDINGS[ending]) == "print(1)\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("````python\ns = '''\n```\n'''\n````\n", "s = '''\n```\n'''\n"),  # a shorter fence closes nothing
        ("````python\na\n```python\nb\n```\n````", "a\n```python\nb\n```\n"),
        ("```python\na\n`````", "a\n"),  # a longer one does
        ("~~~python\na\n```\n~~~", "a\n```\n"),
        ("> ```python\n> if a:\n>     b\n> ```", "if a:\n    b\n"),
        (">```python\n>a\n>```", "a\n"),
        ("> > ```python\n> > a\n>\n> > b\n> > ```", "a\n\nb\n"),
        ("> ```python\na\n```", "a\n"),  # only the first line was quoted
        ("```python\ndef f():\n    '''\n    > ```\n    '''\n```", "def f():\n    '''\n    > ```\n    '''\n"),
        ("```Python3\na\n```\n```\nb\n```", "a\n"),
        ("```{.python}\na\n```\n```cpp\nb\n```", "a\n"),
        ("```py3.11 main.py\na\n```\n```python-repl\nb\n```", "a\n"),
        ("```solution\na\n```\n```\nb\n```", "b\n"),  # none is marked as Python: the last without a mark
        ("```code\na\n```\n```solution\nb\n```", "b\n"),
        ("```python\na\n```\n```python\n\n```", "a\n"),  # an empty block is none
    ],
)
def test_fences_are_those_of_commonmark(text: str, code: str) -> None:
    assert extract_code(text) == code


HOSTILE = {
    "letters after a fence": "```" + "a" * 100_000,
    "blanks after a fence": "```" + " " * 100_000 + "x`",
    "digits of a version": "```py" + "3" * 100_000 + "a\nb\n```",
    "fences": "```\n" * 25_000,
    "marked fences": "```py\n" * 16_000,
    "newlines": "\n" * 100_000,
    "signs of quotation": ">" * 50_000 + "```\n" + "> " * 25_000 + "```",
    "blanks": " \t" * 50_000 + "```",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_block_is_found_in_linear_time(name: str) -> None:
    """0.4 s of CPU time for 100,000 characters; a pattern that is quadratic in them takes 5 s and more."""
    start = time.thread_time()
    extract_code(HOSTILE[name])
    assert time.thread_time() - start < 0.4


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
    assert (verdict.status, verdict.passed) == (status, passed), verdict


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
    assert (silent.status, silent.passed) == ("no_answer", 0)


def test_grading_stops_at_the_first_failure(sandbox: Bubblewrap) -> None:
    tests = ProgramTests(tuple(ProgramTest("", "1") for _ in range(50)), seconds=1.0)
    verdict = grade(sandbox, "import time\ntime.sleep(100)", tests)
    assert verdict.status == "incorrect" and verdict.detail.startswith("test 1: timeout")


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


MILLIONS = {
    "lists": "print('[' + '[],' * 2_600_000 + '[]]')",
    "emojis": "print('\\U0001f600\\n' * 1_600_000)",
    "numbers": "print('1 ' * 4_000_000)",
    "no text": "import sys\nsys.stdout.buffer.write(b'\\xff' * (8 << 20))",
    "one long number": "print('9' * 8_000_000)",
    "no text on stderr, and a crash": "import sys\nsys.stderr.buffer.write(b'\\xff\\n' * (4 << 20))\nsys.exit(1)",
}
VALUES = {
    "lists": "def f(): return [[] for _ in range(700_000)]",
    "numbers": "def f(): return list(range(1_000_000))",
    "text": "def f(): return '\\U0001f600' * 600_000",
}


@pytest.mark.parametrize(
    ("code", "function"), [*((one, "") for one in MILLIONS.values()), *((one, "f") for one in VALUES.values())],
    ids=[*MILLIONS, *(f"value of {name}" for name in VALUES)],
)  # fmt: skip
def test_eight_megabytes_of_output_do_not_stop_the_event_loop(sandbox: Bubblewrap, code: str, function: str) -> None:
    """Comparing at once takes 0.2 s and more."""
    expected = "[[], 1]" if function else "\n".join("1 2 3" for _ in range(1_600_000))
    tests = ProgramTests((ProgramTest("", expected),), function=function, seconds=30.0)
    verdict, pause = asyncio.run(longest_pause(grade_code(sandbox, code, tests)))
    assert verdict.status == "incorrect" and pause < 0.1


def test_long_outputs_are_compared_like_short_ones(sandbox: Bubblewrap) -> None:
    """100,000 numbers, more than are compared at once: printed as floats, and returned as a list."""
    values = "def f(): return list(range(100_000))", "def f(): return list(range(1, 100_001))"
    prints = "for n in range(100_000): print(n / 1)", "for n in range(1, 100_001): print(n)"
    expected = ProgramTest("", str(list(range(100_000))))
    printed = ProgramTest("", "\n".join(map(str, range(100_000))))
    assert [grade(sandbox, c, ProgramTests((expected,), "f")).status for c in values] == ["correct", "incorrect"]
    assert [grade(sandbox, c, ProgramTests((printed,))).status for c in prints] == ["correct", "incorrect"]


class Printed:
    """A sandbox elsewhere, which says what every program printed."""

    name = "elsewhere"

    def __init__(self, stdout: bytes) -> None:
        self.stdout = stdout

    async def run(self, program: str, stdin: bytes, limits: Limits) -> Execution:
        return Execution("ok", self.stdout, b"", 0, 0.1)


@pytest.fixture
def bare_system(monkeypatch, tmp_path):
    """One without what Linux and util-linux have, such as macOS."""
    for name in ("sched_getaffinity", "pidfd_open"):
        monkeypatch.delattr(os, name)
    monkeypatch.setenv("PATH", str(tmp_path))


LONG = ProgramTests((ProgramTest("", "\n".join(map(str, range(20_000)))),))
"""108,889 characters, more than the 65,536 that are compared at once."""


@pytest.mark.parametrize(("first", "status"), [(0, "correct"), (1, "incorrect")])
def test_long_outputs_are_compared_on_any_system(bare_system, first: int, status: str) -> None:
    printed = "\n".join(f"{n}.0" for n in range(first, first + 20_000))
    verdict = asyncio.run(grade_code(Printed(printed.encode()), "print(1)", LONG))
    assert (verdict.status, verdict.detail) == (status, "" if status == "correct" else "test 1: another output")


@pytest.mark.parametrize("executable", ["/no/python", "/bin/false", None])
def test_outputs_that_cannot_be_compared_are_an_error(bare_system, monkeypatch, executable: str | None) -> None:
    monkeypatch.setattr("sys.executable", executable)
    verdict = asyncio.run(grade_code(Printed(b"1\n" * 60_000), "print(1)", LONG))
    assert verdict.status == "error" and verdict.detail.startswith("test 1: ")


def test_a_program_longer_than_contests_allow_is_wrong(sandbox: Bubblewrap) -> None:
    tests = ProgramTests((ProgramTest("", "1"),))
    verdict = grade(sandbox, "print(1)" + "\n" * (1 << 16), tests)
    assert (verdict.status, verdict.detail) == ("incorrect", "a program of more than 65536 characters")
    assert grade(sandbox, "print(1)" + "\n" * 65_000, tests).status == "correct"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tests": ()}, r"tests=\(\).*give at least one"),
        ({"function": "a b"}, "function='a b'.*give the name"),
        ({"seconds": 0.0}, "seconds=0.0: give a .*above 0"),
    ],
)
def test_bad_tests_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProgramTests(**({"tests": DOUBLE.tests} | fields))
    with pytest.raises(ValueError, match="Limits: output_bytes=0"):
        Limits(output_bytes=0)


def test_a_tested_name_is_one_that_the_program_binds(sandbox: Bubblewrap) -> None:
    """`pass` is no `sum`, though the prelude has one; `from math import gcd` is a `gcd`."""

    async def grade_all() -> list[ProgramVerdict]:
        tests = [ProgramTests((ProgramTest(*CALLS[name]),), function=name) for name, _ in PROGRAMS]
        graded = zip(PROGRAMS, tests, strict=True)
        return await asyncio.gather(*(grade_code(sandbox, program.code, test) for (_, program), test in graded))

    verdicts = asyncio.run(grade_all())
    assert len(PROGRAMS) >= 40
    wrong = [
        (name, program.code, verdict)
        for (name, program), verdict in zip(PROGRAMS, verdicts, strict=True)
        if (verdict.status == "correct") != program.is_correct
    ]
    assert not wrong


READING = [
    "def solve(x): return Counter([x])[x] + gcd(2, 4) - 2",
    "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: 'List[int]'\ndef solve(x): return P(x).x",
    "class P(NamedTuple):\n    x: Optional[int]\ndef solve(x): return get_type_hints(P) and P(x).x",
    "import solution\ndef solve(x): return solution.one * x\none = 1",
    "import pickle\nclass P: pass\ndef solve(x): return x if type(pickle.loads(pickle.dumps(P()))) is P else 0",
    "from __future__ import annotations\ndef solve(x: Undefined): return eval('gcd(x, 0)', {'x': x})",
    "def solve(x):\n    space = {}\n    exec('y = reduce(max, [x])', {'x': x}, space)\n    return space['y']",
    "exit = None\ndef solve(x): return int(open(__file__).read(4) == 'exit')",
]


def test_a_program_reads_the_names_of_the_prelude(sandbox: Bubblewrap) -> None:
    tests = ProgramTests((ProgramTest("1", "1"),), function="solve")
    assert not [(code, verdict) for code in READING if (verdict := grade(sandbox, code, tests)).status != "correct"]
