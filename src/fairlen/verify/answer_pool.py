"""Verdicts on mathematical answers, each within a deadline.

Text and exact numbers settle easy answers in this process; others go to worker processes that are killed at the deadline, since
algebra in C neither gives up the interpreter nor hears signals. A deadline starts with a worker, so that no answer times out in a
queue. Workers never import the main program, get a few names of our environment alone, and end with us, killed or not.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, cast
from weakref import ref

from fairlen.channels import after_thinking
from fairlen.checks import POSITIVE, check
from fairlen.rollouts import Status, Verdict
from fairlen.verify.answer import FORMS, MAX_TEXT, PATTERN, choose, match_exactly
from fairlen.verify.process import PATIENCE, read_cpu_seconds
from fairlen.verify.typesetting import MAX_LENGTH

MAX_START = 120.0
MAX_END = 10.0
MAX_TRIES = 3  # a worker may have died since its last question, and the server with it
PATTERN_MEMORY = 256  # MiB of a worker that searches a pattern
MAX_QUICK = 1_000  # characters of an answer and its reference; longer ones are read in a worker
KEPT = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TMPDIR")  # environment variables that workers are given


class Worker:
    """A process that answers one question at a time. Raises OSError or ValueError where none starts."""

    def __init__(self, server: socket.socket) -> None:
        self.socket, other = socket.socketpair()
        with other:
            socket.send_fds(server, [b"+"], [other.fileno()])
        self.socket.settimeout(MAX_START)
        self.lines = self.socket.makefile()
        self.pid = int(self.lines.readline())

    def answer(self, question: str, deadline: float) -> str:
        """The status; empty where the process ended over the question. Raises OSError where it had ended before.

        The deadline is in seconds of its CPU time, so that a busy machine decides nothing.
        """
        end, used, left = time.monotonic() + PATIENCE * deadline, read_cpu_seconds(self.pid), deadline
        self.socket.sendall(question.encode() + b"\n")
        while not self.is_heard(max(left, 0.02)):
            left = deadline + used - read_cpu_seconds(self.pid)
            if left <= 0 or time.monotonic() > end:
                return "timeout"
        return self.lines.readline().strip()

    def is_heard(self, seconds: float) -> bool:
        """Whether a status or the end of the process comes within `seconds`. Safe to call from any thread."""
        heard = select.poll()
        heard.register(self.socket, select.POLLIN)
        return bool(heard.poll(1000 * seconds))

    def end(self) -> None:
        """Kill the process, unless it is gone and its id may be another's. Safe to call from any thread."""
        with suppress(OSError):
            if not self.is_heard(0.0):  # after a status it waits for us
                os.kill(self.pid, signal.SIGKILL)
            self.socket.shutdown(socket.SHUT_RDWR)


class WorkerPool:
    """Worker processes that answer questions, a thread for each, and the server that they are forked from.

    They start on demand and end with this process at the latest; a process that is forked from it starts its own.
    """

    def __init__(self, workers: int, deadline: float, memory_mib: int, module: str) -> None:
        """`workers`: processes at most. `deadline`: seconds for each question. `memory_mib`: what a worker may take beyond the
        80 MiB that it shares with the others. `module` has `grade` and `warm_up`."""
        self.workers, self.deadline, self.memory_mib, self.module = workers, deadline, memory_mib, module
        check(POSITIVE, self, "workers", "deadline", "memory_mib")
        self._renew()
        own = ref(self)  # closed at exit before threads are joined, which would wait for every deadline
        threading._register_atexit(lambda: (pool := own()) and pool.close())  # type: ignore[attr-defined]

    async def ask(self, **question: Any) -> str:
        """Return the reply of a worker, from any event loop, as `answer` does."""
        if self.pid != os.getpid():  # threads and workers are not inherited by a fork
            self._renew()
        try:
            reply = self.threads.submit(self.answer, json.dumps(question))
        except RuntimeError:  # at a limit of processes no thread starts
            return "error"
        return await asyncio.wrap_future(reply)

    def answer(self, question: str) -> str:
        """Return a worker's reply; timeout or error without one. Each thread has a worker."""
        thread = threading.get_ident()
        for _ in range(MAX_TRIES):
            reply = ""
            try:
                worker = self.by_thread.get(thread) or self._start_worker(thread)
                reply = worker.answer(question, self.deadline)
            except (OSError, ValueError):
                continue
            finally:
                if reply in ("", "timeout") and thread in self.by_thread:
                    self.by_thread.pop(thread).end()
            return reply or "error"
        return "error"

    def close(self) -> None:
        """End every process; pending and later questions end as errors."""
        if self.pid != os.getpid():
            return  # they belong to the process that this one was forked from
        with self.lock:
            self.is_closed = True
            self._end_server()
        self.threads.shutdown()

    def _renew(self) -> None:
        self.pid, self.is_closed = os.getpid(), False
        self.threads = ThreadPoolExecutor(self.workers, "fairlen-answers")
        self.lock = threading.Lock()
        self.server: tuple[socket.socket, subprocess.Popen[bytes]] | None = None
        self.by_thread: dict[int, Worker] = {}

    def _start_worker(self, thread: int) -> Worker:
        with self.lock:
            if self.is_closed:
                raise OSError("the pool is closed")
            try:
                self.server = self.server or start_server(self.memory_mib << 20, self.module)
                self.by_thread[thread] = Worker(self.server[0])
            except OSError:  # and not where a worker ended before it was there, as at a limit of processes
                self._end_server()
                raise
            return self.by_thread[thread]

    def _end_server(self) -> None:
        for worker in [*self.by_thread.values()]:
            worker.end()  # first, so that the server reaps them and has none to wait for
        if self.server is not None:
            (asking, process), self.server = self.server, None
            with suppress(OSError):
                asking.shutdown(socket.SHUT_RDWR)  # which a forked process may hold open too
            with suppress(subprocess.TimeoutExpired):
                process.wait(MAX_END)
            process.kill()
            process.wait()


