"""A request, which is also the handle to await and fork it, and the base of all engines."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from fairlen.rollouts import Finish, TokenIds
from fairlen.sampling.extend import Continuation, EngineStats, PrefixError, Sampling, gather

MAX_HOPS = 6  # rounds of the event loop, while slots are free, in which coroutines may make new requests


@dataclass(slots=True, eq=False)
class Sequence:
    """A request of `extend`: await it for the whole continuation. Cancelling the awaiting task frees its slot."""

    engine: SteppedEngine
    prefix: TokenIds
    sampling: Sampling
    future: asyncio.Future[Continuation]
    parent: Sequence | None = None  # of a fork
    token_ids: list[int] = field(default_factory=list)  # generated tokens
    logprobs: list[float] = field(default_factory=list)
    supports: list[bytes] = field(default_factory=list)
    """By token, the ids it was drawn from; where asked for and not the whole vocabulary."""
    watchers: list[tuple[int, asyncio.Future[Continuation]]] = field(default_factory=list)
    """Futures of `reach` with their numbers of tokens."""
    num_known: int = 0  # generated tokens that `reach` has returned: these may be forked
    slot: int = -1  # row of the cache while it is decoded; else -1
    kept: TokenIds = ()  # tokens that had keys and values when it ended
    is_released: bool = False  # no fork will follow

    @property
    def num_cacheable(self) -> int:
        """Prefix tokens computed before the first step, which feeds the last one."""
        return len(self.prefix) - 1

    def __await__(self) -> Generator[Any, None, Continuation]:
        return self._whole().__await__()

    async def _whole(self) -> Continuation:
        try:
            return await self.future
        except asyncio.CancelledError:
            self.engine.drop(self)
            self.fail(None)
            raise

    async def reach(self, num_tokens: int) -> Continuation:
        """Return, as soon as it is there, what `max_new_tokens=num_tokens` would have returned.

        Raises ValueError for fewer than one token, and what awaiting the whole would raise.
        """
        if num_tokens < 1:
            raise ValueError(f"reach({num_tokens}): ask for at least 1 token")
        if self.future.done():
            return self.future.result().first(num_tokens)
        reached: asyncio.Future[Continuation] = asyncio.get_running_loop().create_future()
        self.watchers.append((num_tokens, reached))
        self.notify()
        return await reached

    def fork(self, num_tokens: int, sampling: Sampling) -> Sequence:
        """Continue its first `num_tokens` generated tokens, as `extend` with them in the prefix; reuses keys and values.

        Raises ValueError for tokens that `reach` has not returned, and what `extend` raises.
        """
        if not 1 <= num_tokens <= self.num_known:
            raise ValueError(f"fork({num_tokens}): give 1 to {self.num_known}, or await reach({num_tokens}) before")
        return self.engine.extend(self.prefix + tuple(self.token_ids[:num_tokens]), sampling, self)

    def release(self) -> None:
        """Declare that no fork will follow: its keys and values are evicted first."""
        self.is_released = True
        if self.future.done():
            self.engine.drop(self)

    def so_far(self, finish: Finish) -> Continuation:
        return Continuation(tuple(self.token_ids), tuple(self.logprobs), finish, supports=tuple(self.supports))

    def append(self, token: int, logprob: float, support: bytes) -> Finish | Literal[""]:
        """Append a token; return why it is the last one, or an empty string."""
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        if support:
            self.supports.append(support)
        if token in self.engine.eos_ids:
            return "stop"
        return "length" if len(self.token_ids) == self.sampling.max_new_tokens else ""

    def notify(self) -> None:
        """Resolve futures of `reach` whose tokens are there."""
        length = len(self.token_ids)
        if any(number <= length for number, _ in self.watchers):
            self._give(self.so_far("length"), length)

    def finish(self, finish: Finish) -> None:
        self.engine.in_flight.pop(self, None)
        whole = self.so_far(finish)
        self._give(whole, inf)
        if not self.future.done():
            self.future.set_result(whole)

    def _give(self, continuation: Continuation, length: float) -> None:
        """Resolve futures of `reach` up to `length` tokens."""
        self.num_known = len(continuation.token_ids)
        for number, future in self.watchers:
            if number <= length and not future.done():
                future.set_result(continuation.first(number))
        self.watchers = [(number, future) for number, future in self.watchers if number > length]

    def fail(self, error: BaseException | None) -> None:
        """Raise `error` in all awaiting tasks; None cancels them."""
        for future in (*(future for _, future in self.watchers), self.future):
            if error is None:
                future.cancel()
            elif not future.done():
                future.set_exception(error)
        self.watchers.clear()


class SteppedEngine:
    """Base of engines: an asyncio task steps while requests are pending."""

    def __init__(
        self, vocab_size: int, eos_token_id: int | tuple[int, ...], max_length: int, max_num_seqs: int
    ) -> None:
        if max_num_seqs < 1:
            raise ValueError(f"max_num_seqs={max_num_seqs}: give at least 1")
        if max_length < 2:
            raise ValueError(f"max_length={max_length}: a prefix and a generated token need at least 2")
        self.vocab_size, self.eos_ids = vocab_size, check_eos(eos_token_id, vocab_size)
        self.max_length, self.max_num_seqs, self.policy_version = max_length, max_num_seqs, 0
        self.in_flight: dict[Sequence, None] = {}  # pending and running sequences, in order of arrival
        self._task: asyncio.Task[None] | None = None
        self._num_steps = self._num_generated = 0

    def extend(self, prefix: TokenIds, sampling: Sampling, parent: Sequence | None = None) -> Sequence:
        """Generate after `prefix` until EOS or `max_new_tokens`, on the running event loop; await the result.

        Raises ValueError for a request that cannot be served; awaiting it raises FloatingPointError for logits that are not
        finite, and any error of the model.
        """
        check_request(prefix, sampling, self.max_length, self.vocab_size)
        sequence = Sequence(self, tuple(prefix), sampling, asyncio.get_running_loop().create_future(), parent)
        self._ensure_task()
        self._add(sequence)
        self.in_flight[sequence] = None
        return sequence

    def generate(self, prefixes: Ordered[TokenIds], samplings: Ordered[Sampling]) -> list[Continuation]:
        """`extend` for each pair, in order, outside of an event loop. Raises ValueError for lists of unlike length."""

        async def extend_one(prefix: TokenIds, sampling: Sampling) -> Continuation:
            return await self.extend(prefix, sampling)

        pairs = zip(prefixes, samplings, strict=True)
        return asyncio.run(gather(extend_one(*pair) for pair in pairs))

    def refresh(self, policy_version: int) -> None:
        """Continue with the weights of `policy_version`, without keys and values of older ones.

        Raises RuntimeError while sequences are in flight, which would be of two policies.
        """
        self._require_idle(f"refresh({policy_version})")
        self.policy_version = policy_version
        self._forget()

    def sleep(self) -> None:
        """Free memory until the next request. Raises RuntimeError while sequences are in flight."""
        self._require_idle("sleep()")

    def _require_idle(self, call: str) -> None:
        if self.in_flight:
            raise RuntimeError(f"{call} with {len(self.in_flight)} sequences in flight: await or cancel them first")

    def drop(self, sequence: Sequence) -> None:
        self.in_flight.pop(sequence, None)
        self._drop(sequence)

    @property
    def reason(self) -> str:
        """A note for the log where it decodes otherwise than asked; else empty."""
        return ""

    @property
    def stats(self) -> EngineStats:
        """Counts over the engine's life."""
        raise NotImplementedError

    @property
    def has_free_slot(self) -> bool:
        """Whether one more request would be decoded at the next step."""
        raise NotImplementedError

    def _add(self, sequence: Sequence) -> None:
        raise NotImplementedError

    def _drop(self, sequence: Sequence) -> None:
        raise NotImplementedError

    def _step(self) -> None:
        """Decode a token, finish and notify sequences."""
        raise NotImplementedError

    def _forget(self) -> None:
        """Discard keys and values of older weights."""

    def _recover(self) -> None:
        """Discard state that an error in a step may have left inconsistent."""

    def _abandon(self) -> list[Sequence]:
        dropped = list(self.in_flight)
        for sequence in dropped:
            self.drop(sequence)
        return dropped

    def _ensure_task(self) -> None:
        """Start the task on the running event loop; drop sequences of a closed one. Raises RuntimeError for a second loop."""
        loop = asyncio.get_running_loop()
        if self._task is not None and not self._task.done():
            if self._task.get_loop() is loop:
                return
            if not self._task.get_loop().is_closed():
                raise RuntimeError("the engine serves another event loop: use one loop, or one engine for each")
            self._abandon()
        self._task = loop.create_task(self._drive())

    async def _drive(self) -> None:
        """Step until no request is pending; an error is raised in every awaiting coroutine."""
        try:
            await self._listen()
            while self.in_flight:
                self._step()
                await self._listen()
        except BaseException as error:
            is_cancelled = isinstance(error, asyncio.CancelledError)
            for sequence in self._abandon():
                sequence.fail(None if is_cancelled else error)
            if not is_cancelled:
                self._recover()
            if not isinstance(error, Exception):
                raise

    async def _listen(self) -> None:
        for _ in range(MAX_HOPS):
            await asyncio.sleep(0)
            if not self.has_free_slot:
                return


