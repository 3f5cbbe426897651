"""Environments that drive: they ask the policy for its turns, with token ids, and are answered with token ids.

A call continues its conversation, so that no text is tokenized twice; one that rewrites earlier tokens is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import index

from fairlen.rollouts import TokenIds
from fairlen.sampling.extend import Continuation, Extend, PrefixError, Sampling
from fairlen.seeds import derive_seed
from fairlen.tasks.environment import Driving, Fault, Player, Trajectory, check_verdict, is_foreign, show, warn_once
from fairlen.tasks.task import Problem, Verdict


class RefusedRequest(ValueError):
    """A call that cannot be a part of a trajectory; the environment is answered with its text."""


@dataclass(eq=False)
class Calls:
    """The policy's side of one episode: a conversation for each agent that the environment has."""

    extend: Extend
    prompt: TokenIds  # prompt of the problem; what an agent reads after it counts as read before its first turn
    sampling: Sampling  # sampling of the whole; `max_new_tokens` limits what a conversation reads and writes together
    deadline: float
    clock: asyncio.Timeout = field(default_factory=lambda: asyncio.timeout(None))  # stands while a turn is asked
    conversations: dict[str, Trajectory] = field(default_factory=dict)
    out: set[str] = field(default_factory=set)  # names of conversations that wait for a turn
    refusal: str = ""
    failure: Exception | None = None  # error of the engine, which is the run's and not the environment's

    async def __call__(
        self, name: str, prompt: Iterable[int], stops: Iterable[int] = (), limit: int = 0
    ) -> Continuation:
        """The next turn of a conversation, up to one of `stops` or to `limit` tokens above 0. Raises RefusedRequest."""
        if not isinstance(name, str):
            raise self.refuse(f"conversation {show(name)}: its name is a text")
        ids, ends, (most,) = map(self._read_numbers, ("token_ids", "stops", "limit"), (prompt, stops, (limit,)))
        if name not in self.conversations:  # the first has the seed of the trajectory
            number, seed = len(self.conversations), self.sampling.seed
            sampling = replace(self.sampling, seed=derive_seed(seed, number, 0, 0) if number else seed)
            self.conversations[name] = Trajectory(self.prompt, sampling)
        conversation = self.conversations[name]
        self._read(name, conversation, ids)
        room = conversation.room
        sampling = conversation.sampling_of_turn(min(most or room, room))
        self.out.add(name)
        self.wind()
        try:
            turn = first_stop((await self.extend(conversation.prefix, sampling)).check(sampling), frozenset(ends))
        except PrefixError as error:
            if not conversation.token_ids:
                self.failure = error
                raise
            conversation.forget()
            raise self.refuse(str(error)) from error
        except Exception as error:
            self.failure = error
            raise
        finally:
            self.out.discard(name)
            self.wind()
        conversation.write(turn)
        if turn.finish == "length" and not conversation.room:
            conversation.finish = "length"
        return turn

    def refuse(self, reason: str) -> RefusedRequest:
        """Keep the first reason, and return it as an error."""
        self.refusal = self.refusal or reason
        return RefusedRequest(reason)

    def wind(self) -> None:
        """Start the clock anew, or stop it while the policy is asked."""
        runs = self.deadline and not self.out
        with suppress(RuntimeError):  # it has run out, or the episode is over
            self.clock.reschedule(asyncio.get_running_loop().time() + self.deadline if runs else None)

    def _read_numbers(self, what: str, numbers: Iterable[int]) -> tuple[int, ...]:
        """Raises RefusedRequest for anything but whole numbers from 0 on."""
        try:
            found = tuple(map(index, numbers))
        except Exception:
            found = (-1,)
        if min(found, default=0) < 0:
            raise self.refuse(f"{what}={show(numbers)}: give whole numbers from 0 on")
        return found

    def _read(self, name: str, conversation: Trajectory, prompt: TokenIds) -> None:
        if name in self.out:
            raise self.refuse("two turns of one conversation are asked at the same time; a trajectory is one sequence")
        known = conversation.prefix
        if prompt[: len(known)] != known:
            same = next((i for i, (old, new) in enumerate(zip(known, prompt, strict=False)) if old != new), len(prompt))
            raise self.refuse(
                f"turn {len(conversation.turns) + 1} does not continue what was read and written before, {len(known)} tokens: "
                f"token {same} is another one; what rewrites earlier turns cannot be trained on as it was sampled"
            )
        if len(prompt) - len(conversation.prompt) >= conversation.sampling.max_new_tokens:
            conversation.finish = "length"
            raise RefusedRequest(
                f"maximum context length: {len(prompt)} tokens, of which at most "
                f"{len(conversation.prompt) + conversation.sampling.max_new_tokens} fit with a turn"
            )
        conversation.token_ids += prompt[len(known) :]


def first_stop(turn: Continuation, stops: Set[int]) -> Continuation:
    end = next((place for place, token in enumerate(turn.token_ids, 1) if token in stops), 0)
    return replace(turn.first(end), finish="stop") if end else turn


@dataclass(frozen=True)
class Driven(Player):
    extend: Extend
    task: Driving
    deadline: float = 60.0  # seconds in which an environment asks for its next turn, or ends; 0 is none
    warned: set[str] = field(default_factory=set)

    async def play(self, problem: Problem, prefix: TokenIds, sampling: Sampling) -> Continuation:
        """Turns of the trained agent, with what it read between them; no verdict where the environment failed."""
        calls = Calls(self.extend, prefix, sampling, self.deadline)
        try:
            trajectory, verdict = await self._drive(problem, calls)
        except Fault as fault:
            warn_once(self.warned, problem, fault, "such trajectories have no verdict and do not train")
            talked = [one for one in calls.conversations.values() if one.turns]
            trajectory, verdict = next(iter(talked), Trajectory(prefix, sampling)), Verdict(fault.status, 0.0)
        if not trajectory.turns:  # a response has a token, also one that counts nowhere
            one = trajectory.sampling_of_turn(1)
            trajectory.write((await self.extend(prefix, one)).check(one))
        return trajectory.close(verdict)

    async def _drive(self, problem: Problem, calls: Calls) -> tuple[Trajectory, Verdict]:
        try:
            async with calls.clock:
                calls.wind()
                played = await self.task.drive(problem, calls)
            trajectory = calls.conversations[played.name]
            if not trajectory.turns:
                room = calls.sampling.max_new_tokens
                raise Fault(
                    "error", "episode", f"ended before a turn; max_response_length={room} holds all that is read, too"
                )
            return trajectory, check_verdict(played.verdict, "episode")
        except BaseException as error:
            if not is_foreign(error):
                raise
            if calls.failure is not None:
                raise calls.failure from error
            if calls.clock.expired():
                what = f"neither asked for a turn nor ended within {self.deadline:g} s"
                raise Fault("timeout", "episode", what) from error
            if calls.refusal:
                raise Fault("error", "episode", calls.refusal) from error
            if isinstance(error, Fault):
                raise
            raise Fault("error", "episode", f"raised {type(error).__name__}: {show(error)}") from error
