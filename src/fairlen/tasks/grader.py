"""From a finished response to its outcome: the task's verdict and the user's own reward functions, weighted.

    outcome = verifier_weight * verdict + sum of weight * reward function

A reward function is called as TRL calls one, with lists of one: `f(prompts, completions, completion_ids=…, answer=…, **columns)`
returns one number, or None where it does not apply. It may be async, and must not block then; others run in a thread, one call
at a time and in order, so that what they draw from `random` can be repeated. Past the deadline a response has no verdict; the
thread that still runs cannot be killed and is left behind.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, Literal

from fairlen.batch import Response
from fairlen.console import warn
from fairlen.hangs import UNWATCHED, DeadlineError, SideThread, TrainingStopped, Watchdog
from fairlen.tasks.task import Problem, Task, Verdict

VERIFIER = "verifier"
"""Name of the verdict among the parts of an outcome."""
VERDICTS = ("correct", "incorrect", "no_answer")
"""Statuses that say what an answer is worth."""
RewardFunction = Callable[..., Sequence[float | None] | Awaitable[Sequence[float | None]]]


@dataclass(frozen=True)
class WeightedReward:
    """A reward function of the user's own."""

    name: str
    function: RewardFunction
    weight: float = 1.0


@dataclass(frozen=True)
class Finding:
    """How one outcome came about."""

    parts: dict[str, float]
    """What the verifier and each reward function said."""
    seconds: float | None
    """Of the verifier."""
    answer: str | None
    """What the verifier took as the answer."""


@dataclass
class Grader:
    """Grades responses; keeps how every outcome came about until it is recorded."""

    task: Task
    decode: Callable[[Sequence[int]], str]
    """Generated token ids to text, special tokens left out."""
    rewards: Sequence[WeightedReward] = ()
    verifier_weight: float = 1.0
    without_verdict: Literal["inactive", "wrong"] = "inactive"
    """What a response is worth where the verifier came to no verdict: nothing counts it, or it is a wrong answer."""
    reward_deadline: float = 60.0
    """Seconds for one call of a reward function; 0 is none, and calls them on the event loop."""
    watchdog: Watchdog = UNWATCHED
    findings: dict[int, Finding] = field(default_factory=dict)
    """By seed of the response."""
    seconds: float = 0.0
    """So far, in which the verifier had at least one text."""
    num_out: int = 0
    """Texts that the verifier has."""
    busy_since: float = 0.0
    num_graded: int = 0
    overdue: set[str] = field(default_factory=set)
    """Reward functions that missed the deadline, of which was told."""
    side: SideThread = field(default_factory=lambda: SideThread("rewards"))

    async def __call__(self, problem: Problem, response: Response) -> Response:
        token_ids = response.token_ids[response.num_prompt :]
        text = self.decode(token_ids)
        start = time.perf_counter()
        with self.busy(), self.watchdog.watch(f"verifier: problem {problem.id}", self.count):
            verdict = await self.task.verify(problem, text)
        seconds = time.perf_counter() - start
        parts = {VERIFIER: float(verdict.outcome)}
        outcome = self.verifier_weight * parts[VERIFIER]
        for reward in self.rewards:
            with self.watchdog.watch(f"reward {reward.name}: problem {problem.id}", self.count):
                try:
                    value = await call_reward(reward, problem, text, token_ids, self.side, self.reward_deadline)
                except DeadlineError as error:
                    self.tell_overdue(reward.name, problem, error)
                    verdict, outcome = Verdict("timeout", 0.0, verdict.answer), 0.0
                    break
            if value is not None:
                outcome += reward.weight * value
                parts[reward.name] = value
        self.num_graded += 1
        self.findings[response.seed] = Finding(parts, seconds, verdict.answer)
        counts = verdict.status in VERDICTS or self.without_verdict == "wrong"
        return replace(response, outcome=outcome, status=verdict.status, active=counts)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Counts the time once, however many texts are out."""
        if self.num_out == 0:
            self.busy_since = time.perf_counter()
        self.num_out += 1
        try:
            yield
        finally:
            self.num_out -= 1
            if self.num_out == 0:
                self.seconds += time.perf_counter() - self.busy_since

    def close(self) -> None:
        """Ends its watchdog."""
        self.watchdog.close()

    def count(self) -> int:
        """How many responses were graded: whoever watches one sees that others are done."""
        return self.num_graded

    def tell_overdue(self, name: str, problem: Problem, error: DeadlineError) -> None:
        """Says it once for each function; verifier/timeout has the share."""
        if name not in self.overdue:
            self.overdue.add(name)
            warn(
                f"reward {name}: {error} on problem {problem.id}; such responses have no verdict, and their share is logged. "
                "The thread cannot be killed and goes on by itself; --reward-deadline sets the time"
            )


async def call_reward(
    reward: WeightedReward,
    problem: Problem,
    text: str,
    token_ids: Sequence[int],
    side: SideThread | None = None,
    deadline: float = 0.0,
) -> float | None:
    """One number, or None where the function does not apply. A deadline above 0 needs a `side` thread to call it in.

    Raises DeadlineError past the deadline, and ValueError where the function raised or returned something else.
    """
    columns = {name: [value] for name, value in problem.columns.items()}

    def call() -> Any:
        return reward.function(
            [problem.text], [text], completion_ids=[list(token_ids)], answer=[problem.answer], **columns
        )

    try:
        values: Any
        if side is not None and deadline and not inspect.iscoroutinefunction(reward.function):
            values = await side.call(call, deadline)
        else:
            values = call()
        if inspect.isawaitable(values):
            values = await wait_for(values, deadline)
    except (DeadlineError, TrainingStopped):
        raise
    except Exception as error:
        raise ValueError(f"reward {reward.name} raised {type(error).__name__}: {error}") from error
    found = list(values) if isinstance(values, Iterable) else []
    if len(found) != 1 or not isinstance(found[0], Real | None):
        raise ValueError(
            f"reward {reward.name} returned {values!r} for one response: return a list with one number, or None, for each"
        )
    return None if found[0] is None else float(found[0])


async def wait_for(values: Awaitable[Any], deadline: float) -> Any:
    """What it comes to. Raises DeadlineError past the deadline, after it was cancelled; 0 is none."""
    task = asyncio.ensure_future(values)
    try:
        done, _ = await asyncio.wait((task,), timeout=deadline or None)
    finally:
        if not task.done():
            task.cancel()
    if not done:
        raise DeadlineError(f"no answer within {deadline:g} s")
    return task.result()
