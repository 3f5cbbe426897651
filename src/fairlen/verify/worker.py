"""The process that workers are forked from, what they need loaded and warm. What they do is a function that it is given.

Run by `answer_pool` as a program, with a Unix socket as its standard input. Every socket that comes over it is for one more
worker, which sends its process id, and then a reply to each question; a line each, questions in JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from fairlen.files.limits import address_space
from fairlen.verify.guard import REFUSED, guard

MAX_LIFE = 2000
"""Questions that a worker answers before it ends: sympy and its parser never forget."""
PR_SET_PDEATHSIG = 1


def serve(memory: int, grade: Callable[..., str], warm_up: Callable[[], None]) -> None:
    """Fork workers that may take `memory` bytes more than they share, until whoever asks for them has gone."""
    end_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps workers
    warm_up()
    with socket.socket(fileno=0) as asking:
        while sockets := socket.recv_fds(asking, 1, 1)[1]:
            with suppress(OSError):  # at a limit of processes; whoever asked hears the socket end
                if os.fork() == 0:
                    work(sockets[0], memory, grade)
            os.close(sockets[0])
    with suppress(ChildProcessError):
        os.wait()  # for all: orphans would be zombies for good where the first process of a container reaps none


def work(connection: int, memory: int, grade: Callable[..., str]) -> NoReturn:
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
            guard()
            for _ in range(MAX_LIFE):
                if not (question := questions.readline()):
                    break
                reply = grade(**json.loads(question))
                if REFUSED:  # whatever it is, it is no verdict
                    break
                asking.sendall(reply.encode() + b"\n")
    finally:
        os._exit(0)


def end_with_parent() -> None:
    """The system kills this process when the thread that started it ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
