"""Environments: the policy writes a turn, the environment answers with an observation, until one of them ends the trajectory.

A coroutine function of an environment runs on the event loop and must not block; a plain function runs in a thread of its own.
Any failure of an environment ends its trajectory without a verdict, and nothing else.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import index
from threading import Thread
from typing import Any, Protocol, runtime_checkable

from fairlen.console import warn
from fairlen.hangs import DeadlineError, SideThread, TrainingStopped, as_errors
from fairlen.rollouts import VERDICTS, Finish, Status, TokenIds, Verdict
from fairlen.sampling.extend import Continuation, Extend, PrefixError, Sampling, derive_seed
from fairlen.tasks.task import Problem, Task

MAX_GIVEN_UP = 512  # calls that still go on: all trajectories of a rollout batch may wait for one server
LONGEST_TOKEN = 64  # characters; a text of more than this for every token that is left is not even tokenized


@dataclass(frozen=True, slots=True)
class Observation:
    """The environment's reply to a turn of the policy."""

    text: str
    """Text that the policy reads next; no token of it is trained."""
    is_last: bool = False
    """Whether the trajectory has ended; its text is not read then."""
    reward: float = 0.0
    """Reward of the turn itself; the outcome of the trajectory's verdict includes it."""


class Environment(Protocol):
    """The other side of one trajectory, made anew for each; its methods are coroutine functions or plain ones."""

    def start(self) -> Any:
        """Return the text that the policy reads after the prompt and before its first turn; often none."""
        ...

    def act(self, text: str) -> Any:
        """Return the Observation that a turn of the policy, special tokens left out, led to."""
        ...

    def grade(self) -> Any:
        """Return the Verdict on the trajectory, which has ended: by either side or by a limit."""
        ...

    def end(self) -> Any:
        """Free what it holds. Called exactly once."""
        ...


@runtime_checkable
class Interactive(Task, Protocol):
    """A task whose problems are solved in turns."""

    @property
    def max_turns(self) -> int:
        """Turns of the policy after which a trajectory is truncated."""
        ...

    def environment(self, problem: Problem, seed: int) -> Environment:
        """Make the environment of one trajectory; what it draws follows from the seed."""
        ...

    def encode_observation(self, text: str) -> TokenIds:
        """Return the tokens between the end of one turn and the begin of the next, those of the chat template included."""
        ...


def shorten(value: Any) -> str:
    """Return the first 200 characters of a value's repr or an exception's text in one line; its type if it has no repr."""
    try:
        return " ".join((str(value) if isinstance(value, BaseException) else repr(value)).split())[:200]
    except Exception:
        return type(value).__name__


class Fault(Exception):
    """An environment's function raised, was late, or returned what it must not."""

    def __init__(self, status: Status, function: str, what: str) -> None:
        super().__init__(f"{function} {what}")
        self.status: Status = status
        self.kind = f"{status} {function}"


@dataclass(eq=False)
class Guarded:
    """An environment whose calls end in time and return what they must, or raise a Fault."""

    build: Callable[[], Environment]
    deadline: float
    side: SideThread
    inner: Any = None
    is_late: bool = False

    async def start(self) -> str:
        try:
            self.inner = await self._call("make", object)
        finally:
            self.is_late = self.inner is None
        return await self._call("start", str)

    def make(self) -> Environment:
        """Build the environment, and end one that came after its deadline: nobody else knows of it."""
        made = self.build()
        if self.is_late and inspect.isawaitable(ending := made.end()):
            asyncio.run(as_errors(ending))
        return made

    async def act(self, text: str) -> Observation:
        found: Any = await self._call("act", Observation, text)
        try:
            if isinstance(found.text, str) and math.isfinite(found.reward):
                return Observation(found.text, bool(found.is_last), float(found.reward))
        except Exception:  # a reward of any type
            pass
        raise Fault("error", "act", f"returned {shorten(found)}: text is a string and reward a finite number")

    async def grade(self) -> Verdict:
        verdict: Any = await self._call("grade", Verdict)
        try:
            if verdict.status in VERDICTS and math.isfinite(verdict.outcome):
                return replace(verdict, outcome=float(verdict.outcome))
        except Exception:  # an outcome of any type
            pass
        what = f"returned {shorten(verdict)}: give a Verdict with {', '.join(VERDICTS)} and a finite outcome"
        raise Fault("error", "grade", what)

    async def end(self) -> None:
        if self.inner is not None:
            await self._call("end", object)

    async def _call(self, name: str, kind: type, *arguments: Any) -> Any:
        try:
            function = self.make if name == "make" else getattr(self.inner, name)
            found = await self.side.call(partial(function, *arguments), self.deadline)
        except DeadlineError as error:
            raise Fault("timeout", name, f"did not return within {self.deadline:g} s") from error
        except TrainingStopped:
            raise
        except Exception as error:
            raise Fault("error", name, f"raised {type(error).__name__}: {shorten(error)}") from error
        if not isinstance(found, kind):
            raise Fault("error", name, f"returned {shorten(found)}; give {kind.__name__}")
        return found


