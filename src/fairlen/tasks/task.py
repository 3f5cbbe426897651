"""What a task gives: prompts as token ids, and a verdict on a finished text.

No dataset loading, no sandbox and no model here. A task never sees a cut piece of a response: only
finished texts are verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fairlen.batch import Status


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to solve."""

    id: str
    """Unique within the task; the same problem keeps its id in every run."""
    text: str
    """What the model is asked, before any chat template."""
    token_ids: tuple[int, ...]
    """The prompt as the model reads it, BOS and template included; at least one token."""
    answer: str
    """The reference answer, as it is shown and handed to reward functions; empty where a problem has tests instead."""
    columns: dict[str, Any] = field(default_factory=dict)
    """Whatever else the source says of the problem (family, difficulty); handed to reward functions."""
    starts_inside: bool = False
    """The prompt ends within the thinking of the model, so that its answer counts after </think> alone."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the verifier says of one finished response."""

    status: Status
    outcome: float
    """Worth of the response, 0 for wrong, 1 for right; graded verifiers give values between."""
    answer: str | None = None
    """What was taken as the response's answer, in a form in which equal answers look alike; None where there was none."""


class Task(Protocol):
    """Problems to train on, problems held out, and a verifier."""

    @property
    def name(self) -> str:
        """As in `--task`."""
        ...

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt, of training and held out."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Lines to say of the data at the start of a run."""
        ...

    def train(self, index: int) -> Problem:
        """The problem at position `index` >= 0 of an endless training stream that depends on nothing else."""
        ...

    def held_out(self, count: int) -> Sequence[Problem]:
        """The first `count` held-out problems; none of them ever occurs in `train`."""
        ...

    async def verify(self, problem: Problem, text: str) -> Verdict:
        """Grades a finished response. Never raises for bad text: that is a verdict."""
        ...

    def describe(self) -> dict[str, Any]:
        """What the run folder records of the data, by plain values; a run is resumed with the same alone."""
        ...

    def close(self) -> None:
        """Ends whatever verifies."""
        ...
