"""How many programs run at a time, and each on one core: one with many spinning threads slows itself alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle, islice
from weakref import WeakKeyDictionary

from fairlen.verify.interpreter import find_tool


class Places:
    """`slots` runs at a time in each event loop, spread over the cores that we may use."""

    def __init__(self, slots: int) -> None:
        self.taskset = find_tool("taskset", "util-linux")
        self._cores = list(islice(cycle(sorted(os.sched_getaffinity(0))), slots))
        self._free: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.LifoQueue[int]] = WeakKeyDictionary()

    @asynccontextmanager
    async def take(self) -> AsyncIterator[tuple[str, ...]]:
        """Waits for a place; the command that starts another one on its core."""
        loop = asyncio.get_running_loop()
        if loop not in self._free:
            self._free[loop] = asyncio.LifoQueue()
            for core in self._cores:
                self._free[loop].put_nowait(core)
        free = self._free[loop]
        core = await free.get()
        try:
            yield self.taskset, "--cpu-list", str(core)
        finally:
            free.put_nowait(core)