def start_server(memory: int, module: str) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start the process that workers are forked from, and return a socket to ask it for one. It ends with the calling thread."""
    ours, other = socket.socketpair()
    names = f"from {module} import grade, warm_up; from fairlen.verify.worker import serve"
    code = f"import sys; sys.path[:] = {sys.path!r}; {names}; serve({memory}, grade, warm_up)"
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    environment["PYTHONHASHSEED"] = "0"  # what goes through sets comes out the same in every process
    with other:
        command = [sys.executable, "-c", code]  # in a session of its own: the terminal's interrupt is for us
        process = subprocess.Popen(command, stdin=other.fileno(), env=environment, start_new_session=True)
    return ours, process


class AnswerReader(WorkerPool):
    """Reads the answers of finished texts, in one form."""

    def __init__(self, form: str = "auto", workers: int = 1, deadline: float = 5.0) -> None:
        """`workers` and `deadline`, seconds for each text, are of a pattern of the user."""
        super().__init__(workers, deadline, PATTERN_MEMORY, "fairlen.verify.answer")
        self.form = form

    async def __call__(self, text: str, starts_inside: bool = False, letters: str = "") -> Verdict:
        """The answer after the thinking, unverified, of `letters` the one chosen; or why there is none. `starts_inside`: the
        prompt ended with `<think>`."""
        rest = (after_thinking(text, starts_inside) or "")[-MAX_TEXT:]
        if self.form in FORMS:
            answer = FORMS[self.form].read(rest, letters)
        else:
            reply = await self.ask(pattern=self.form.removeprefix(PATTERN), text=rest)
            if reply in ("timeout", "error"):
                return Verdict.of(cast(Status, reply))
            answer = choose(json.loads(reply), letters)
        return Verdict.of("unverified" if answer else "no_answer", answer or None)


class AnswerPool(WorkerPool):
    """Compares answers with references."""

    def __init__(
        self, workers: int = 2, deadline: float = 5.0, memory_mib: int = 2048, unevaluated: bool = False
    ) -> None:
        """`unevaluated`: where the reference is a number, operators that are not worked out are answers too, `5!` for 120."""
        super().__init__(workers, deadline, memory_mib, "fairlen.verify.equivalence")
        self.unevaluated = unevaluated
        if importlib.util.find_spec("math_verify") is None:
            raise ModuleNotFoundError("verdicts on mathematics need math_verify: pip install '.[math]' in the checkout")

    async def compare(self, gold: str | Sequence[str], answer: str, *, tolerance: float = 0.0) -> Status:
        """Grade an answer; error where algebra fails. `gold`: the reference, or several, of which all must be given and nothing
        else. `tolerance`: the largest difference of numbers that count as the same."""
        golds = (gold,) if isinstance(gold, str) else tuple(gold)
        if not golds or not all(golds):
            raise ValueError(f"gold={gold!r}: a reference is not empty; leave out problems without one")
        if status := settle(golds, answer, tolerance):
            return status
        reply = await self.ask(golds=golds, answer=answer, tolerance=tolerance, unevaluated=self.unevaluated)
        return cast(Status, reply)


def settle(golds: tuple[str, ...], answer: str, tolerance: float) -> Status | None:
    """The verdict where text and exact numbers decide it; None where a worker is needed."""
    if len(answer) > MAX_LENGTH:
        return "incorrect"
    if max(len(answer), *map(len, golds)) > MAX_QUICK:
        return None
    same = match_exactly(answer, golds[0], tolerance) if len(golds) == 1 else None
    return None if same is None else "correct" if same else "incorrect"
