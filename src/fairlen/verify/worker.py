"""The process that answer workers are forked from, algebra loaded and warm, and what a worker does.

Run by `answer_pool` as a program, with a Unix socket as its standard input. Every socket that comes over it is for one more
worker, which sends its process id, and then a status for each question; a line each, questions in JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from fairlen.files.limits import address_space
from fairlen.rollouts import Status
from fairlen.verify.equivalence import is_same

MAX_LIFE = 2000
"""Questions that a worker answers before it ends: sympy and its parser never forget."""
WARM_UP = (
    (r"\frac{x+1}{2}", r"\frac{x}{2}+\frac{1}{2}"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    ("x<3", r"(-\infty,3)"),
    ("x^2-3x+2", "(x-1)(x-2)"),
    (r"\sin^2 x", r"1-\cos^2 x"),
    ("y=2x+1", "y-2x=3"),
)
"""Comparisons that fill the parser's tables and sympy's caches, which otherwise cost every new worker a second."""
PR_SET_PDEATHSIG = 1


def serve(memory: int) -> None:
    """Fork workers that may take `memory` bytes more than they share, until whoever asks for them has gone."""
    end_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps workers
    for gold, answer in WARM_UP:
        is_same([gold], answer)
    with socket.socket(fileno=0) as asking:
        while sockets := socket.recv_fds(asking, 1, 1)[1]:
            with suppress(OSError):  # at a limit of processes; whoever asked hears the socket end
                if os.fork() == 0:
                    work(sockets[0], memory)
            os.close(sockets[0])
    with suppress(ChildProcessError):
        os.wait()  # for all: orphans would be zombies for good where the first process of a container reaps none


def work(connection: int, memory: int) -> NoReturn:
    """Answer questions until there are no more, or what is left of a worker's life."""
    try:
        os.dup2(connection, 0)  # in place of the server's
        os.close(connection)
        end_with_parent()
        most = address_space() + memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with socket.socket(fileno=0) as asking, asking.makefile() as questions:
            asking.sendall(b"%d\n" % os.getpid())
            for _ in range(MAX_LIFE):
                if not (question := questions.readline()):
                    break
                asking.sendall(grade(**json.loads(question)).encode() + b"\n")
    finally:
        os._exit(0)


def end_with_parent() -> None:
    """The system kills this process when the thread that started it ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def grade(golds: Sequence[str], answer: str, tolerance: float, unevaluated: bool = False) -> Status:
    """The verdict; whatever algebra raises, running out of stack or memory included, is an error and never an exception."""
    try:
        return "correct" if is_same(golds, answer, tolerance, unevaluated) else "incorrect"
    except Exception:
        return "error"
