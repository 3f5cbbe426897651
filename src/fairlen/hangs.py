"""Calls that hang: a watchdog that reports them and ends nothing, and a thread whose call can be given up."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import inspect
import math
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from fairlen.console import first_of, warn
from fairlen.files.folders import write_file

T = TypeVar("T")
MIN_PAUSE, MAX_PAUSE = 0.05, 5.0  # seconds between two looks; there are 10 in the time after which a call is stalled
MAX_NAMED = 20  # calls in a report
MAX_LEFT_BEHIND = 16  # threads that go on after their calls were given up; each may keep a core busy


class TrainingStopped(RuntimeError):
    """A run cannot go on: why, and what to change. Saved files are whole; the exit code is 1."""


class DeadlineError(Exception):
    """A call did not end in time."""


@dataclass(eq=False)
class SideThread:
    """Calls that may never return: of coroutine functions on the event loop, of others beside it, one at a time in order.

    `call` raises DeadlineError `deadline` seconds after a call began, 0 is none: threads cannot be killed, so that it is left
    behind in its own, and its result is discarded. Raises TrainingStopped where too many were left behind.
    """

    name: str
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    left_behind: list[Thread] = field(default_factory=list)
    limit: int = field(default_factory=lambda: MAX_LEFT_BEHIND)

    async def call(self, function: Callable[[], Any], deadline: float) -> Any:
        found = function() if inspect.iscoroutinefunction(function) else await self.run(function, deadline or math.inf)
        return await wait_for(found, deadline) if inspect.isawaitable(found) else found

    async def run(self, function: Callable[[], Any], deadline: float) -> Any:
        async with self.turn:
            settled: Future[Any] = Future()
            thread = Thread(target=run_into, args=(settled, function), name=f"fairlen-{self.name}", daemon=True)
            thread.start()
            result = asyncio.wrap_future(settled)
            result.add_done_callback(lambda done: done.cancelled() or done.exception())  # an error of nobody's is heard
            try:
                await asyncio.wait((result,), timeout=deadline)
            finally:
                if not result.done():
                    result.cancel()  # a later result is discarded
                    self.left_behind[:] = [*(one for one in self.left_behind if one.is_alive()), thread]
            if not result.cancelled():
                return result.result()
        if len(self.left_behind) > self.limit:
            raise TrainingStopped(
                f"{self.name}: {self.limit} calls were given up after {deadline:g} s each and still go on; threads cannot "
                "be killed, so the function itself has to end: give what it waits for a timeout"
            )
        raise DeadlineError(f"no answer within {deadline:g} s")


async def wait_for(values: Awaitable[Any], deadline: float) -> Any:
    """Raises DeadlineError past the deadline (0 is none), even where the awaitable does not end when cancelled."""
    task = asyncio.ensure_future(as_errors(values))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # an error after the deadline is heard
    try:
        done, _ = await asyncio.wait((task,), timeout=deadline or None)
    finally:
        task.cancel()
    if not done:
        raise DeadlineError(f"no answer within {deadline:g} s")
    if isinstance(error := task.exception(), GeneratorExit):  # which `as_errors` has to let pass, where it is closed
        raise RuntimeError("GeneratorExit") from error
    return task.result()


async def as_errors(values: Awaitable[Any]) -> Any:
    """An error that would end the event loop, or look like an interruption of the run, becomes a RuntimeError."""
    try:
        return await values
    except (Exception, GeneratorExit):
        raise
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__} {error}".strip()) from error


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, but leave behind tasks that do not end when they are cancelled."""
    with asyncio.Runner() as runner:
        try:
            return runner.run(main)
        finally:
            runner.get_loop().run_until_complete(leave_behind())


async def leave_behind() -> None:
    """Cancel all other tasks, and do not wait for those that still go on after 2 seconds."""
    if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        for task in (await asyncio.wait(tasks, timeout=2.0))[1]:
            warn(f"{task.get_coro()}: it goes on though it was cancelled, and is left behind")
            asyncio._unregister_task(task)  # pyright: ignore[reportAttributeAccessIssue]  documented under Extending
            task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue]


