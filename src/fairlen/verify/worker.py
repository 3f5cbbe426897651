"""A worker process of the answer pool: how it starts, what it may use, and the one thing that it does.

Workers are forked from a process of their own, the fork server, where algebra is loaded already: one that was killed is replaced
in milliseconds. Neither ever imports the main program, as multiprocessing does on its own account: a script without an
`if __name__` guard would run again, and one that loads torch would fill every worker. They keep none of the parent's environment
but a few names, and end with the parent, killed or not.

Algebra is imported in functions alone, so that the parent never loads it.
"""

from __future__ import annotations

import ctypes
import io
import os
import resource
import signal
import sys
from multiprocessing import forkserver, popen_forkserver, reduction, util
from multiprocessing.context import ForkServerContext, ForkServerProcess, set_spawning_popen
from typing import Any

from fairlen.batch import Status

PR_SET_PDEATHSIG = 1


class Launch(popen_forkserver.Popen):
    """Start a worker as multiprocessing's fork server does, from a fork server of our own and without the main program."""

    server: forkserver.ForkServer
    _fds: list[int]

    def _launch(self, process_obj: Any) -> None:
        message = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump({"name": process_obj.name}, message)
            reduction.dump(process_obj, message)
        finally:
            set_spawning_popen(None)
        self.sentinel, writes = self.server.connect_to_new_process(self._fds)
        kept_open = os.dup(writes)
        close = util.close_fds  # pyright: ignore[reportAttributeAccessIssue]
        self.finalizer = util.Finalize(self, close, (kept_open, self.sentinel))
        with open(writes, "wb") as pipe:
            pipe.write(message.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


class WorkerContext(ForkServerContext):
    """The context that a pool makes its processes, pipes and locks with. Every context has a fork server, which `close` ends."""

    def __init__(self) -> None:
        super().__init__()
        self.server = server = forkserver.ForkServer()
        server.set_forkserver_preload(["fairlen.verify.forkserver"])
        launch = type("Launch", (Launch,), {"server": server})

        class WorkerProcess(ForkServerProcess):
            """A process that starts by `Launch`; a fork server's process once it is there."""

            @staticmethod
            def _Popen(process_obj: Any) -> Launch:
                return launch(process_obj)

            def __reduce__(self) -> Any:
                return rebuild, (self.__dict__,)

        self.Process = WorkerProcess  # pyright: ignore[reportAttributeAccessIssue]

    def close(self) -> None:
        """End the fork server; workers that are still there end with it."""
        self.server._stop()  # pyright: ignore[reportAttributeAccessIssue]


def rebuild(state: dict[str, Any]) -> ForkServerProcess:
    """The process as the worker knows it."""
    process = ForkServerProcess.__new__(ForkServerProcess)
    process.__dict__.update(state)
    return process


def prepare(memory: int) -> None:
    """Run first in a worker: it ends with its fork server, at once when asked to, and before it takes `memory` bytes more."""
    # Python gives every child the pipe that says to the fork server whether anybody is left; a busy worker would keep both alive.
    os.close(forkserver._forkserver._forkserver_alive_fd)  # pyright: ignore[reportAttributeAccessIssue]
    end_with_parent()
    # The pool's polite handler would wait for Python code to go on; algebra in C never lets it.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = address_space() + memory
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def end_with_parent() -> None:
    """The system kills this process when the thread that started it ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def address_space() -> int:
    """Bytes that the process has mapped; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def grade(golds: tuple[str, ...], answer: str, tolerance: float, unevaluated: bool = False) -> Status:
    """The verdict; whatever algebra raises, running out of stack or memory included, is an error and never an exception."""
    from fairlen.verify.equivalence import is_same

    try:
        return "correct" if is_same(golds, answer, tolerance, unevaluated) else "incorrect"
    except Exception:
        return "error"
