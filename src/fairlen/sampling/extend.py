"""The one primitive of an engine: continue a prefix. Samplers are written against it and run on everything that offers it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Generator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar, runtime_checkable

from fairlen.rollouts import Finish, Logprobs, Status, Supports, TokenIds
from fairlen.schema import Spans

Result = TypeVar("Result")


class PrefixError(ValueError):
    """A prefix that is empty, or has ids outside of the model's vocabulary."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings for the continuation of one prefix."""

    max_new_tokens: int
    """At least 1; generation ends here with finish "length" unless EOS came first."""
    seed: int
    """Two continuations of one prefix with one seed are the same; every track has its own."""
    temperature: float = 1.0
    """The policy is softmax(logits / temperature); 0 is greedy, for evaluation only."""
    top_p: float = 1.0
    """Nucleus; 1 is off. The policy is the distribution that this and the next two leave, renormalised."""
    top_k: int = 0
    """Most likely tokens kept; 0 is off."""
    min_p: float = 0.0
    """Floor relative to the most likely token; 0 is off."""
    with_support: bool = False
    """Return with each token those that it was drawn from, where others were cut: training needs them."""

    @property
    def needs_support(self) -> bool:
        is_truncated = self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0
        return self.with_support and is_truncated and self.temperature > 0.0


@dataclass(frozen=True, slots=True)
class Continuation:
    """Tokens generated after a prefix, by the fields of a `Response` that they become."""

    token_ids: TokenIds
    """EOS included where there was one; at least one token."""
    logprobs: Logprobs
    """Under softmax(logits / temperature) over the tokens left by truncation; when greedy under softmax(logits)."""
    finish: Finish
    turns: Spans = ()
    """Of a trajectory, in positions of `token_ids`."""
    turn_rewards: tuple[float, ...] = ()
    status: Status = "unverified"
    """Of a trajectory that its environment has graded, with `outcome`."""
    outcome: float = 0.0
    supports: Supports = ()
    """Empty where nothing was cut, or `with_support` was False."""

    def first(self, num_tokens: int) -> Continuation:
        """Return the first `num_tokens` tokens, as a smaller limit would have given."""
        if len(self.token_ids) <= num_tokens:
            return self
        found = self.token_ids[:num_tokens], self.logprobs[:num_tokens]
        return Continuation(*found, "length", supports=self.supports[:num_tokens])

    def check(self, sampling: Sampling) -> Continuation:
        """Return itself. Raises ValueError for the continuations of a faulty engine, of which streams would never end."""
        made, asked = len(self.token_ids), sampling.max_new_tokens
        is_right = self.finish == "stop" or (self.finish == "length" and (made == asked or len(self.turns) > 0))
        written = sum(stop - start for start, stop in self.turns) if self.turns else made
        if not 1 <= made <= asked or not is_right or len(self.logprobs) != written:
            raise ValueError(
                f'extend returned {made} tokens and {len(self.logprobs)} logprobs with finish="{self.finish}" for '
                f"max_new_tokens={asked}: an engine returns 1 to that many tokens, a logprob for each, EOS included, and "
                'finish="length" for exactly that many, else "stop"; anything else is no response to train on, look for the '
                "engine's own error"
            )
        if sampling.needs_support and len(self.supports) != written:
            raise ValueError(
                f"extend returned {len(self.supports)} supports for {written} tokens of truncated sampling: without the ids that "
                "a token was drawn from its ratio is unknown; return them, or leave top_p, top_k and min_p off"
            )
        return self


class Extend(Protocol):
    def __call__(self, prefix: TokenIds, sampling: Sampling) -> Awaitable[Continuation]: ...


