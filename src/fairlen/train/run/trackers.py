"""Metrics to services that draw them, beside metrics.jsonl, which stays the source of truth.

Each tracker has a thread and a queue of bounded length. Whatever it does, training goes on at its own pace: a failure or a
standstill is said once, and entries that find the queue full are left out and counted. Not here: the services themselves.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping
from queue import Full, Queue
from typing import Any, Protocol

from fairlen.console import warn
from fairlen.hangs import UNWATCHED, Watchdog

MAX_WAITING = 1000
"""Entries that a tracker may be behind."""
PATIENCE, HASTE = 30.0, 3.0
"""Seconds in which trackers may end when a run is done, and when it is broken off."""


class Tracker(Protocol):
    """An open service; used by one thread."""

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        """Takes the numbers of one entry of metrics.jsonl, by the same names; `update` is the x-axis and never falls."""
        ...

    def finish(self) -> None:
        """Sends what is left."""
        ...


Open = Callable[[int], Tracker]
"""Opens a service for entries from that update on, which is above 0 where a run is resumed."""


class Feed:
    """One tracker's thread and queue."""

    def __init__(self, name: str, open_tracker: Open, watchdog: Watchdog = UNWATCHED) -> None:
        self.name, self.open, self.watchdog = name, open_tracker, watchdog
        self.entries: Queue[tuple[dict[str, float], int]] = Queue(MAX_WAITING)
        self.num_lost = 0
        self.is_warned = self.is_closing = self.is_over = False
        self.arrived = threading.Event()
        self.thread = threading.Thread(target=self.run, name=f"fairlen-tracker-{name}", daemon=True)

    def put(self, numbers: dict[str, float], update: int) -> None:
        """Takes an entry, or leaves it out; at once in any case."""
        if not self.thread.ident:
            self.thread.start()
        try:
            if self.is_over:
                raise Full
            self.entries.put_nowait((numbers, update))
            self.arrived.set()
        except Full:
            self.num_lost += 1
            self.warn(f"it is {MAX_WAITING} entries behind or stands still; entries are left out")

    def run(self) -> None:
        """The thread: from the first entry to the end of the run."""
        tracker: Tracker | None = None
        while entry := self.next_entry():
            numbers, update = entry
            try:
                with self.watchdog.watch(f"tracker {self.name}"):
                    tracker = tracker or self.open(update)
                    tracker.log(numbers, update)
            except BaseException as error:  # whatever a service raises, SystemExit too, stays in this thread
                self.num_lost += 1
                self.warn(f"{type(error).__name__}: {error}")
                if tracker is None:
                    break
        self.is_over = True
        if tracker is not None:
            self.finish(tracker)

    def next_entry(self) -> tuple[dict[str, float], int] | None:
        """Waits for one; None at the end."""
        while self.entries.empty():
            if self.is_closing:
                return None
            self.arrived.wait()
            self.arrived.clear()
        return self.entries.get_nowait()

    def finish(self, tracker: Tracker) -> None:
        """The end of the service's own."""
        try:
            with self.watchdog.watch(f"tracker {self.name}: finish"):
                tracker.finish()
        except BaseException as error:
            self.warn(f"{type(error).__name__}: {error}")

    def warn(self, reason: str) -> None:
        """Once; what follows is counted."""
        if not self.is_warned:
            self.is_warned = True
            warn(f"tracker {self.name}: {reason}. Training goes on; metrics.jsonl has everything")

    def close(self) -> None:
        """Asks it to end after what it has."""
        self.is_closing = True
        self.arrived.set()

    def wait(self, seconds: float) -> None:
        """Until it has ended, or the time is up: then it is left behind."""
        if self.thread.ident:
            self.thread.join(max(seconds, 0.0))
        if self.thread.is_alive():
            self.warn(f"it did not end in time and is left behind with {self.entries.qsize()} entries")
        elif self.num_lost:
            warn(f"tracker {self.name}: {self.num_lost} entries did not get there; metrics.jsonl has them")


class Trackers:
    """All trackers of a run; a context manager. Nothing starts before the first entry."""

    def __init__(self, openers: Mapping[str, Open], watchdog: Watchdog = UNWATCHED) -> None:
        self.feeds = [Feed(name, open_tracker, watchdog) for name, open_tracker in openers.items()]

    def log(self, entry: Mapping[str, Any]) -> None:
        """Takes one object that was logged; numbers that are not finite, and text, stay in metrics.jsonl alone."""
        if not self.feeds:
            return
        numbers = {name: float(value) for name, value in entry.items() if is_number(value)}
        for feed in self.feeds:
            feed.put(numbers, int(entry["update"]))

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        end = time.monotonic() + (PATIENCE if kind is None else HASTE)
        for feed in self.feeds:
            feed.close()
        with contextlib.suppress(KeyboardInterrupt):
            for feed in self.feeds:
                feed.wait(end - time.monotonic())


def is_number(value: Any) -> bool:
    """Whether a service can draw it."""
    return isinstance(value, int | float) and math.isfinite(value)
