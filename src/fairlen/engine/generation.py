"""What `Engine.extend` returns: a continuation that can be awaited, and followed while it grows."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

from fairlen.engine.sequence import Sequence
from fairlen.extend import Continuation


class Keeper(Protocol):
    """Who decodes the sequence."""

    def drop(self, sequence: Sequence) -> None:
        """Forgets a sequence that nobody waits for any more."""
        ...

    def watch(self, sequence: Sequence, num_tokens: int, future: asyncio.Future[Continuation]) -> None:
        """Will tell `future` of the first `num_tokens` generated tokens of a sequence that has not ended."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """Await it for the whole. Cancelling whoever awaits frees its slot."""

    sequence: Sequence
    keeper: Keeper

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

        A continuation that starts where this one is then takes its keys and values from it, without computing them.
        Raises ValueError for fewer than one token, and what awaiting the whole would raise.
        """
        if num_tokens < 1:
            raise ValueError(f"reach({num_tokens}): ask for at least 1 token")
        if self.sequence.future.done():
            return self.sequence.future.result().first(num_tokens)
        told: asyncio.Future[Continuation] = asyncio.get_running_loop().create_future()
        self.keeper.watch(self.sequence, num_tokens, told)
        return await told
