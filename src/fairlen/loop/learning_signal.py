"""Whether rollout batches have anything to learn from, and whether their lengths drift: a sentence that says why and what to do.

Every home (our trainer, TRL, verl) shows one `LearningSignal` each rollout batch and logs what it returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields

import numpy as np

from fairlen.batch import Floats, Responses
from fairlen.console import plural
from fairlen.methods.description import short
from fairlen.methods.method import Method
from fairlen.methods.stages.surrogate import PolicyGradient
from fairlen.precision import is_above
from fairlen.tasks.task import NO_FAILURES, Failures

NOTHING = "nothing was trained"
"""Begins a sentence about a run whose updates changed nothing."""
PATIENCE = 3
"""Rollout batches in a row, after which it is said; each kind once a run."""
NOTE = "note: "
"""Begins a sentence about a run in which nothing is wrong."""
DRIFT = 2.0
"""Times longer or shorter than in the first PATIENCE rollout batches, from which on a mean length has drifted."""


@dataclass(frozen=True)
class Counts:
    """Counts of rollout batches, which add up."""

    size: int = 0
    """Responses."""
    correct: int = 0
    incorrect: int = 0
    truncated: int = 0
    """Of any verdict, or of none where the method leaves them out."""
    ungraded: int = 0
    """Neither truncated nor with a verdict."""
    trained: int = 0
    """Sequences whose weight times advantage is not 0."""
    low: float = math.inf
    """Smallest outcome of a response that counts."""
    high: float = -math.inf
    tokens: int = 0
    """Generated, of all responses."""
    idle_surrogate: str = ""
    """The surrogate where every ratio is 1 and it differs in nothing from a policy gradient; else nothing."""
    failures: Failures = NO_FAILURES
    """Of its responses by their texts, where the home has them."""
    batches: int = 1

    @classmethod
    def of(cls, responses: Responses, folded: Floats, method: Method, num_updates: float) -> Counts:
        """Counts of one rollout batch of which `num_updates` are made; `folded` is weight * advantage of what trains."""
        active, outcome = responses.active, responses.outcome[responses.active]
        is_idle = num_updates <= 1 and method.surrogate != PolicyGradient()
        return cls(
            size=len(responses),
            correct=int((active & responses.correct).sum()),
            incorrect=int((active & ~responses.correct).sum()),
            truncated=int(responses.truncated.sum()),
            ungraded=int((~active & ~responses.truncated).sum()),
            trained=int(np.count_nonzero(folded)),
            low=float(outcome.min(initial=math.inf)),
            high=float(outcome.max(initial=-math.inf)),
            tokens=int(responses.length.sum()),
            idle_surrogate=short(method.surrogate) if is_idle else "",
        )

    def __add__(self, other: Counts) -> Counts:
        added = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.type == "int"}
        low, high = min(self.low, other.low), max(self.high, other.high)
        failures = self.failures + other.failures
        return Counts(**added, low=low, high=high, idle_surrogate=other.idle_surrogate, failures=failures)

    @property
    def length(self) -> float:
        """Mean tokens of a response."""
        return self.tokens / max(self.size, 1)

    def has_drifted(self, first: Counts) -> bool:
        """Return whether responses are DRIFT times as long as in the first rollout batches, or as short."""
        return min(self.tokens, first.tokens) > 0 and abs(math.log(self.length / first.length)) >= math.log(DRIFT)

    def __str__(self) -> str:
        return (
            f"{self.size} responses: {self.correct} correct, {self.incorrect} incorrect, {self.ungraded} without a verdict, "
            f"{self.truncated} truncated"
        )


NONE = Counts(batches=0)


@dataclass(frozen=True)
class Remedies:
    """Advice to a user of one home."""

    length: str
    """Against truncation."""
    verdict: str
    """Where rewards differ and all of them count as correct, or as incorrect."""
    updates: str
    """For more updates of a rollout batch."""


KINDS: dict[str, Callable[[Counts, Counts], bool]] = {
    "nothing": lambda batch, first: batch.trained == 0,
    "incorrect": lambda batch, first: batch.trained > 0 and batch.correct == 0,
    "correct": lambda batch, first: batch.trained > 0 and batch.incorrect == 0,
    "surrogate": lambda batch, first: batch.trained > 0 and batch.idle_surrogate != "",
    "length": Counts.has_drifted,
}
"""Conditions that are reported, the gravest first; the second argument is of the first PATIENCE rollout batches."""


@dataclass
class LearningSignal:
    """Looks at one run."""

    remedies: Remedies
    streaks: dict[str, Counts] = field(default_factory=dict)
    """By kind: the rollout batches in a row, up to now, of which it is the case."""
    warned: set[str] = field(default_factory=set)
    total: Counts = NONE
    first: Counts = NONE
    """Of the first PATIENCE rollout batches since the run was started or resumed."""

    def look(self, batch: Counts) -> str:
        """Return the message after one more rollout batch, mostly nothing; up to its first punctuation it can be a title."""
        self.total += batch
        if self.total.batches <= PATIENCE:
            self.first = self.total
        for kind, holds in KINDS.items():
            self.streaks[kind] = self.streaks.get(kind, NONE) + batch if holds(batch, self.first) else NONE
        due = [kind for kind in KINDS if self.streaks[kind].batches >= PATIENCE and kind not in self.warned]
        self.warned.update(due[:1])
        return self.describe(due[0], self.streaks[due[0]]) if due else ""

    def conclude(self) -> str:
        """Return the message at the end of a run that never trained, or never saw a correct response; else nothing."""
        kinds = [kind for kind in ("nothing", "incorrect") if self.total.batches and KINDS[kind](self.total, NONE)]
        return self.describe(kinds[0], self.total) if kinds else ""

    def describe(self, kind: str, found: Counts) -> str:
        batches = f"{found.batches} {plural('rollout batch', found.batches, 'rollout batches')}"
        if kind == "surrogate":
            return (
                f"{NOTE}every ratio of {batches} was 1, as it should be where one update is made of each: "
                f"{found.idle_surrogate} has nothing to bound and is a plain policy gradient; for more updates "
                f"{self.remedies.updates}"
            )
        if kind == "length":
            times = max(found.length / self.first.length, self.first.length / found.length)
            change = f"{times:.1f} times as {'long' if found.length > self.first.length else 'short'} as at the start"
            return (
                f"{NOTE}responses are {change}: {self.first.length:.0f} tokens in the first {PATIENCE} rollout batches, "
                f"{found.length:.0f} in the last {found.batches}, of which {found.truncated / found.size:.0%} were truncated; "
                "the audit of the run's rollouts says what length has to do with correctness"
            )
        if kind == "nothing":
            return f"{NOTHING} in {batches} ({found}): {self.explain(found)}"
        return (
            f"every response of {batches} counts as {kind} ({found}; outcomes from {found.low:g} to {found.high:g}), so that "
            f"no verdict trains, only what rewards differ by otherwise; {self.advise(found)}"
        )

    def explain(self, found: Counts) -> str:
        if found.truncated == found.size:
            return f"all were truncated; {self.remedies.length}, or see whether the model ever ends a response"
        if found.correct + found.incorrect == 0:
            return "none that ended has a verdict; look for timeouts and errors of the verifier or the reward functions"
        if found.correct == 0 or found.incorrect == 0:
            side = "correct" if found.correct else "incorrect"
            return f"all count as {side}, with outcomes from {found.low:g} to {found.high:g}; {self.advise(found)}"
        return (
            "no prompt or pair had responses of different worth; give more responses to a prompt, or problems that the model "
            "solves sometimes"
        )

    def advise(self, found: Counts) -> str:
        if found.truncated == found.size:
            return self.remedies.length
        other = "give harder problems" if found.correct else found.failures.advise(self.remedies.length)
        return f"{self.remedies.verdict}, or {other}" if is_above(found.high, found.low) else other
