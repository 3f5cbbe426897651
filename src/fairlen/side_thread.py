"""Calls that may never return: one after the other, in the order in which they were asked for, in a thread beside the event loop.

A thread cannot be killed. Past its deadline a call is given up: its thread is left behind, and a new one takes over what waits.
The thread that was left behind ends when its call does, and what it returns then goes nowhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from fairlen.stop import TrainingStopped

MAX_LEFT_BEHIND = 16
"""Threads that may go on without anybody waiting for them; each may keep a core busy."""


@dataclass(eq=False)
class Call:
    """One call, and where its result goes."""

    function: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    result: asyncio.Future[Any]
    started: float = 0.0
    """When its turn came; 0 before."""
    is_given_up: bool = False
    is_over: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Of the two above: a call is over, or given up, never both."""

    def run(self) -> bool:
        """In the thread; False where it was given up."""
        self.started = time.monotonic()
        value = error = None
        try:
            value = self.function()
        except BaseException as caught:  # whatever it is, it is the caller's, and not the end of the thread
            is_plain = isinstance(caught, Exception) and not isinstance(caught, StopIteration)
            error = caught if is_plain else RuntimeError(repr(caught))
        with self.lock:
            self.is_over = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self.loop.call_soon_threadsafe(self.settle, value, error)
        return not self.is_given_up

    def give_up(self) -> bool:
        """Nobody waits for it from now on; False where it is over."""
        with self.lock:
            self.is_given_up = not self.is_over
        return self.is_given_up

    def settle(self, value: Any, error: BaseException | None) -> None:
        """On the event loop; whoever waited may be gone."""
        if self.result.done():
            return
        if error is not None:
            self.result.set_exception(error)
        else:
            self.result.set_result(value)


class DeadlineError(Exception):
    """A call did not end in time."""


@dataclass(eq=False)
class SideThread:
    """Runs calls; starts with the first one."""

    name: str
    waiting: SimpleQueue[Call | None] = field(default_factory=SimpleQueue)
    threads: list[threading.Thread] = field(default_factory=list)
    """Those that still run; the last one takes calls."""

    async def call(self, function: Callable[[], Any], deadline: float) -> Any:
        """What `function()` returns or raises. Raises DeadlineError `deadline` seconds after its turn came."""
        loop = asyncio.get_running_loop()
        call = Call(function, loop, loop.create_future())
        if not self.threads:
            self.start_thread()
        self.waiting.put(call)
        wait = deadline
        try:
            while True:
                done, _ = await asyncio.wait((call.result,), timeout=wait)
                if done:
                    return call.result.result()
                left = call.started + deadline - time.monotonic() if call.started else deadline
                if left <= 0 and call.give_up():
                    self.replace_thread(deadline)
                    raise DeadlineError(f"no answer within {deadline:g} s")
                wait = max(left, 0.0)
        finally:
            call.result.cancel()  # nobody waits any more: where its turn has not come, it will not

    def replace_thread(self, deadline: float) -> None:
        """Leaves the last thread behind. Raises TrainingStopped where too many were."""
        self.threads = [thread for thread in self.threads if thread.is_alive()]
        if len(self.threads) > MAX_LEFT_BEHIND:
            raise TrainingStopped(
                f"{self.name}: {MAX_LEFT_BEHIND} calls were given up after {deadline:g} s each and still go on; threads cannot "
                "be killed, so the function itself has to end: give what it waits for a timeout"
            )
        self.start_thread()

    def start_thread(self) -> None:
        """One that takes calls from now on."""
        thread = threading.Thread(target=self.take_calls, name=f"fairlen-{self.name}", daemon=True)
        self.threads.append(thread)
        thread.start()

    def take_calls(self) -> None:
        """The thread: until it is told to end, or its call was given up."""
        while call := self.waiting.get():
            if not call.result.done() and not call.run():
                return

    def close(self) -> None:
        """Ends the thread after the call that it is at."""
        if self.threads:
            self.waiting.put(None)
