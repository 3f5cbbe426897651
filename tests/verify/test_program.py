"""Which code is graded and with what verdict, LiveCodeBench's rule for outputs; a sandbox that fails is never the program's."""

import asyncio
import os
import time

import pytest
from battery import Recorder
from loops import over
from turns import longest_pause

from fairlen.verify.bubblewrap import Bubblewrap
from fairlen.verify.execution import Execution, Limits
from fairlen.verify.outputs import same_text, same_value
from fairlen.verify.program import ProgramTests, extract_code, grade_code, grade_program

DOUBLE = ProgramTests((("3\n", "6\n"), ("-4\n", "-8\n"), ("0\n", "0\n")))
PAIR = ProgramTests((('[1, 2]\n"x"', '[[1, 2], "x"]'),), function="pair")


def grade(sandbox: Bubblewrap, code: str, tests: ProgramTests, seconds: float = 6.0) -> str:
    return asyncio.run(grade_code(sandbox, code, tests, Limits(seconds)))


@over(
    "text, code",
    [
        ("```python\nprint(1)\n```", "print(1)\n"), ("So:\n```\nprint(1)\n```\nDone.", "print(1)\n"),
        ("```py\na\n```\ntext\n```python3\nb\nc\n```\n", "b\nc\n"),  # the last block
        ("```python\na\n\n```python\nb\n```", "b\n"),  # the first was never closed
        ("  ```python\n  if a:\n    b\n c\n  ```", "if a:\n  b\nc\n"),  # as CommonMark: as far as the fence is
        ("1. So:\n\n   ```python\n   a\n   ```", "a\n"), ("```python title='x'\na\n```", "a\n"), ("```\n\n```", None),
        ("```python\nb", None), ("no code", None), ("inline ```a``` only", None), ("", None),
        ("<think>\n```\na\n```\n</think>\n```\nb\n```", "b\n"),
        ("<think>\n```\na\n```\n</think>\nI am sure.", None),  # nothing after the thinking
        ("<think>\n```\na\n```", None), ("```python\ns = '```'\nprint(s)\n```", "s = '```'\nprint(s)\n"),
        ("```python\r\nprint(1)\r\n```", "print(1)\r\n"),
    ],
)  # fmt: skip
def test_the_last_closed_block_counts(text: str, code: str | None) -> None:
    assert extract_code(text) == code


