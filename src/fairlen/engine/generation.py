"""What `Engine.extend` returns: a continuation that can be awaited, followed while it grows, and forked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol

from fairlen.engine.sequence import Sequence
from fairlen.sampling.extend import Continuation, Sampling, TokenIds


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
