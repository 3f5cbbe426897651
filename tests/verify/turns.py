"""How long the event loop is away from everything else: on which generation and training wait."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def longest_pause(work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """What a coroutine gives, and the longest that the loop computed before it came to anything else, in CPU time."""
    done, last, longest = asyncio.ensure_future(work), time.thread_time(), 0.0
    while not done.done():
        await asyncio.sleep(0.001)
        now = time.thread_time()
        last, longest = now, max(longest, now - last)
    return done.result(), longest
