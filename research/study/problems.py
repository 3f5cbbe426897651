"""The tasks of the study: training problems by seed, and the held-out problems of the study and of its search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairlen.tasks.playground import Playground
from fairlen.tasks.task import Problem, Verdict

MIXED_BUDGET, VARIED_BUDGET, GAPPED_BUDGET = 160, 96, 64
TASKS: dict[str, tuple[Playground, int]] = {
    "mixed": (Playground(), MIXED_BUDGET),
    "varied": (Playground(), VARIED_BUDGET),
    "gapped": (Playground(num_moves=(5, 5), begun=1), GAPPED_BUDGET),
}
"""Name to problems and generation budget. `gapped` begins every answer: who has written a first step neither guesses nor jumps,
so that wrong answers are the long ones; a budget just above careful answers leaves little variation beside that."""


@dataclass(frozen=True)
class Drawn:
    """A family with its held-out problems from the `skipped`-th on."""

    family: Playground
    skipped: int = 0

    @property
    def name(self) -> str:
        return self.family.name

    @property
    def longest_prompt(self) -> int:
        return self.family.longest_prompt

    @property
    def notes(self) -> tuple[str, ...]:
        return self.family.notes

    def train(self, index: int) -> Problem:
        return self.family.train(index)

    def held_out(self, count: int) -> Sequence[Problem]:
        return self.family.held_out(self.skipped + count)[self.skipped :]

    async def verify(self, problem: Problem, text: str) -> Verdict:
        return await self.family.verify(problem, text)

    def describe(self) -> dict[str, Any]:
        return self.family.describe() | {"skipped": self.skipped}

    def close(self) -> None:
        self.family.close()
