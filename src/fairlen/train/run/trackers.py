"""Metrics to wandb, trackio and TensorBoard, beside metrics.jsonl, which stays the source of truth.

Each tracker has a thread and a queue of bounded length. Whatever it does, training goes on at its own pace: a failure or a
standstill is one warning, and entries that find the queue full are left out and counted.

A service is imported when it is opened, in its tracker's thread. It gets the settings and the method, and no secrets: no
environment, no command line, no key in a URL. The name of a run within it is kept in
RUN/trackers.json, so that a resumed run has it again.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from queue import Full, Queue
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from fairlen.console import warn
from fairlen.files.folders import write_file
from fairlen.hangs import UNWATCHED, Watchdog
from fairlen.train.run.folder import Run

PROJECT = "fairlen"
"""Unless WANDB_PROJECT or TRACKIO_PROJECT says otherwise."""
MAX_WAITING = 1000
"""Entries that a tracker may be behind."""
PATIENCE, HASTE = 30.0, 3.0
"""Seconds in which trackers may end when a run is done, and when it is broken off."""


class Tracker(Protocol):
    """An open service; used by one thread."""

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        """Take the numbers of one entry of metrics.jsonl, by the same names; `update` is the x-axis and never falls."""
        ...

    def finish(self) -> None:
        """Send what is left."""
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
        """Take an entry, or leave it out; at once in any case."""
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
        """Send entries from the first to the end of the run; in the thread."""
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
        """Wait for one; None at the end."""
        while self.entries.empty():
            if self.is_closing:
                return None
            self.arrived.wait()
            self.arrived.clear()
        return self.entries.get_nowait()

    def finish(self, tracker: Tracker) -> None:
        """Let the service end."""
        try:
            with self.watchdog.watch(f"tracker {self.name}: finish"):
                tracker.finish()
        except BaseException as error:
            self.warn(f"{type(error).__name__}: {error}")

    def warn(self, reason: str) -> None:
        """Warn once; what follows is counted."""
        if not self.is_warned:
            self.is_warned = True
            warn(f"tracker {self.name}: {reason}. Training goes on; metrics.jsonl has everything")

    def close(self) -> None:
        """Let it end after what it has."""
        self.is_closing = True
        self.arrived.set()

    def wait(self, seconds: float) -> None:
        """Wait until it has ended, or the time is up: then it is left behind."""
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
        """Take one object that was logged; numbers that are not finite, and text, stay in metrics.jsonl alone."""
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


@dataclass(frozen=True)
class ServiceTracker:
    """A run of a service that takes all numbers of an update at once."""

    run: Any

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        """Entries of one update become one step; steps that a resumed run makes again are there already."""
        self.run.log(dict(numbers), step=update)

    def finish(self) -> None:
        self.run.finish()


def open_wandb(run: Run, name: str) -> ServiceTracker:
    """Start or resume a run of Weights & Biases; WANDB_MODE=offline keeps everything in RUN/wandb."""
    import wandb

    quiet: dict[str, Any] = dict(silent=True, console="off", save_code=False, disable_git=True)
    found = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=run.folder.name,
        id=name,
        resume="allow",
        dir=str(run.folder),
        config=describe(run),
        settings=wandb.Settings(**quiet, x_disable_meta=True, x_disable_machine_info=True, login_timeout=30),
    )
    warn(f"tracker wandb: {run.folder / 'wandb' if found.offline else found.url}")
    return ServiceTracker(found)


def open_trackio(run: Run, name: str) -> ServiceTracker:
    """Start or resume a run of trackio, in its own folder (TRACKIO_DIR) or where it is set up to send."""
    import trackio  # pyright: ignore[reportMissingImports]

    found = trackio.init(
        project=os.environ.get("TRACKIO_PROJECT", PROJECT),
        name=name,
        resume="allow",
        config=describe(run),
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    return ServiceTracker(found)


@dataclass(frozen=True)
class TensorBoardTracker:
    """TensorBoard's files in RUN/tensorboard."""

    writer: Any

    @classmethod
    def open(cls, run: Run, update: int) -> TensorBoardTracker:
        """Start a file; what an earlier one has from `update` on is not shown any more."""
        from torch.utils.tensorboard.writer import SummaryWriter

        writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=update or None)
        writer.add_text("settings", f"```json\n{json.dumps(describe(run), indent=1)}\n```", update)
        return cls(writer)

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, update)

    def finish(self) -> None:
        self.writer.close()


SERVICES = {"wandb": open_wandb, "trackio": open_trackio}


def choose_trackers(names: Sequence[str], run: Run) -> dict[str, Open]:
    """Return how the trackers that were asked for are opened."""
    names_there = name_runs(run, [service for service in names if service in SERVICES])

    def open_tracker(service: str, update: int) -> Tracker:
        if service in SERVICES:
            return SERVICES[service](run, names_there[service])
        return TensorBoardTracker.open(run, update)

    return {service: partial(open_tracker, service) for service in names}


def check_trackers(names: Sequence[str]) -> None:
    """Raise ValueError for one whose package is not there."""
    for name in names:
        if find_spec(name) is None:
            raise ValueError(f"tracker={name}: it needs the package {name}: pip install 'fairlen[trackers]'")


def describe(run: Run) -> dict[str, Any]:
    """Return settings, method and versions: what a service may know."""
    found = json.loads(json.dumps(run.describe()))
    settings = found["config"] | {"sandbox": without_secrets(found["config"]["sandbox"])}
    return {"config": settings} | {name: found[name] for name in ("method", "layout", "versions")}


def without_secrets(url: str) -> str:
    """Return a URL without user, password, query and fragment; other text as it is."""
    parts = urlsplit(url)
    if not parts.scheme or not parts.hostname:
        return url
    port = f":{parts.port}" if parts.port else ""
    return urlunsplit((parts.scheme, f"{parts.hostname}{port}", parts.path, "", ""))


def name_runs(run: Run, services: Sequence[str]) -> dict[str, str]:
    """Return the name of this run within each service: that of before, or a new one, which is remembered."""
    path = run.folder / "trackers.json"
    try:
        before = json.loads(path.read_text())
    except (OSError, ValueError):
        before = {}
    names = {service: before.get(service) or f"{run.folder.name[:80]}-{secrets.token_hex(4)}" for service in services}
    if any(service not in before for service in services):
        try:
            write_file(path, json.dumps(before | names, indent=1) + "\n")
        except OSError as error:
            warn(f"{path}: {error}; when the run is resumed it will have another name in {', '.join(services)}")
    return names
