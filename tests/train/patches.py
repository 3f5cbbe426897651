"""What is broken on purpose in a forked run: parts of a checkpoint forgotten, and errors of the system while one is written.

"forget:NAME" leaves a part out of what is restored. "raise:N", "kill:N" and "half:N" act at the Nth call of the system that
saving checkpoints makes, counted from 0, and "raise-from:N" at that one and all later ones. "slow:NAME" makes a run take its
time.
"""

import errno
import os
import random
import shutil
import signal
import time
from pathlib import Path

from fairlen.engine import Engine
from fairlen.methods.method import Method
from fairlen.train import loop, state
from fairlen.train.run import checkpoint
from fairlen.train.run.folder import Run
from fairlen.train.state import RunState
from fairlen.train.step import Learner


def apply(patch: str) -> None:
    """Breaks it, in this process; several joined by +."""
    for one in patch.split("+"):
        kind, _, what = one.partition(":")
        if kind == "forget":
            FORGETTING[what]()
        elif kind == "slow":
            {"down": slow_down, "disk": write_slowly}[what]()
        elif kind:
            Trap(kind, int(what)).set()


def forget_started(trainer) -> None:
    """The run takes the rollout batch for done."""
    if trainer.started is not None:
        trainer.end_batch()


def prolong(owner, name: str, seconds: float, message: str = "") -> None:
    """A function takes longer, and says that it is called."""
    whole = getattr(owner, name)

    def call(*arguments, **named):
        if message:
            print(message, flush=True)
        time.sleep(seconds)
        return whole(*arguments, **named)

    setattr(owner, name, call)


def slow_down() -> None:
    """Says what a run is doing and takes a while for it, so that a signal comes in the middle."""
    for name in ("collect", "learn", "evaluate"):
        prolong(loop.Trainer, name, 0.0, f"doing: {name}")
    prolong(Engine, "_step", 0.02)
    prolong(Learner, "accumulate", 0.2)


def write_slowly() -> None:
    """The second checkpoint takes for ever."""
    whole, count = checkpoint.sync, [0]

    def sync(path: Path) -> None:
        if path.name == "state.json":
            count[0] += 1
        if count[0] == 2:
            print("doing: save", flush=True)
            time.sleep(1000)
        whole(path)

    checkpoint.sync = sync


def after_restoring(change) -> None:
    whole = RunState.restore

    def restore(trainer, checkpoint) -> list[str]:
        lost = whole(trainer, checkpoint)
        change(trainer)
        return lost

    RunState.restore = restore


def nothing(*_: object) -> list[str]:
    return []


FORGETTING = {
    "weights": lambda: setattr(state, "restore_weights", nothing),
    "optimizer": lambda: setattr(state, "restore_moments", nothing),
    "streams": lambda: setattr(state, "restore_streams", nothing),
    "python stream": lambda: after_restoring(lambda _: random.seed(0)),
    "drift": lambda: setattr(Method, "with_state", lambda method, _: method),
    "position": lambda: after_restoring(lambda trainer: setattr(trainer.progress, "next_problem", 0)),
    "started batch": lambda: after_restoring(forget_started),
    "schedule": lambda: setattr(Learner, "restore_schedule", nothing),
    "logs": lambda: setattr(Run, "truncate_logs", nothing),
}


class Trap:
    """Counts the calls of the system within `save_checkpoint` and its clean-up, and breaks one."""

    def __init__(self, kind: str, place: int) -> None:
        self.kind, self.place, self.count, self.is_saving = kind, place, 0, False

    def set(self) -> None:
        whole = checkpoint.Archive.save

        def save(archive, *arguments) -> bool:
            self.is_saving = True
            try:
                return whole(archive, *arguments)
            finally:
                self.is_saving = False

        checkpoint.Archive.save = save
        checkpoint.save_file = self.guard(checkpoint.save_file, "save_file", path_at=1)
        checkpoint.pq.write_table = self.guard(checkpoint.pq.write_table, "write_table", path_at=1)
        for owner, name in (
            (os, "fsync"),
            (os, "rename"),
            (os, "open"),
            (Path, "mkdir"),
            (Path, "write_text"),
            (shutil, "rmtree"),
        ):
            setattr(owner, name, self.guard(getattr(owner, name), name))

    def guard(self, function, name: str, path_at: int = 0):
        def call(*arguments, **named):
            if not self.is_saving:
                return function(*arguments, **named)
            place, self.count = self.count, self.count + 1
            print(f"system call {place}: {name}", flush=True)
            if place == self.place or (self.kind == "raise-from" and place > self.place):
                self.spring(function, arguments, named, path_at)
            return function(*arguments, **named)

        return call

    def spring(self, function, arguments, named, path_at: int) -> None:
        """The disk is full, or the machine stops, before the call or with half of it done."""
        if self.kind.startswith("raise"):
            if function.__name__ == "rmtree":
                return  # no full disk hinders it
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.kind == "half":
            function(*arguments, **named)
            path = Path(str(arguments[path_at])) if len(arguments) > path_at else None
            if path is not None and path.is_file():
                os.truncate(path, path.stat().st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)
