"""Says what a run waits for when nothing happens for too long: every thread's stack, every coroutine, every call that is out.

    with watchdog.watch("verifier: problem 17"):
        verdict = await task.verify(problem, text)

It ends nothing: a call that may take too long has a deadline of its own. A report goes to stderr and to RUN/debug/stall-*.txt,
once for each time that things stand still. Where even the thread that watches cannot run, because a library holds Python's
lock, the stacks alone go to stderr a little later.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlen.console import log
from fairlen.files.folders import write_file

MAX_LOOKS, LEAST_LOOKS = 5.0, 0.05
"""Seconds between two looks at what is out."""
LOOKS = 10
"""In the time after which something stands still."""
MAX_NAMED = 20
"""Calls and coroutines of one kind that a report lists."""


def say(text: str, who: str = "fairlen: ") -> None:
    """A line for whoever runs the program; a stderr that cannot be written to is no reason to stop."""
    with contextlib.suppress(OSError, ValueError):
        log(f"{who}{text}", sys.stderr)


@dataclass(eq=False)
class Watch:
    """A call that is out."""

    what: str
    progress: Callable[[], object] | None
    loop: asyncio.AbstractEventLoop | None
    since: float = field(default_factory=time.monotonic)
    moved: float = field(default_factory=time.monotonic)
    """When its progress last changed."""
    seen: object = None
    is_reported: bool = False

    def stands(self, now: float) -> float:
        """Seconds in which nothing has happened."""
        if self.progress is not None and (seen := self.progress()) != self.seen:
            self.seen, self.moved, self.is_reported = seen, now, False
        return now - self.moved


class Watchdog:
    """Watches calls; one thread, which runs while something is watched. `seconds` is when a stall is reported, 0 is never."""

    def __init__(self, seconds: float, folder: Path | None = None) -> None:
        self.seconds, self.folder = seconds, folder
        self.num_stalls = 0
        self.watches: dict[int, Watch] = {}
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None
        self.is_closed = False

    @contextlib.contextmanager
    def watch(self, what: str, progress: Callable[[], object] | None = None) -> Iterator[None]:
        """Within, `what` is out. `progress` gives something that changes while things go on, from any thread; without it
        the call as a whole may take `seconds`.
        """
        if not self.seconds or self.is_closed:
            yield
            return
        watch = Watch(what, progress, find_loop(), seen=progress() if progress else None)
        self.begin(watch)
        try:
            yield
        finally:
            del self.watches[id(watch)]
            if watch.is_reported:
                say(f"{what} has ended after {time.monotonic() - watch.since:.0f} s; going on")

    def begin(self, watch: Watch) -> None:
        """Looks after one more call."""
        self.watches[id(watch)] = watch
        if self.thread is None or not self.thread.is_alive():
            self.thread = threading.Thread(target=self.look_again_and_again, name="fairlen-watchdog", daemon=True)
            self.thread.start()

    def close(self) -> None:
        """Ends the thread."""
        with self.changed:
            self.is_closed = True
            self.changed.notify()
        if self.thread is not None:
            self.thread.join(timeout=1.0)
        self.thread = None

    def look_again_and_again(self) -> None:
        """The thread: until it is closed. While it gets to run, it puts off the report of the interpreter itself."""
        pause = min(max(self.seconds / LOOKS, LEAST_LOOKS), MAX_LOOKS)
        with self.changed:
            while not self.is_closed:
                put_off(self.seconds + 2 * pause if self.watches else 0.0)
                self.changed.wait(pause)
                self.look()
        put_off(0.0)

    def look(self) -> None:
        """One look: reports what has come to stand still since the last one."""
        now, stalled = time.monotonic(), []
        for watch in list(self.watches.values()):
            if watch.stands(now) >= self.seconds and not watch.is_reported:
                watch.is_reported = True
                stalled.append(watch)
        if stalled:
            self.num_stalls += 1
            self.report(stalled, now)

    def report(self, stalled: list[Watch], now: float) -> None:
        """To stderr and, where there is a folder, to a file."""
        text = self.describe(stalled, now)
        if self.folder is not None:
            path = self.folder / f"stall-{self.num_stalls:03d}.txt"
            with contextlib.suppress(OSError):
                write_file(path, text)
                text += f"(also in {path})\n"
        say(text)

    def describe(self, stalled: list[Watch], now: float) -> str:
        """What waits, and where."""
        waiting = [f"{w.what} (nothing for {now - w.moved:.0f} s)" for w in stalled[:MAX_NAMED]]
        others = [f"{w.what} ({now - w.since:.0f} s)" for w in list(self.watches.values()) if w not in stalled]
        lines = [f"nothing happens; still waiting for {'; '.join(waiting)}{and_more(stalled)}"]
        if others:
            lines.append(f"also out: {'; '.join(others[:MAX_NAMED])}{and_more(others)}")
        for loop in {w.loop for w in stalled if w.loop is not None}:
            lines += describe_tasks(loop)
        return "\n".join([*lines, *describe_threads()]) + "\n"


UNWATCHED = Watchdog(0.0)
"""Watches nothing."""


def find_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of whoever calls."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def and_more(items: list[Any]) -> str:
    """How many were not named."""
    return f"; and {len(items) - MAX_NAMED} more" if len(items) > MAX_NAMED else ""


def describe_threads() -> list[str]:
    """The stack of every thread of Python's."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = []
    for ident, frame in sys._current_frames().items():
        lines.append(f"thread {names.get(ident, '?')}:")
        lines += [line.rstrip() for line in traceback.format_stack(frame)]
    return lines


def describe_tasks(loop: asyncio.AbstractEventLoop) -> list[str]:
    """Where the coroutines of a loop wait, those that wait in the same place counted together."""
    try:
        tasks = asyncio.all_tasks(loop)
    except RuntimeError:  # they changed while they were looked at, again and again: something goes on
        return []
    places = Counter(" > ".join(find_places(task.get_coro())) for task in tasks)
    lines = [f"{count} x {place}" for place, count in places.most_common(MAX_NAMED)]
    return [f"coroutines, {sum(places.values())}:", *lines]


def find_places(coroutine: Any) -> Iterator[str]:
    """ "file:line function" of a coroutine and of what it awaits, innermost last."""
    while frame := getattr(coroutine, "cr_frame", None):
        yield f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
        coroutine = coroutine.cr_await


def put_off(seconds: float) -> None:
    """The interpreter itself writes all stacks to stderr when this is not called again in time; 0 calls it off."""
    faulthandler.cancel_dump_traceback_later()
    if seconds:
        with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):  # a stderr that is no file
            faulthandler.dump_traceback_later(seconds, file=sys.__stderr__)  # pyright: ignore[reportArgumentType]