@over(
    "text, code",
    [
        ("````python\ns = '''\n```\n'''\n````\n", "s = '''\n```\n'''\n"),  # a shorter fence closes nothing
        ("````python\na\n```python\nb\n```\n````", "a\n```python\nb\n```\n"),
        ("```python\na\n`````", "a\n"),  # a longer one does
        ("```python\na\n```\nOutput:\n```\n1\n```\n", "a\n"),  # what a program printed is not judged in its place
        ("```python\na\n```\n```bash\npython3 main.py\n```\n```pycon\n>>> 1\n1\n```", "a\n"),
        ("```python\na\n```\n~~~\n5\n~~~\n> ```\n> 1\n> ```\n```\n1\n", "a\n"),
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
    "letters after a fence": "```" + "a" * 100_000, "blanks after a fence": "```" + " " * 100_000 + "x`",
    "digits of a version": "```py" + "3" * 100_000 + "a\nb\n```", "fences": "```\n" * 25_000,
    "marked fences": "```py\n" * 16_000, "newlines": "\n" * 100_000,
    "signs of quotation": ">" * 50_000 + "```\n" + "> " * 25_000 + "```", "blanks": " \t" * 50_000 + "```",
}  # fmt: skip


@over("name", HOSTILE)
def test_a_block_is_found_in_linear_time(name: str) -> None:
    """0.4 s of CPU time for 100,000 characters; a pattern that is quadratic in them takes 5 s and more."""
    start = time.thread_time()
    extract_code(HOSTILE[name])
    assert time.thread_time() - start < 0.4


@over(
    "code, status",
    [
        ("print(2 * int(input()))", "correct"), ("n = int(input())\nprint(float(2 * n))", "correct"),  # 6.0 is 6
        ("print(abs(2 * int(input())))", "incorrect"),  # 8 is not -8
        ("print(6)", "incorrect"), ("print(2 * int(input())", "incorrect"),  # does not compile
        ("print(2 * int(input()))\n1 / 0", "incorrect"),  # the right output, and then a crash
        ("\0", "incorrect"), ("print('\ud800')", "incorrect"), ("while True: pass", "incorrect"),
    ],
)  # fmt: skip
def test_programs(sandbox: Bubblewrap, code: str, status: str) -> None:
    assert grade(sandbox, code, DOUBLE, 0.5 if "while" in code else 5.0) == status


@over(
    "code, status",
    [
        ("def pair(a, b): return a, b", "correct"),
        ("def pair(a, b):\n    return [tuple(a), b]", "correct"),
        ("class Solution:\n    def pair(self, a: List[int], b: str) -> List: print('debugging'); return [a, b]", "correct"),
        ("from __future__ import annotations\nimport threading\ndef pair(a: X, b): return [a, b]", "correct"),
        ("from __future__ import (\n    annotations,\n)\ndef pair(a: X, b): return [a, b]", "correct"),
        ("pair = lambda a, b: [a, b]\nif __name__ == '__main__': 1 / 0", "correct"),
        ("class Number:\n    def __init__(self, n): self.n = n\n    def __index__(self): return self.n\n"
         "def pair(a, b): return [[Number(n) for n in a], b]", "correct"),
        ("def pair(a, b): return [a]", "incorrect"), ("def pair(a, b): return {1}", "incorrect"),
        ("def pair(a): return a", "incorrect"), ("def other(a, b): return [a, b]", "incorrect"),
        ("def pair(a, b): print([a, b])", "incorrect"), ("def pair(a, b): import sys; sys.exit(0)", "incorrect"),
        ("def pair(a, b): raise SystemExit", "incorrect"), ("import os\nos._exit(0)", "incorrect"),
        ("def pair(a, b): return pair(a, b)", "incorrect"),
        ("def pair(a, b):\n    x = []\n    x.append(x)\n    return x", "incorrect"),
    ],
)  # fmt: skip
def test_functions(sandbox: Bubblewrap, code: str, status: str) -> None:
    assert grade(sandbox, code, PAIR) == status


def test_a_response_is_graded_by_its_code(sandbox: Bubblewrap) -> None:
    answer = "<think>hm</think>Use twice.\n```python\nprint(2 * int(input()))\n```\n"
    assert asyncio.run(grade_program(sandbox, answer, DOUBLE)) == "correct"
    assert asyncio.run(grade_program(sandbox, "It is 6.", DOUBLE)) == "no_answer"


def test_grading_stops_at_the_first_failure(sandbox: Bubblewrap) -> None:
    tests = ProgramTests((("", "1"),) * 50)
    counting = Recorder(sandbox)
    assert grade(counting, "print(2)", tests, 1.0) == "incorrect" and counting.runs == 1


def test_a_failing_sandbox_is_asked_again_once_and_then_gives_no_verdict(sandbox: Bubblewrap) -> None:
    right, wrong = "print(2 * int(input()))", "print(5)"
    once, twice, often = (Recorder(sandbox, failures) for failures in (1, 2, 2))
    assert asyncio.run(grade_code(once, right, DOUBLE)) == "correct" and once.runs == 1 + 3
    assert asyncio.run(grade_code(twice, right, DOUBLE)) == "error" and twice.runs == 2
    assert asyncio.run(grade_code(often, wrong, DOUBLE)) == "error"  # nobody knows that it was wrong


MILLIONS = {
    "lists": "print('[' + '[],' * 2_600_000 + '[]]')", "emojis": "print('\\U0001f600\\n' * 1_600_000)",
    "numbers": "print('1 ' * 4_000_000)", "no text": "import sys\nsys.stdout.buffer.write(b'\\xff' * (8 << 20))",
    "one long number": "print('9' * 8_000_000)",
    "no text on stderr, and a crash": "import sys\nsys.stderr.buffer.write(b'\\xff\\n' * (4 << 20))\nsys.exit(1)",
}  # fmt: skip
VALUES = (
    "def f(): return [[] for _ in range(700_000)]", "def f(): return list(range(1_000_000))",
    "def f(): return '\\U0001f600' * 600_000",
)  # fmt: skip


@pytest.mark.slow
@over("code, function", [*((one, "") for one in MILLIONS.values()), *((one, "f") for one in VALUES)])
def test_eight_megabytes_of_output_do_not_stop_the_event_loop(sandbox: Bubblewrap, code: str, function: str) -> None:
    """Comparing at once takes 0.2 s and more."""
    expected = "[[], 1]" if function else "\n".join("1 2 3" for _ in range(1_600_000))
    tests = ProgramTests((("", expected),), function)
    limits = Limits(30.0, cpu_seconds=31)
    verdict, pause = asyncio.run(longest_pause(grade_code(sandbox, code, tests, limits)))
    assert verdict == "incorrect" and pause < 0.1


def test_long_outputs_are_compared_like_short_ones(sandbox: Bubblewrap) -> None:
    """100,000 numbers, more than are compared at once: printed as floats, and returned as a list."""
    values = "def f(): return list(range(100_000))", "def f(): return list(range(1, 100_001))"
    prints = "for n in range(100_000): print(n / 1)", "for n in range(1, 100_001): print(n)"
    expected = ("", str(list(range(100_000))))
    printed = ("", "\n".join(map(str, range(100_000))))
    assert [grade(sandbox, c, ProgramTests((expected,), "f")) for c in values] == ["correct", "incorrect"]
    assert [grade(sandbox, c, ProgramTests((printed,))) for c in prints] == ["correct", "incorrect"]


class Printed:
    """A sandbox elsewhere, which says what every program printed."""

    name = "elsewhere"

    def __init__(self, stdout: bytes) -> None:
        self.stdout = stdout

    async def run(self, program: str, stdin: bytes, limits: Limits) -> Execution:
        return Execution("ok", self.stdout, b"", 0)


@pytest.fixture
def bare_system(monkeypatch, tmp_path):
    """One without what Linux and util-linux have, such as macOS."""
    for name in ("sched_getaffinity", "pidfd_open"):
        monkeypatch.delattr(os, name)
    monkeypatch.setenv("PATH", str(tmp_path))


LONG = ProgramTests((("", "\n".join(map(str, range(20_000)))),))
"""108,889 characters, more than the 65,536 that are compared at once."""


@pytest.mark.parametrize("executable", ["/no/python", "/bin/false", None])
def test_outputs_that_cannot_be_compared_are_an_error(bare_system, monkeypatch, executable: str | None) -> None:
    monkeypatch.setattr("sys.executable", executable)
    verdict = asyncio.run(grade_code(Printed(b"1\n" * 60_000), "print(1)", LONG))
    assert verdict == "error"


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
    tests = ProgramTests((("1", "1"),), function="solve")
    assert not [(code, verdict) for code in READING if (verdict := grade(sandbox, code, tests)) != "correct"]


BINDING = {
    "sum": ("pass", "def maximum(values): return sum(values)", "global sum"),
    "gcd": ("del gcd", "from math import gcd\ndel gcd", "class Solution: pass", "import math\nx = gcd(4, 6)"),
    "loads": ("if False:\n    def loads(text): return json.loads(text)",
              "def solve(a):\n    def loads(a): return a\n    return loads(a)"),
}  # fmt: skip
BOUND = {
    "sum": ("def sum(values):\n    total = 0\n    for value in values: total += value\n    return total",
            "for sum in (sum,): pass"),
    "gcd": ("from math import gcd", "class Solution:\n    def gcd(self, a: int, b: int) -> int: return gcd(a, b)",
            "gcd = gcd"),
    "loads": ("class Base:\n    def loads(self, text): return json.loads(text)\nclass Solution(Base): pass",),
}  # fmt: skip
CALLS = {"sum": ("[1, 2, 3]", "6"), "gcd": ("12\n18", "6"), "loads": ('"[1]"', "[1]")}


def test_a_tested_name_is_one_that_the_program_binds(sandbox: Bubblewrap) -> None:
    """`pass` is no `sum`, though the prelude has one; `from math import gcd` is a `gcd`."""
    for programs, status in ((BINDING, "incorrect"), (BOUND, "correct")):
        for name, codes in programs.items():
            tests = ProgramTests((CALLS[name],), function=name)
            assert [grade(sandbox, code, tests) for code in codes] == [status] * len(codes), name


@over(
    "given, expected, truth",
    [
        ("YES\n3\n", "YES\n3", True), ("  1 \t2\r\n\n", "1 2", True), ("1\n2\n0", "1\n2", False),
        ("1\n\n2", "1\n2", False), ("1 2 3", "1 2", False), ("0 1", "1", False), ("2\n1", "1\n2", False),
        ("yes", "YES", False), ("a  b", "a b", False), ("the answer is 7", "7", False), ("1.0 +2e0", "1  2.000", True),
        ("50000000000000001", "50000000000000000", False),  # as floats they would be equal
        ("0.1", "0.10000000000000000555", False), ("1e3", "1000", True), ("1E+400000000000000000", "1", False),
        ("1_000", "1000", True),  # Decimal reads underscores, and so does LiveCodeBench
        ("٣", "3", True),  # and digits of other scripts
        ("nan", "nan", True),  # the same text
        ("nan 1", "nan 1.0", False),  # not-a-number equals nothing
        ("sNaN", "1", False), ("Infinity", "inf", True), ("1,5", "1.5", False), ("0x10", "16", False), ("", "", True),
        ("\n\n", "", True), ("1\n\n2", "1\n\n2", True),
        ("1\x0b2", "1 2", True),  # blanks of every kind separate numbers
        ("1\x0c\n", "1", True), ("True", "true", False), ("\ufeff1", "1", False),
    ],
)  # fmt: skip
def test_particular_pairs(given: str, expected: str, truth: bool) -> None:
    assert same_text(given, expected) is truth


@over(
    "given, expected, truth",
    [
        ("[1, 2]", "[1,2]", True), ("[[1], [2, 3]]", "[[1], [2, 3]]", True), ("1", "1.0", True), ("true", "1", True),
        ("null", "null", True), ("null", "0", False), ("[1, 2]", "[2, 1]", False), ("[1]", "1", False),
        ('"a"', '"a"', True), ('"1"', "1", False), ('{"a": [1]}', '{"a": [1]}', True),
        ("0.1", "0.10000000000000001", True),  # the same double
        ("0.1", "0.1000000000000001", False), ("NaN", "NaN", False), ("", "null", False), ("[1", "[1]", False),
        ("[" * 100_000, "[]", False), ("9" * 10_000, "9", False), ("\udcff", '"\\udcff"', False),
    ],
)  # fmt: skip
def test_values(given: str, expected: str, truth: bool) -> None:
    assert same_value(given.encode("utf-8", "surrogatepass"), expected) is truth


@over("given", ["1 " * 2_000_000, "9" * 4_000_000, "1\n" * 4_000_000, "e" * 4_000_000, "1e99999999999999999999"])
def test_hostile_outputs_take_no_time(given: str) -> None:
    start = time.process_time()
    assert not same_text(given, "1 2 3")
    assert time.process_time() - start < 2.0
