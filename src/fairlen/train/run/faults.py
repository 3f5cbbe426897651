"""Skipped updates and ends of a run: numbers that are not finite, SIGTERM, SIGHUP and Ctrl-C, settings refused too late."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from fairlen.console import warn
from fairlen.files.folders import going_on_in, write_file
from fairlen.hangs import TrainingStopped
from fairlen.loop.update import LOOK_AT, NonFiniteError, Skips
from fairlen.policy.model import are_finite
from fairlen.rollouts import Response, Rollouts

Result = TypeVar("Result")


@dataclass
class Guard(Skips):
    """Skips updates that are not finite, and dumps their responses."""

    folder: Path = field(kw_only=True)

    def allows(self, quantity: str, update: int, responses: Iterable[Response], cause: str = "") -> bool:
        """True without a quantity; else dump, count and warn. NonFiniteError at the third in a row, or for damaged weights."""
        if not quantity:
            return True
        path = self.dump(quantity, update, responses)
        place = f". It came after update {update}; the responses are in {path}; nothing non-finite was saved"
        self.add(quantity, (cause or LOOK_AT[quantity]) + place)
        warn(f"update skipped: {self.cause}")
        return False

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """End the run where a model's numbers are not finite: an evaluation cannot be skipped."""
        try:
            yield
        except FloatingPointError as error:
            raise NonFiniteError(
                f"held-out evaluation: {error}; the weights may be damaged, or the learning rate too high: go on from the last "
                "checkpoint with --resume, if there is one. Nothing non-finite was saved"
            ) from error

    def dump(self, quantity: str, update: int, responses: Iterable[Response]) -> Path:
        """Write the responses as JSON lines, numbers that are not finite as text; a full disk is a warning."""
        path = self.folder / f"update-{update:06d}-{quantity}-{self.num_skipped + 1}.jsonl"
        rows = json.dumps([*map(asdict, responses)], default=lambda ids: np.frombuffer(ids, np.int32).tolist())
        lines = (json.dumps(row) for row in json.loads(rows, parse_constant=str))
        try:
            write_file(path, "".join(f"{line}\n" for line in lines).encode())
        except OSError as error:
            warn(f"{path}: {error}; the responses of a skipped update could not be written")
        return path


def require_finite(parts: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Raise NonFiniteError for a tensor that is about to be saved and is not finite."""
    for part, tensors in parts.items():
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not are_finite((tensor,)):
                raise NonFiniteError(
                    f"{part} {name} is not finite and was not saved: lower the learning rate, and go on from the last "
                    "checkpoint with --resume"
                )


def find_non_finite(rollouts: Rollouts) -> str:
    """The quantity of a rollout batch that is not finite, or ""."""
    if any(r.active and not math.isfinite(r.outcome) for r in rollouts.responses):
        return "outcome"
    if not all(np.isfinite(r.logprobs).all() for r in rollouts.responses):
        return "rollout_logprobs"
    return ""


class Interrupted(KeyboardInterrupt):
    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class Interruption:
    """A context manager that notes signals in the main thread, for checks between micro-batches, updates and steps.

    SIGINT (Ctrl-C), SIGTERM and SIGHUP (the terminal was closed) stop the run after a checkpoint. A second SIGINT or SIGTERM
    ends the process at once. SIGHUP never does: the kernel and the shell both send one when a terminal closes. It stays ignored
    if it was before, as under nohup.
    """

    def __init__(self) -> None:
        self.number = 0
        """Of the signal that came; 0 before."""
        self.cancel: Callable[[], object] | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            numbers = [signal.SIGTERM, signal.SIGINT]
            if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
                numbers.append(signal.SIGHUP)
            self.before = {number: signal.signal(number, self.receive) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def receive(self, number: int, frame: FrameType | None = None) -> None:
        """Remember the first signal; end the process at the second, unless one of the two is SIGHUP."""
        if number == signal.SIGHUP:
            drop_closed_terminal()
            if self.number:
                return
        elif self.number not in (0, signal.SIGHUP):
            write_message(f"{signal.Signals(number).name}: stopped at once")
            os._exit(128 + number)  # without clean-up; worker processes end with this one
        self.number = number
        again = "" if number == signal.SIGHUP else "; once more stops at once"
        write_message(f"{signal.Signals(number).name}: stopping at the next update or sooner{again}")
        if self.cancel:
            self.cancel()

    def check(self) -> None:
        if self.number:
            raise Interrupted(self.number)

    async def during(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await `work`. A signal cancels it and raises Interrupted."""
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


def drop_closed_terminal() -> None:
    """Let stdout and stderr lead to /dev/null if they are a terminal that was closed: each write to it would be an error."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


def write_message(line: str) -> None:
    """Write to stderr by the system call alone: a signal may come in the middle of a print."""
    with suppress(OSError, ValueError):  # whoever read it may have ended by the same signal
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"\nfairlen: {line}\n".encode())


@contextmanager
def ending(folder: Path) -> Iterator[None]:
    """Raise TrainingStopped for a ValueError: settings were checked before. An interruption names the folder."""
    try:
        with going_on_in(folder):
            yield
    except ValueError as error:
        raise TrainingStopped(
            f"{error}; what was saved before is whole; the same command with --resume --out {folder} goes on"
        ) from error
