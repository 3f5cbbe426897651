"""The task that steps an engine while somebody waits for it, on the event loop of whoever waits.

In: a function that makes one step, and the sequences that want more of them. Out: nothing; steps resolve what coroutines await.
Not here: what a step is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import Protocol

from fairlen.engine.sequence import Sequence
from fairlen.sampling.extend import Continuation, Extend, Sampling, TokenIds
from fairlen.sampling.siblings import gather

MAX_HOPS = 6
"""Rounds of the event loop in which an ended coroutine, what awaits it and what that starts may ask for more."""


class Waiting(Protocol):
    """The sequences that have not ended."""

    @property
    def has_work(self) -> bool:
        """Whether there are any."""
        ...

    @property
    def is_hungry(self) -> bool:
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
            if not self.waiting.is_hungry:
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
