"""Tasks whose problems are drawn, not read: an endless training stream and as many held-out problems as are asked for."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any

from fairlen.tasks.task import Problem, Verdict

HELD_OUT_SHARE = 8
"""One problem in this many is held out."""
MAX_DRAWS = 20_000
"""Draws without a new problem after which a pool counts as empty."""


@dataclass(frozen=True)
class Synthetic(ABC):
    """A task whose answers end with `#` and a number; every problem follows from an index, the seed and `kind`."""

    name: str = field(init=False)
    notes: tuple[str, ...] = field(default=(), init=False)
    seed: int = field(default=0, kw_only=True)
    """Another one is another training stream; the held-out problems stay."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """Whatever decides which problems there are, but the seed."""

    @abstractmethod
    def draw(self, rng: Random, turn: int) -> Problem:
        """Draw a problem, the `turn`-th of its stream."""

    @property
    @abstractmethod
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt."""

    def describe(self) -> dict[str, Any]:
        """Return its fields, which decide every problem; those that are 0 are left out."""
        values = ((one.name, getattr(self, one.name)) for one in fields(self) if one.init)
        return {"task": self.name} | {
            name: list(value) if isinstance(value, tuple) else value for name, value in values if value
        }

    def train(self, index: int) -> Problem:
        """Return problem `index` >= 0 of an endless stream, a function of `index` and the fields alone; problems may recur."""
        stream = f"{self.seed}/" if self.seed else ""
        rng = Random(f"train/{self.kind}/{stream}{index}")
        while is_held_out((problem := self.draw(rng, index)).text):
            pass
        return problem

    def held_out(self, count: int) -> Sequence[Problem]:
        """Return the first `count` of the held-out problems, all different; ValueError when there are not so many."""
        rng = Random(f"held out/{self.kind}")
        found: dict[str, Problem] = {}
        while len(found) < count:
            draws = (self.draw(rng, len(found)) for _ in range(MAX_DRAWS))
            new = next((one for one in draws if is_held_out(one.text) and one.text not in found), None)
            if new is None:
                raise ValueError(
                    f"held_out({count}): only {len(found)} problems found; ask for fewer, or allow longer ones"
                )
            found[new.text] = new
        return tuple(found.values())

    async def verify(self, problem: Problem, text: str) -> Verdict:
        """Return correct where the text ends with `#` and the answer, no answer where it does not end with `#` and a number."""
        _, mark, answer = text.strip().rpartition("#")
        if not mark or not (answer.isascii() and answer.isdecimal()):
            return Verdict("no_answer", 0.0)
        return Verdict("correct", 1.0, answer) if answer == problem.answer else Verdict("incorrect", 0.0, answer)

    def close(self) -> None:  # noqa: B027
        """Do nothing: there is nothing to end."""


def is_held_out(text: str) -> bool:
    """Return whether a problem is held out: a property of its text alone, so no stream of any seed can ever train on it."""
    return hashlib.sha256(text.encode()).digest()[0] % HELD_OUT_SHARE == 0
