"""What `Engine.extend` returns: a continuation that can be awaited, and followed while it grows."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from fairlen.engine.scheduler import Scheduler
from fairlen.engine.sequence import Sequence
from fairlen.extend import Continuation


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """Await it for the whole. Cancelling whoever awaits frees its slot."""

    sequence: Sequence
    scheduler: Scheduler

    def __await__(self) -> Generator[Any, None, Continuation]:
        return self._whole().__await__()

    async def _whole(self) -> Continuation:
        try:
            return await self.sequence.future
        except asyncio.CancelledError:
            self.scheduler.drop(self.sequence)
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
        self.scheduler.watch(self.sequence, num_tokens, told)
        return await told