@dataclass(frozen=True)
class InTurns:
    """An engine's `extend`, a turn at a time; `about` a problem it gives whole trajectories."""

    extend: Extend
    task: Interactive
    decode: Callable[[Sequence[int]], str]
    deadline: float = 60.0
    warned: set[str] = field(default_factory=set)
    left_behind: list[Thread] = field(default_factory=list)

    def __call__(self, prefix: TokenIds, sampling: Sampling) -> Awaitable[Continuation]:
        return self.extend(prefix, sampling)

    async def play(self, problem: Problem, prefix: TokenIds, sampling: Sampling) -> Continuation:
        """Turns and observations of at most `max_new_tokens` together. Truncated ones are graded, failed ones not."""
        side = SideThread("environment", left_behind=self.left_behind, limit=MAX_GIVEN_UP)
        environment = Guarded(lambda: self.task.environment(problem, sampling.seed), self.deadline, side)
        trajectory = Trajectory(prefix, sampling)
        try:
            await self._play(environment, trajectory)
            verdict = await environment.grade()
        except Fault as fault:
            verdict = Verdict(fault.status, 0.0)
            self._warn(problem, fault, "such trajectories have no verdict and do not train")
            if not trajectory.turns:  # a response has a token, also one that counts nowhere
                trajectory = Trajectory(prefix, sampling)
                await self._write(trajectory, 1)
        finally:
            try:
                await environment.end()
            except Fault as fault:
                self._warn(problem, fault, "the trajectory counts")
        return trajectory.close(verdict)

    async def _play(self, environment: Guarded, trajectory: Trajectory) -> None:
        if not self._read(trajectory, opening := await environment.start()):
            what = f"returned {len(opening)} characters, which with a turn do not fit into {trajectory.room} tokens"
            raise Fault("error", "start", what)
        for _ in range(self.task.max_turns):
            turn = await self._write(trajectory, trajectory.room)
            if turn.finish == "length":
                break
            seen = await environment.act(self.decode(turn.token_ids))
            trajectory.rewards.append(seen.reward)
            if seen.is_last:
                return
            if not self._read(trajectory, seen.text):
                break
        trajectory.finish = "length"

    async def _write(self, trajectory: Trajectory, max_new_tokens: int) -> Continuation:
        """Raises a Fault for an observation that the model cannot read."""
        sampling = trajectory.sampling_of_turn(max_new_tokens)
        try:
            turn = (await self.extend(trajectory.prefix, sampling)).check(sampling)
        except PrefixError as error:
            if not trajectory.token_ids:
                raise
            raise Fault("error", "encode_observation", f"returned tokens that no model reads: {error}") from error
        trajectory.write(turn)
        return turn

    def _read(self, trajectory: Trajectory, text: str) -> bool:
        """Append an observation; return whether there is room for it and a turn after it."""
        if len(text) > LONGEST_TOKEN * trajectory.room:
            return False
        try:
            tokens = tuple(map(index, self.task.encode_observation(text))) if text or trajectory.turns else ()
        except Exception as error:
            raise Fault("error", "encode_observation", f"raised {type(error).__name__}: {shorten(error)}") from error
        if len(tokens) >= trajectory.room:
            return False
        trajectory.token_ids += tokens
        return True

    def _warn(self, problem: Problem, fault: Fault, consequence: str) -> None:
        """Log the first fault of a kind; the share of responses without a verdict is a metric."""
        if fault.kind not in self.warned:
            self.warned.add(fault.kind)
            warn(f"problem {problem.id}: its environment's {fault}; {consequence}")


def choose_extend(task: Task, extend: Extend, decode: Callable[[Sequence[int]], str], deadline: float = 60.0) -> Extend:
    """Return what continues prompts of a task; `about` a problem in turns it plays whole trajectories."""
    return InTurns(extend, task, decode, deadline) if isinstance(task, Interactive) else extend


def about(extend: Extend, problem: Problem) -> Extend:
    """Return what continues the prompt of this problem to its end: by trajectories where its task is solved in turns."""
    return partial(extend.play, problem) if isinstance(extend, InTurns) else extend


@dataclass(eq=False)
class Trajectory:
    prompt: TokenIds
    sampling: Sampling  # sampling of the first turn; `max_new_tokens` is the limit of all turns and observations
    token_ids: TokenIds = ()  # after the prompt
    logprobs: tuple[float, ...] = ()
    supports: tuple[bytes, ...] = ()
    turns: list[tuple[int, int]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    finish: Finish = "stop"  # also where its environment failed: no limit ended it

    @property
    def prefix(self) -> TokenIds:
        return self.prompt + self.token_ids

    @property
    def room(self) -> int:
        return self.sampling.max_new_tokens - len(self.token_ids)

    def sampling_of_turn(self, max_new_tokens: int) -> Sampling:
        """The first has the seed of the trajectory, so that a trajectory of one turn is sampled as a response is."""
        seed = derive_seed(self.sampling.seed, len(self.turns)) if self.turns else self.sampling.seed
        return replace(self.sampling, seed=seed, max_new_tokens=max_new_tokens)

    def write(self, turn: Continuation) -> None:
        start = len(self.token_ids)
        self.turns.append((start, start + len(turn.token_ids)))
        self.token_ids += turn.token_ids
        self.logprobs += turn.logprobs
        self.supports += turn.supports

    def close(self, verdict: Verdict) -> Continuation:
        """The whole trajectory without observations after its last turn."""
        rewards = (*self.rewards, *[0.0] * (len(self.turns) - len(self.rewards)))
        return Continuation(
            self.token_ids[: self.turns[-1][1]], self.logprobs, self.finish,
            tuple(self.turns), rewards, verdict.status, verdict.outcome, self.supports,
        )  # fmt: skip
