"""How many programs run at a time, and each on one core: one with many spinning threads slows itself alone."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle, islice
from weakref import WeakKeyDictionary


class Places:
    """`slots` runs at a time in each event loop, spread over the cores that we may use; 0 is one for each core.

    Where the system cannot hold a process to a core (macOS, an image without taskset), runs are counted and no more.
    """

    def __init__(self, slots: int = 0) -> None:
        self.taskset = shutil.which("taskset") if hasattr(os, "sched_getaffinity") else None
        cores = sorted(os.sched_getaffinity(0)) if self.taskset else range(os.cpu_count() or 1)
        self._cores = list(islice(cycle(cores), slots or len(cores)))
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
            yield (self.taskset, "--cpu-list", str(core)) if self.taskset else ()
        finally:
            free.put_nowait(core)
