"""SIGTERM and Ctrl-C: the run ends at the next moment from which it can go on exactly, and writes a checkpoint there.

What is being collected, evaluated or learned is dropped and made again later. A second signal ends the process at once; so does
`PATIENCE` without such a moment, with the last checkpoint as it is.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from fairlen.hangs import TrainingStopped

Result = TypeVar("Result")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
PATIENCE = 8.0
"""Seconds from a signal to the next moment at which a run can stop; writing the checkpoint is not counted."""


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal and can go on."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number
        self.folder = "FOLDER"
        """Of the run, where there is one yet."""


class Interruption:
    """Whether a signal came, looked at between micro-batches, updates and steps of an engine; a context manager.

    Outside of it, and in other threads than the main one, signals do what they did before.
    """

    def __init__(self) -> None:
        self.number = 0
        """Of the signal that came; 0 before."""
        self.is_writing = False
        self.cancel: Callable[[], object] | None = None
        self.before: dict[int, Any] = {}
        self.timer: threading.Timer | None = None

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self.hear) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.relax()

    def hear(self, number: int, frame: FrameType | None = None) -> None:
        """Remembers the first signal; ends the process at the second."""
        if self.number:
            leave(number, "stopped at once")
        self.number = number
        tell(f"{signal.Signals(number).name}: stopping at the next update or sooner; once more stops at once")
        self.hurry()
        if self.cancel:
            self.cancel()

    def hurry(self) -> None:
        """Ends the process after a while from now, unless it has ended by itself."""
        self.relax()
        self.timer = threading.Timer(PATIENCE, self.give_up)
        self.timer.daemon = True
        self.timer.start()

    def relax(self) -> None:
        """Takes as long as it takes."""
        if self.timer:
            self.timer.cancel()
            self.timer = None

    def give_up(self) -> None:
        """Time is up."""
        if not self.is_writing:
            leave(self.number, f"no update ended within {PATIENCE:g} s: the last checkpoint stays as it is")

    def check(self) -> None:
        """Raises Interrupted where a signal came."""
        if self.number:
            raise Interrupted(self.number)

    async def during(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Awaits `work`. A signal cancels it and raises Interrupted."""
        task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
        self.cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        if self.number:
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            self.check()
            raise
        finally:
            self.cancel = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A checkpoint is written to its end, however long that takes."""
        self.is_writing = True
        try:
            yield
        finally:
            self.is_writing = False
            if self.number:
                self.hurry()


def leave(number: int, why: str) -> None:
    """Ends this process without clean-up; worker processes end with it."""
    tell(f"{signal.Signals(number).name}: {why}")
    os._exit(128 + number)


def tell(line: str) -> None:
    """Writes to stderr by the system's call alone: a signal may come in the middle of a print."""
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"\nfairlen: {line}\n".encode())


@contextmanager
def ending(folder: Path) -> Iterator[None]:
    """Settings were checked before: what is refused in here is a run that went wrong, and not a wrong command."""
    try:
        yield
    except ValueError as error:
        raise TrainingStopped(
            f"{error}; what was saved before is whole; the same command with --resume --out {folder} goes on"
        ) from error
    except Interrupted as stop:
        stop.folder = str(folder)
        raise