def check_request(prefix: TokenIds, sampling: Sampling, max_length: int, vocab_size: int) -> None:
    """Raise ValueError with field, value and remedy for a request that cannot be served."""
    if not prefix:
        raise PrefixError("prefix is empty: give at least one token, for example BOS")
    if min(prefix) < 0 or max(prefix) >= vocab_size:
        outside = next(token for token in prefix if not 0 <= token < vocab_size)
        raise PrefixError(f"prefix holds token id {outside}, outside the model's vocabulary of {vocab_size}")
    for name, is_fine, remedy in (
        ("max_new_tokens", sampling.max_new_tokens >= 1, "ask for at least 1"),
        ("temperature", 0.0 <= sampling.temperature < inf, "give 0 for greedy, or a positive number"),
        ("top_p", 0.0 < sampling.top_p <= 1.0, "give a probability in (0, 1]; 1 is off"),
        ("top_k", sampling.top_k >= 0, "give a number of tokens; 0 is off"),
        ("min_p", 0.0 <= sampling.min_p <= 1.0, "give a share of the highest probability in [0, 1]; 0 is off"),
    ):
        if not is_fine:
            raise ValueError(f"{name}={getattr(sampling, name)}: {remedy}")
    if len(prefix) + sampling.max_new_tokens > max_length:
        raise ValueError(
            f"prefix of {len(prefix)} tokens + max_new_tokens={sampling.max_new_tokens} exceeds max_length={max_length}: "
            f"ask for at most {max_length - len(prefix)}, or build the Engine with a larger max_length"
        )


def check_eos(eos_token_id: int | tuple[int, ...], vocab_size: int) -> frozenset[int]:
    """Raise ValueError for no EOS ids, or some outside the vocabulary."""
    ids = eos_token_id if isinstance(eos_token_id, tuple) else (eos_token_id,)
    if not ids or any(not isinstance(token, int) for token in ids):
        raise ValueError(f"eos_token_id={eos_token_id!r}: the engine needs the token id, or ids, that end a sequence")
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise ValueError(f"eos_token_id={eos_token_id}: outside the model's vocabulary of {vocab_size}")
    return frozenset(ids)
