"""Verdicts on programs: the code of a response runs on every test, and is correct where all outputs are.

Expected outputs stay here. The sandbox gets the program and one input at a time, one process for each test, so that nothing
that a program does can show it the answer, the other inputs or the verdict; all it can do is to print the right output.

A program that crashes, hangs, takes too much memory or prints too much is wrong. A sandbox that fails says nothing about
the program: the test is run again once, and then the verdict is `error`, which does not count.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field

from fairlen.batch import Status
from fairlen.checks import check_not_negative, check_positive
from fairlen.verify.code_blocks import extract_code
from fairlen.verify.comparison import agrees
from fairlen.verify.driver import build_driver, read_frame
from fairlen.verify.execution import Execution, Limits, Sandbox, failed
from fairlen.verify.prelude import with_prelude

MAX_PROGRAM = 1 << 16
"""Characters, as on Codeforces; what is longer is wrong."""

MAX_DETAIL = 200
"""Characters of a program's last words in a verdict."""


@dataclass(frozen=True, slots=True)
class ProgramTest:
    """One input and what a right program answers."""

    input: str
    """For programs: stdin. For functions: the arguments, one JSON value a line."""
    output: str
    """For programs: stdout. For functions: the returned value as JSON."""


@dataclass(frozen=True, slots=True)
class ProgramTests:
    """What a program must do. ValueError where there is no test."""

    tests: tuple[ProgramTest, ...]
    function: str = ""
    """Function, or method of a class `Solution`, that is called; empty for programs that read stdin and print."""
    seconds: float = 6.0
    """For each test, six as in LiveCodeBench; `Limits` says what counts."""
    total_seconds: float = 0.0
    """For all tests together, of each at most `seconds`; waiting for a place in the sandbox is not counted. 0 stands for
    LiveCodeBench's (seconds + 1) * tests + 5, which only a sandbox with overhead of seconds reaches."""
    memory_mib: int = 1024
    limits: Limits = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_positive(self, "seconds", "memory_mib")
        check_not_negative(self, "total_seconds")
        if not self.tests:
            raise ValueError("tests=(): a program without tests would be correct whatever it does; give at least one")
        if self.function and not self.function.isidentifier():
            raise ValueError(f"function={self.function!r}: give the name of a function, or nothing for programs")
        cpu = math.ceil(self.seconds) + 1
        if not self.total_seconds:
            object.__setattr__(self, "total_seconds", (self.seconds + 1) * len(self.tests) + 5)
        object.__setattr__(self, "limits", Limits(self.seconds, cpu_seconds=cpu, memory_mib=self.memory_mib))


@dataclass(frozen=True, slots=True)
class ProgramVerdict:
    """What the tests say of a program."""

    status: Status
    passed: int
    """Tests passed before the first failure."""
    total: int
    seconds: float
    """In the sandbox, all tests together."""
    detail: str
    """Of the test that failed; empty for correct programs. Never contains an expected output."""


async def grade_program(
    sandbox: Sandbox, text: str, tests: ProgramTests, starts_inside: bool = False
) -> ProgramVerdict:
    """Judges a finished response by the code in it."""
    code = extract_code(text, starts_inside)
    if code is None:
        return ProgramVerdict("no_answer", 0, len(tests.tests), 0.0, "no closed code block after the thinking")
    return await grade_code(sandbox, code, tests)


async def grade_code(sandbox: Sandbox, code: str, tests: ProgramTests) -> ProgramVerdict:
    """Judges code: tests in order, up to the first that fails."""
    total, spent = len(tests.tests), 0.0
    if len(code) > MAX_PROGRAM:
        return ProgramVerdict("incorrect", 0, total, 0.0, f"a program of more than {MAX_PROGRAM} characters")
    program = with_prelude(code)
    if tests.function:
        program = build_driver(program, tests.function)
    for passed, test in enumerate(tests.tests):
        if spent > tests.total_seconds:
            return ProgramVerdict("timeout", passed, total, spent, f"more than {tests.total_seconds:g} s for all tests")
        execution, complaint = await run_test(sandbox, program, test, tests)
        spent += min(execution.seconds, tests.seconds)
        if execution.status == "infrastructure":
            detail = f"test {passed + 1}: {execution.stderr.decode('utf-8', 'replace')}"
            return ProgramVerdict("error", passed, total, spent, detail)
        if complaint:
            return ProgramVerdict("incorrect", passed, total, spent, f"test {passed + 1}: {complaint}")
    return ProgramVerdict("correct", total, total, spent, "")


async def run_test(sandbox: Sandbox, program: str, test: ProgramTest, tests: ProgramTests) -> tuple[Execution, str]:
    """A run on one input, twice where the sandbox failed, and what is wrong with its output, or empty."""
    word = secrets.token_hex(16) if tests.function else ""
    stdin = f"{word}\n{test.input}" if tests.function else test.input
    execution = await sandbox.run(program, stdin.encode("utf-8", "replace"), tests.limits)
    if execution.status == "infrastructure":
        execution = await sandbox.run(program, stdin.encode("utf-8", "replace"), tests.limits)
    try:
        return execution, await find_complaint(execution, test, word)
    except Exception as error:  # a comparison that does not run says nothing about the program, and ends no training
        return failed(f"{type(error).__name__}: {error}", execution.seconds), ""


async def find_complaint(execution: Execution, test: ProgramTest, word: str) -> str:
    """Why an execution does not pass a test, or empty. `word`: of the driver, for functions."""
    if execution.status != "ok":
        words = execution.stderr[-4 * MAX_DETAIL :].decode("utf-8", "replace").strip().rpartition("\n")[2]
        return f"{execution.status}, exit code {execution.exit_code}: {words[-MAX_DETAIL:]}"
    if not word:
        return "" if await agrees("text", execution.stdout, test.output) else "another output"
    value = read_frame(execution.stdout, word)
    if value is None:
        return "ended without returning"
    return "" if await agrees("value", value, test.output) else "another value"
