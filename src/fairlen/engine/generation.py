"""What `Engine.extend` returns: a continuation that can be awaited, followed while it grows, and forked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from typing import Any, Protocol

from fairlen.batch import TokenIds
from fairlen.sampling.extend import Continuation, Extend, Sampling, gather

NOBODY = 2**62
"""The position that a sequence has to reach where nobody waits for one."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A request of `extend`, from arrival until its future is resolved."""

    prefix: TokenIds
    sampling: Sampling
    future: asyncio.Future[Continuation]
    parent: Sequence | None = None
    """Whose first tokens the prefix is, where it was forked."""
    slot: int = -1
    """Row of the cache in which it is decoded; -1 while it waits and after it has ended."""
    watchers: list[tuple[int, asyncio.Future[Continuation]]] = field(default_factory=list)
    """Who waits for a number of generated tokens, short of the end."""
    told: TokenIds = ()
    """Its generated tokens as far as somebody has been told of them: what may be forked."""
    kept: TokenIds = ()
    """Tokens whose keys and values were kept when it ended."""
    is_released: bool = False
    """Nobody will fork it any more."""

    @property
    def num_cacheable(self) -> int:
        """Prefix tokens whose keys and values are needed before the first step; that step feeds the last one."""
        return len(self.prefix) - 1

    @property
    def end(self) -> int:
        """Number of tokens, prefix included, at which the budget ends it."""
        return len(self.prefix) + self.sampling.max_new_tokens

    @property
    def watched(self) -> int:
        """Index of the newest token at which somebody has to be told."""
        return min((len(self.prefix) + number - 1 for number, _ in self.watchers), default=NOBODY)

    def tell(self, continuation: Continuation) -> None:
        """Gives everybody who waited for no more than these tokens, which need not be all, what they waited for."""
        self.told = continuation.token_ids
        length = len(self.told)
        for number, future in self.watchers:
            if number <= length and not future.done():
                future.set_result(continuation.first(number))
        self.watchers = [(number, future) for number, future in self.watchers if number > length]

    def finish(self, continuation: Continuation) -> None:
        """Gives everybody the whole of it."""
        self.told = continuation.token_ids
        for number, future in self.watchers:
            if not future.done():
                future.set_result(continuation.first(number))
        self.watchers.clear()
        if not self.future.done():
            self.future.set_result(continuation)

    def fail(self, error: BaseException | None) -> None:
        """Raises `error` in everybody who waits; None cancels them."""
        for future in (*(future for _, future in self.watchers), self.future):
            if future.done():
                continue
            if error is None:
                future.cancel()
            else:
                future.set_exception(error)
        self.watchers.clear()


def check_request(prefix: TokenIds, sampling: Sampling, max_length: int, vocab_size: int) -> None:
    """Raises ValueError, naming field, value and remedy, where a request cannot be served."""
    if not prefix:
        raise ValueError("prefix is empty: give at least one token, for example BOS")
    if min(prefix) < 0 or max(prefix) >= vocab_size:
        wrong = next(token for token in prefix if not 0 <= token < vocab_size)
        raise ValueError(f"prefix holds token id {wrong}, outside the model's vocabulary of {vocab_size}")
    if sampling.max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={sampling.max_new_tokens}: ask for at least 1")
    if len(prefix) + sampling.max_new_tokens > max_length:
        raise ValueError(
            f"prefix of {len(prefix)} tokens + max_new_tokens={sampling.max_new_tokens} exceeds "
            f"max_length={max_length}: "
            f"ask for at most {max_length - len(prefix)}, or build the Engine with a larger max_length"
        )
    check_sampling(sampling)


def check_sampling(sampling: Sampling) -> None:
    """Raises ValueError where the shape of the sampling distribution makes no sense."""
    if not 0.0 <= sampling.temperature < float("inf"):
        raise ValueError(f"temperature={sampling.temperature}: give 0 for greedy, or a positive number")
    if not 0.0 < sampling.top_p <= 1.0:
        raise ValueError(f"top_p={sampling.top_p}: give a probability in (0, 1]; 1 is off")
    if sampling.top_k < 0:
        raise ValueError(f"top_k={sampling.top_k}: give a number of tokens; 0 is off")
    if not 0.0 <= sampling.min_p <= 1.0:
        raise ValueError(f"min_p={sampling.min_p}: give a share of the highest probability in [0, 1]; 0 is off")