def run_into(result: Future[Any], function: Callable[[], Any]) -> None:
    """Call a function and settle the result; an error that would end an event loop becomes a RuntimeError."""
    if not result.set_running_or_notify_cancel():
        return  # given up already
    try:
        result.set_result(function())
    except BaseException as error:  # raised in the caller
        is_plain = isinstance(error, Exception) and not isinstance(error, StopIteration | CancelledError)
        result.set_exception(error if is_plain else RuntimeError(repr(error)))


@dataclass(eq=False)
class Watch:
    """A call that has not returned."""

    what: str
    progress: Callable[[], object] | None
    since: float = field(default_factory=time.monotonic)
    moved: float = field(default_factory=time.monotonic)  # time of the last progress
    seen: object = None
    is_reported: bool = False

    def seconds_still(self, now: float) -> float:
        if self.progress is not None and (seen := self.progress()) != self.seen:
            self.seen, self.moved, self.is_reported = seen, now, False
        return now - self.moved


class Watchdog:
    """Watches calls in one thread; a stall is reported after `seconds`, 0 is never."""

    def __init__(self, seconds: float, folder: Path | None = None) -> None:
        self.seconds, self.folder, self.num_stalls = seconds, folder, 0
        self.watches: dict[int, Watch] = {}
        self.closed = threading.Event()
        self.thread: Thread | None = None

    @contextlib.contextmanager
    def watch(self, what: str, progress: Callable[[], object] | None = None) -> Iterator[None]:
        """`progress`, callable from any thread, changes while the call goes on; without it the whole call may take `seconds`."""
        if not self.seconds or self.closed.is_set():
            yield
            return
        watch = Watch(what, progress, seen=progress() if progress else None)
        self.watches[id(watch)] = watch
        if self.thread is None or not self.thread.is_alive():
            self.thread = Thread(target=self.keep_looking, name="fairlen-watchdog", daemon=True)
            self.thread.start()
        try:
            yield
        finally:
            del self.watches[id(watch)]
            if watch.is_reported:
                warn(f"{what} has ended after {time.monotonic() - watch.since:.0f} s; going on")

    def close(self) -> None:
        self.closed.set()
        if self.thread is not None:
            self.thread.join(timeout=1.0)

    def keep_looking(self) -> None:
        """Look until closed, and put off the interpreter's own report while this thread gets to run."""
        pause = min(max(self.seconds / 10, MIN_PAUSE), MAX_PAUSE)
        while not self.closed.is_set():
            put_off_dump(self.seconds + 2 * pause if self.watches else 0.0)
            self.closed.wait(pause)
            self.look()
        put_off_dump(0.0)

    def look(self) -> None:
        """Report new stalls to stderr and, where there is a folder, to a file."""
        now = time.monotonic()
        stalled = [w for w in list(self.watches.values()) if w.seconds_still(now) >= self.seconds and not w.is_reported]
        if not stalled:
            return
        for watch in stalled:
            watch.is_reported = True
        self.num_stalls += 1
        text = describe_stall(stalled, now)
        if self.folder is not None:
            path = self.folder / f"stall-{self.num_stalls:03d}.txt"
            with contextlib.suppress(OSError):
                write_file(path, text)
                text += f"(also in {path})\n"
        warn(text)


UNWATCHED = Watchdog(0.0)


def describe_stall(stalled: list[Watch], now: float) -> str:
    waiting = [f"{w.what} (nothing for {now - w.moved:.0f} s)" for w in stalled]
    lines = [f"nothing happens; still waiting for {'; '.join(first_of(waiting, MAX_NAMED))}"]
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        lines += [f"thread {names.get(ident, '?')}:", *(line.rstrip() for line in traceback.format_stack(frame))]
    return "\n".join([*lines, ""])


def put_off_dump(seconds: float) -> None:
    """Have the interpreter write all stacks to stderr after `seconds`, unless this is called again; 0 calls it off."""
    faulthandler.cancel_dump_traceback_later()
    if seconds:
        with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):  # a stderr that is no file
            faulthandler.dump_traceback_later(seconds, file=sys.__stderr__)  # pyright: ignore[reportArgumentType]
