"""Verdicts on responses to problems of any kind: answers by comparison, choices by letter, programs by their tests."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from fairlen.tasks.row import Answers, Choice, Program, Row
from fairlen.tasks.schemas import unpack_cases
from fairlen.tasks.task import Verdict
from fairlen.verify.answer import extract_choice
from fairlen.verify.answer_pool import AnswerPool
from fairlen.verify.program import ProgramTest, ProgramTests, grade_program
from fairlen.verify.sandbox import Sandbox, open_sandbox

KEPT_TESTS = 16
"""Problems whose packed tests are kept unpacked."""


class Verifier:
    """Grades responses. What a kind of problem needs is opened with it, so that a run fails at its start and not in it."""

    def __init__(
        self,
        kinds: Iterable[str],
        *,
        deadline: float = 5.0,
        unevaluated: bool = False,
        workers: int = 0,
        sandbox: str = "auto",
        unsafe_exec_on_host: bool = False,
    ) -> None:
        """`kinds` of problems: math, choice, code. `unevaluated`: as for `AnswerPool`. `workers`: comparisons, and programs, at a
        time; 0 is one for each core.

        Raises ValueError, with what to install, where a kind cannot be verified.
        """
        self.kinds = frozenset(kinds)
        try:
            self.pool: AnswerPool | None = (
                AnswerPool(workers or num_cores(), deadline, unevaluated=unevaluated) if "math" in self.kinds else None
            )
        except ModuleNotFoundError as error:
            raise ValueError(f"--data: {error}") from None
        self.sandbox: Sandbox | None = None
        if "code" in self.kinds:
            self.sandbox = open_sandbox(sandbox, unsafe_exec_on_host, workers)
        self.tests: OrderedDict[str, ProgramTests] = OrderedDict()

    async def __call__(self, row: Row, text: str, starts_inside: bool = False) -> Verdict:
        """The verdict on a finished response to a row. Raises nothing for any text."""
        match row.reference:
            case Answers() as answers:
                return await self.grade_answer(answers, text, starts_inside)
            case Choice() as choice:
                return grade_choice(choice, text, starts_inside)
            case Program() as program:
                if self.sandbox is None:
                    raise ValueError(
                        f"problem {row.id}: a program, but this verifier was opened for {sorted(self.kinds)}"
                    )
                verdict = await grade_program(self.sandbox, text, self.unpack(row.id, program), starts_inside)
                return Verdict(verdict.status, float(verdict.status == "correct"))

    async def grade_answer(self, answers: Answers, text: str, starts_inside: bool) -> Verdict:
        """Right where all parts are given, or one of the other accepted answers."""
        if self.pool is None:
            raise ValueError(f"a mathematical answer, but this verifier was opened for {sorted(self.kinds)}")
        found = await self.pool.verify(answers.parts, text, starts_inside=starts_inside, tolerance=answers.tolerance)
        for other in answers.others:
            if found.status == "incorrect" and found.answer is not None:
                found = await self.pool.compare(other, found.answer)
        return Verdict(found.status, float(found.status == "correct"), found.answer)

    def unpack(self, row_id: str, program: Program) -> ProgramTests:
        """The tests of a program; those of the problems asked about last are kept."""
        tests = self.tests.pop(row_id, None) or ProgramTests(
            tuple(ProgramTest(one, other) for one, other in unpack_cases(program)), program.function
        )
        self.tests[row_id] = tests
        if len(self.tests) > KEPT_TESTS:
            self.tests.popitem(last=False)
        return tests

    def describe(self) -> dict[str, Any]:
        """For run.json: how responses were graded."""
        described: dict[str, Any] = {"kinds": sorted(self.kinds)}
        if self.pool is not None:
            described |= {"answer_deadline": self.pool.deadline, "accept_unevaluated": self.pool.unevaluated}
        if self.sandbox is not None:
            described["sandbox"] = self.sandbox.describe()
        return described

    def close(self) -> None:
        """Ends the workers."""
        if self.pool is not None:
            self.pool.close()


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def grade_choice(choice: Choice, text: str, starts_inside: bool) -> Verdict:
    """Right where the letter chosen is the right one."""
    letter = extract_choice(text, choice.letters, starts_inside)
    if letter is None:
        return Verdict("no_answer", 0.0)
    return Verdict("correct", 1.0, letter) if letter == choice.letter else Verdict("incorrect", 0.0, letter)
