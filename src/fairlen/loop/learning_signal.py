"""Whether rollout batches have anything to learn from, and what length does in them: sentences that say why and what to do.

Every home (our trainer, TRL, verl) shows one `LearningSignal` each rollout batch and logs what it returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

import numpy as np

from fairlen.audit.method_in_use import InUse, aggregation_of
from fairlen.batch import Floats, Responses
from fairlen.console import plural
from fairlen.methods.description import short
from fairlen.methods.method import Method
from fairlen.methods.stages.surrogate import PolicyGradient
from fairlen.precision import is_above
from fairlen.sampling.independent import Independent
from fairlen.tasks.task import NO_FAILURES, Failures
from fairlen.watch.thresholds import THRESHOLDS
from fairlen.watch.watch import EFFECT, LengthWatch

NOTHING = "nothing was trained"
"""Begins a sentence about a run whose updates changed nothing."""
PATIENCE = 3
"""Rollout batches in a row, after which it is said; each kind once a run."""
NOTE = "note: "
"""Begins a sentence about a run in which nothing is wrong."""
FIRST_LOGS = (
    "in the first update of a rollout batch every ratio is 1, so that the loss is near 0 whatever is learned: the "
    "gradient's norm says how much; reward/mean is after the method's reward stages, the framework's reward before them"
)
NOT_TESTED = f"{NOTE}length and correctness are not tested by the length watch, as this sampler selects by length"


@dataclass(frozen=True)
class Counts:
    """Counts of rollout batches, which add up."""

    size: int = 0  # responses
    correct: int = 0
    incorrect: int = 0
    truncated: int = 0  # of any verdict, or of none where the method leaves them out
    ungraded: int = 0  # neither truncated nor with a verdict
    trained: int = 0  # sequences whose weight times advantage is not 0
    low: float = math.inf  # smallest outcome of a response that counts
    high: float = -math.inf
    idle_surrogate: str = ""
    """The surrogate where every ratio is 1 and it differs in nothing from a policy gradient; else nothing."""
    failures: Failures = NO_FAILURES  # of its responses by their texts, where the home has them
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
            idle_surrogate=short(method.surrogate) if is_idle else "",
        )

    def __add__(self, other: Counts) -> Counts:
        added = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.type == "int"}
        low, high = min(self.low, other.low), max(self.high, other.high)
        failures = self.failures + other.failures
        return Counts(**added, low=low, high=high, idle_surrogate=other.idle_surrogate, failures=failures)

    def __str__(self) -> str:
        return (
            f"{self.size} responses: {self.correct} correct, {self.incorrect} incorrect, {self.ungraded} without a verdict, "
            f"{self.truncated} truncated"
        )


NONE = Counts(batches=0)


@dataclass(frozen=True)
class Remedies:
    """Advice to a user of one home."""

    length: str  # against truncation
    verdict: str  # where rewards differ and all of them count as correct, or as incorrect
    updates: str  # for more updates of a rollout batch


KINDS: dict[str, Callable[[Counts], bool]] = {
    "nothing": lambda batch: batch.trained == 0,
    "incorrect": lambda batch: batch.trained > 0 and batch.correct == 0,
    "correct": lambda batch: batch.trained > 0 and batch.incorrect == 0,
    "surrogate": lambda batch: batch.trained > 0 and batch.idle_surrogate != "",
}
"""Conditions that are reported, the gravest first."""
KINDS_OF_LENGTH = tuple(kind for kind in (EFFECT, *THRESHOLDS) if kind != "signal")
"""Alarms of the watch; what is in "signal" is told by KINDS, which know the plan."""


@dataclass
class LearningSignal:
    """Looks at one run."""

    remedies: Remedies
    recent: tuple[Counts, ...] = ()  # the last PATIENCE rollout batches
    warned: set[str] = field(default_factory=set)
    total: Counts = NONE
    watch: LengthWatch = field(default_factory=lambda: LengthWatch(kinds=KINDS_OF_LENGTH, keep=False))

    def name_method(self, name: str, method: Method) -> None:
        """Say whose advice the watch gives, and whether its test holds: not of samplers that select responses by length."""
        stage = method.aggregation
        rule = aggregation_of(type(stage).__name__, *(getattr(stage, field, "") for field in ("scope", "by")))
        self.watch.in_use = InUse(name, rule, "this run", method) if rule else None
        self.watch.method, self.watch.exchangeable = name, isinstance(method.sampling, Independent)

    def look_at(
        self, step: int, responses: Responses, folded: Floats, method: Method, num_updates: float,
        failures: Failures = NO_FAILURES,
    ) -> list[str]:  # fmt: skip
        """Return the messages after one more rollout batch, usually none.

        `step` counts from 1; the other arguments are those of `Counts.of`.
        """
        is_first = not self.total.batches
        counts = replace(Counts.of(responses, folded, method, num_updates), failures=failures)
        messages = [NOT_TESTED] if is_first and not self.watch.exchangeable else []
        message = self.look(counts)
        if message:
            messages.append(message)
        watch_step = max(step, self.watch.last_step + 1)  # one update may train on several rollout batches
        alarms = self.watch.look(watch_step, responses)
        return messages + [f"{alarm.kind} at step {alarm.step}: {alarm.text}" for alarm in alarms]

    def look(self, batch: Counts) -> str:
        """Return the message after one more rollout batch, mostly nothing; up to its first punctuation it can be a title."""
        self.total += batch
        self.recent = (*self.recent, batch)[-PATIENCE:]
        for kind, holds in KINDS.items() if len(self.recent) == PATIENCE else ():
            if kind not in self.warned and all(map(holds, self.recent)):
                self.warned.add(kind)
                return self.describe(kind, sum(self.recent, NONE))
        return ""

    def conclude(self) -> str:
        """Return the message at the end of a run that never trained, or never saw a correct response; else nothing."""
        kinds = [kind for kind in ("nothing", "incorrect") if self.total.batches and KINDS[kind](self.total)]
        return self.describe(kinds[0], self.total) if kinds else ""

    def describe(self, kind: str, found: Counts) -> str:
        batches = f"{found.batches} {plural('rollout batch', found.batches, 'rollout batches')}"
        if kind == "surrogate":
            return (
                f"{NOTE}every ratio of {batches} was 1, as it should be where one update is made of each: "
                f"{found.idle_surrogate} has nothing to bound and is a plain policy gradient; for more updates "
                f"{self.remedies.updates}"
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