class Keeper(Protocol):
    """Who decodes the sequence."""

    def drop(self, sequence: Sequence) -> None:
        """Forgets a sequence that nobody waits for, or forks, any more."""
        ...

    def watch(self, sequence: Sequence, num_tokens: int, future: asyncio.Future[Continuation]) -> None:
        """Will tell `future` of the first `num_tokens` generated tokens of a sequence that has not ended."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """Await it for the whole. Cancelling whoever awaits frees its slot."""

    sequence: Sequence
    keeper: Keeper
    extend: Callable[[TokenIds, Sampling, Sequence], Generation]
    """Continues a prefix that is the beginning of a sequence."""

    def __await__(self) -> Generator[Any, None, Continuation]:
        return self._whole().__await__()

    async def _whole(self) -> Continuation:
        try:
            return await self.sequence.future
        except asyncio.CancelledError:
            self.keeper.drop(self.sequence)
            self.sequence.fail(None)
            raise

    async def reach(self, num_tokens: int) -> Continuation:
        """What a budget of `num_tokens` would have returned, as soon as it is there.

        Raises ValueError for fewer than one token, and what awaiting the whole would raise.
        """
        if num_tokens < 1:
            raise ValueError(f"reach({num_tokens}): ask for at least 1 token")
        if self.sequence.future.done():
            return self.sequence.future.result().first(num_tokens)
        told: asyncio.Future[Continuation] = asyncio.get_running_loop().create_future()
        self.keeper.watch(self.sequence, num_tokens, told)
        return await told

    def fork(self, num_tokens: int, sampling: Sampling) -> Generation:
        """Continues its first `num_tokens` generated tokens, which `reach` has given: as `extend` with them in the prefix.

        Its keys and values are taken from this one, and computed only where they have been given up. Raises ValueError for
        tokens that `reach` has not given, and what `extend` raises.
        """
        told = self.sequence.told
        if not 1 <= num_tokens <= len(told):
            raise ValueError(f"fork({num_tokens}): give 1 to {len(told)}, or await reach({num_tokens}) before")
        return self.extend(self.sequence.prefix + told[:num_tokens], sampling, self.sequence)

    def release(self) -> None:
        """Nobody will fork it any more: its keys and values are the first to be given up."""
        self.sequence.is_released = True
        if self.sequence.future.done():
            self.keeper.drop(self.sequence)


MAX_HOPS = 6
"""Rounds of the event loop in which an ended coroutine, what awaits it and what that starts may ask for more."""


class Waiting(Protocol):
    """The sequences that have not ended."""

    @property
    def has_work(self) -> bool:
        """Whether there are any."""
        ...

    @property
    def has_free_slot(self) -> bool:
        """Whether more of them would be decoded at once if there were more."""
        ...

    def clear(self) -> list[Sequence]:
        """Forgets all of them; returns who was there."""
        ...


@dataclass(slots=True, eq=False)
class Driver:
    """One task for all who wait. It ends when nobody does, and is started again by whoever asks next."""

    step: Callable[[], None]
    waiting: Waiting
    recover: Callable[[], None]
    """Forgets what an error in the middle of a step may have left half done."""
    task: asyncio.Task[None] | None = None

    def ensure(self) -> None:
        """Runs, on the running event loop. What a loop that is gone has left behind is forgotten.

        Raises RuntimeError while another loop is served.
        """
        loop = asyncio.get_running_loop()
        if self.task is not None and not self.task.done():
            if self.task.get_loop() is loop:
                return
            if not self.task.get_loop().is_closed():
                raise RuntimeError("the engine serves another event loop: use one loop, or one engine for each")
            self.waiting.clear()
        self.task = loop.create_task(self._drive())

    async def _drive(self) -> None:
        """Steps until nobody waits. An error, also one of the model, is raised in every coroutine that waits."""
        try:
            await self._listen()
            while self.waiting.has_work:
                self.step()
                await self._listen()
        except BaseException as error:
            self._abandon(error)
            if not isinstance(error, Exception):
                raise

    async def _listen(self) -> None:
        """Lets coroutines ask for more: once round the event loop, and further while slots would stay empty."""
        for _ in range(MAX_HOPS):
            await asyncio.sleep(0)
            if not self.waiting.has_free_slot:
                return

    def _abandon(self, error: BaseException) -> None:
        """Forgets all sequences: whoever waits sees `error`, or is cancelled where the driver was."""
        is_cancelled = isinstance(error, asyncio.CancelledError)
        for sequence in self.waiting.clear():
            sequence.fail(None if is_cancelled else error)
        if not is_cancelled:
            self.recover()


def generate(extend: Extend, prefixes: Ordered[TokenIds], samplings: Ordered[Sampling]) -> list[Continuation]:
    """`extend` for each pair, in order, for callers outside of an event loop. Raises ValueError for lists of unlike length."""
    if len(prefixes) != len(samplings):
        raise ValueError(f"{len(prefixes)} prefixes and {len(samplings)} samplings: give one sampling a prefix")

    async def extend_one(prefix: TokenIds, sampling: Sampling) -> Continuation:
        return await extend(prefix, sampling)

    async def extend_all() -> list[Continuation]:
        return await gather(map(extend_one, prefixes, samplings))

    return asyncio.run(extend_all())