@runtime_checkable
class Growing(Protocol):
    """A continuation on its way, to await, follow and fork; `extend` of a capable engine returns one."""

    def __await__(self) -> Generator[Any, None, Continuation]: ...

    def reach(self, num_tokens: int) -> Awaitable[Continuation]:
        """The first tokens, as soon as they are there, as `extend` with that limit would return them."""
        ...

    def fork(self, num_tokens: int, sampling: Sampling) -> Growing:
        """A continuation of its prefix and its first `num_tokens` tokens, which it has reached."""
        ...

    def release(self) -> None:
        """Let the engine drop its state for forks."""
        ...


class Whole:
    """A continuation of an engine that shows no progress: followed when it has ended, forked by its tokens."""

    def __init__(self, extend: Extend, prefix: TokenIds, sampling: Sampling, awaited: Awaitable[Continuation]) -> None:
        self.extend, self.prefix = extend, prefix

        async def check() -> Continuation:
            return (await awaited).check(sampling)

        self.answer = asyncio.ensure_future(check())

    def __await__(self) -> Generator[Any, None, Continuation]:
        return self.answer.__await__()

    async def reach(self, num_tokens: int) -> Continuation:
        return (await self.answer).first(num_tokens)

    def fork(self, num_tokens: int, sampling: Sampling) -> Growing:
        return grow(self.extend, self.prefix + self.answer.result().token_ids[:num_tokens], sampling)

    def release(self) -> None:
        """Nothing is kept for forks."""


def grow(extend: Extend, prefix: TokenIds, sampling: Sampling) -> Growing:
    """Continue a prefix by any engine; the handle is the engine's own where it has one."""
    found = extend(prefix, sampling)
    return found if isinstance(found, Growing) else Whole(extend, prefix, sampling, found)


@dataclass(frozen=True, slots=True)
class EngineStats:
    num_slots: int
    num_steps: int
    num_generated_tokens: int
    num_prefix_tokens: int
    """Prefix tokens whose keys and values were needed; the last token of a prefix is not one, a step feeds it."""
    num_computed_tokens: int
    """Prefix tokens that were forwarded; the others were reused."""
    num_preemptions: int = 0
    """Times that a sequence lost its keys and values to others; this and the next are of engines with weights of their own."""
    pushed_bytes: int = 0
    push_seconds: float = 0.0
    sleep_seconds: float = 0.0
    """Spent copying weights, and freeing memory and taking it back."""

    @property
    def occupancy(self) -> float:
        return self.num_generated_tokens / max(self.num_steps * self.num_slots, 1)

    def metrics(self) -> dict[str, float]:
        counts = {"engine/preemptions": self.num_preemptions, "engine/pushed_bytes": self.pushed_bytes}
        seconds = {"time/push": self.push_seconds, "time/sleep": self.sleep_seconds}
        return {"engine/occupancy": self.occupancy} | (counts | seconds if self.pushed_bytes else {})

    def since(self, before: EngineStats) -> EngineStats:
        counts = [getattr(self, f.name) - getattr(before, f.name) for f in fields(self)[1:]]
        return EngineStats(self.num_slots, *counts)


@asynccontextmanager
async def siblings() -> AsyncIterator[asyncio.TaskGroup]:
    """A TaskGroup that raises the first error by itself; nothing that it started still runs when it is left."""
    first: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        first = errors.exceptions[0]
    if first is not None:  # outside of the clause, so that the group is no context of it
        raise first


async def gather(works: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Results in the order of the coroutines; an error of one cancels and awaits the others, unlike with asyncio.gather."""
    async with siblings() as group:
        tasks = [group.create_task(work) for work in works]
    return [task.result() for task in tasks]


_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
_MASK = (1 << 64) - 1


def derive_seed(*position: int) -> int:
    """A 63-bit seed from a position such as (run, rollout batch, prompt occurrence, refill, stream, track, round).

    The same on every machine; positions that differ anywhere, or in length, give unrelated ones.
    """
    key = len(position)
    for number in position:
        key = (key * 0xD1342543DE82EF95 + number + 0x9E3779B97F4A7C15) & _MASK
        for shift, factor in _MIX:
            key = ((key ^ (key >> shift)) * factor) & _MASK
    return key >> 1
