"""Metrics and alerts to wandb, trackio and TensorBoard, beside metrics.jsonl, which stays the source of truth.

Each has a thread and a bounded queue, so that training never waits for it; entries left out are counted. A service gets the
settings and the method, and no secrets: no environment, no command line, no key in a URL.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

from fairlen.console import warn
from fairlen.hangs import UNWATCHED, Watchdog
from fairlen.loop.learning_signal import NOTE
from fairlen.train.run.folder import Run

PROJECT = "fairlen"
MAX_WAITING = 1000
"""Entries that a tracker may be behind."""
PATIENCE, HASTE = 30.0, 3.0
"""Seconds in which trackers may end when a run is done, and when it is broken off."""

Open = Callable[[int], Any]
"""Opens a service for entries from that update on, which is above 0 where a run is resumed. The service has
`log(numbers, update)`, where the entries of one update are one step, `alert(title, text, level)` with the level "WARN" or "INFO",
and `finish()`; one thread uses it."""


class Feed(threading.Thread):
    def __init__(self, service: str, open_tracker: Open, watchdog: Watchdog) -> None:
        super().__init__(name=f"fairlen-tracker-{service}", daemon=True)
        self.service, self.open, self.watchdog = service, open_tracker, watchdog
        self.entries: SimpleQueue[tuple[dict[str, float] | str, int] | None] = SimpleQueue()
        self.num_lost, self.is_warned = 0, False

    def put(self, entry: dict[str, float] | str, update: int) -> None:
        """Take numbers, or the sentence of an alert, or leave them out; at once in any case."""
        if self.is_alive() and self.entries.qsize() < MAX_WAITING:
            return self.entries.put((entry, update))
        self.num_lost += 1
        self.warn(f"it is {MAX_WAITING} entries behind or stands still; entries are left out")

    def run(self) -> None:
        """Open the service at the first entry, and send it all up to None, which is the end."""
        tracker: Any = None
        entry = self.entries.get()
        while entry or tracker is not None:
            try:
                with self.watchdog.watch(f"tracker {self.service}{'' if entry else ': finish'}"):
                    if entry is None:
                        return tracker.finish()
                    tracker = tracker or self.open(entry[1])
                    send(tracker, *entry)
            except BaseException as error:  # whatever a service raises, SystemExit too, stays in this thread
                self.num_lost += entry is not None
                self.warn(f"{type(error).__name__}: {error}")
                if entry is None or tracker is None:
                    return
            entry = self.entries.get()

    def warn(self, reason: str) -> None:
        """Warn once; later losses are counted."""
        if not self.is_warned:
            self.is_warned = True
            warn(f"tracker {self.service}: {reason}. Training goes on; metrics.jsonl has everything")

    @property
    def num_waiting(self) -> int:
        """Entries in the queue, without the None behind them, which is gone where the service is finishing."""
        return max(self.entries.qsize() - 1, 0)

    def wait(self, end: float) -> None:
        """Wait until it has ended, or leave it behind at `end`."""
        self.join(max(end - time.monotonic(), 0.0))
        if self.is_alive():
            self.warn(f"it did not end in time and is left behind with {self.num_waiting} entries")
        elif self.num_lost:
            warn(f"tracker {self.service}: {self.num_lost} entries did not get there; metrics.jsonl has them")


class Trackers:
    def __init__(self, openers: Mapping[str, Open], watchdog: Watchdog = UNWATCHED) -> None:
        self.feeds = [Feed(service, open_tracker, watchdog) for service, open_tracker in openers.items()]

    def log(self, entry: Mapping[str, Any]) -> None:
        """Take one logged object; numbers that are not finite, and text, stay in metrics.jsonl alone."""
        numbers = {k: float(v) for k, v in entry.items() if isinstance(v, int | float) and math.isfinite(v)}
        for feed in self.feeds:
            feed.put(numbers.copy(), int(entry["update"]))

    def alert(self, text: str, update: int) -> None:
        for feed in self.feeds:
            feed.put(text, update)

    def __enter__(self) -> Trackers:
        for feed in self.feeds:
            feed.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        end = time.monotonic() + (PATIENCE if kind is None else HASTE)
        for feed in self.feeds:
            feed.entries.put(None)
        with contextlib.suppress(KeyboardInterrupt):
            for feed in self.feeds:
                feed.wait(end)


def send(tracker: Any, entry: dict[str, float] | str, update: int) -> None:
    """Give a service an entry; of an alert the first clause is the title, of which wandb takes 63 letters."""
    if isinstance(entry, dict):
        tracker.log(entry, update)
    else:
        text = entry.removeprefix(NOTE)
        tracker.alert(re.split(r" \(|[,:;] ", text)[0][:63], text, "INFO" if entry.startswith(NOTE) else "WARN")


def open_wandb(run: Run, update: int) -> Any:
    """Start or resume a run of Weights & Biases; WANDB_MODE=offline keeps everything in RUN/wandb."""
    import wandb

    quiet: dict[str, Any] = dict(silent=True, console="off", save_code=False, disable_git=True)
    found = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=run.folder.name,
        id=run.name,
        resume="allow",
        dir=str(run.folder),
        config=describe(run),
        settings=wandb.Settings(**quiet, x_disable_meta=True, x_disable_machine_info=True, login_timeout=30),
    )
    warn(f"tracker wandb: {run.folder / 'wandb' if found.offline else found.url}")
    return found


def open_trackio(run: Run, update: int) -> Any:
    """Start or resume a run of trackio, in its own folder (TRACKIO_DIR) or where it is set up to send."""
    import trackio  # pyright: ignore[reportMissingImports]

    found = trackio.init(
        project=os.environ.get("TRACKIO_PROJECT", PROJECT), name=run.name, resume="allow", config=describe(run),
        embed=False, auto_log_gpu=False, auto_log_cpu=False,
    )  # fmt: skip
    levels = trackio.AlertLevel
    return SimpleNamespace(
        log=found.log, finish=found.finish, alert=lambda title, text, level: found.alert(title, text, levels[level])
    )


def open_tensorboard(run: Run, update: int) -> Any:
    """Open TensorBoard's files in RUN/tensorboard, where an earlier run's entries from `update` on are no longer shown."""
    from torch.utils.tensorboard.writer import SummaryWriter

    writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=update or None)
    writer.add_text("settings", f"```json\n{json.dumps(describe(run), indent=1)}\n```", update)

    def log(numbers: Mapping[str, float], update: int) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, update)

    def alert(title: str, text: str, level: str) -> None:
        writer.add_text(f"alerts/{level}/{title}", text)

    return SimpleNamespace(log=log, alert=alert, finish=writer.close)


def choose_trackers(names: Sequence[str], run: Run) -> dict[str, Open]:
    services = {"wandb": open_wandb, "trackio": open_trackio, "tensorboard": open_tensorboard}
    return {name: partial(services[name], run) for name in names}


def check_trackers(names: Sequence[str]) -> None:
    """Raise ValueError for a tracker whose package is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise ValueError(f"tracker={name}: it needs the package {name}: pip install '.[trackers]' in the checkout")


def describe(run: Run) -> dict[str, Any]:
    """Settings, method and versions: all that a service may know."""
    found = json.loads(json.dumps(run.describe()))
    return {name: found[name] for name in ("config", "method", "layout", "versions")}
