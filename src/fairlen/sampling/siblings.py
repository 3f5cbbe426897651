"""Coroutines of one fate: where one raises, the others are cancelled and awaited, and its own error is raised.

asyncio.gather leaves the others running; asyncio.TaskGroup, which ends them, raises a group in place of the error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

Result = TypeVar("Result")


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
    """Results of all coroutines, in their order; an error of one cancels and awaits the others."""
    async with siblings() as group:
        tasks = [group.create_task(work) for work in works]
    return [task.result() for task in tasks]
