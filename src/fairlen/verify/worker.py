"""Worker processes that grade by a given function, and the process that they are forked from.

`answer_pool` runs it with a Unix socket as standard input. Every socket that comes over it is for one more worker, which sends
its process id, and then a reply to each question; a line each, questions in JSON. An audit hook, which cannot be removed,
refuses code from text, writing, processes and connections: a second line of defence behind graders that evaluate no answer, and
no sandbox.
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
from typing import Any, NoReturn

from fairlen.files.limits import address_space

MAX_LIFE = 2000  # questions that a worker answers before it ends: sympy and its parser never forget
PR_SET_PDEATHSIG = 1


def serve(memory: int, grade: Callable[..., str], warm_up: Callable[[], None]) -> None:
    """Fork workers that may take `memory` bytes more than they share, until the asking process has gone."""
    end_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps workers
    warm_up()
    with socket.socket(fileno=0) as asking:
        while sockets := socket.recv_fds(asking, 1, 1)[1]:
            with suppress(OSError):  # at a limit of processes; the asking process sees the socket end
                if os.fork() == 0:
                    work(sockets[0], memory, grade)
            os.close(sockets[0])
    with suppress(ChildProcessError):
        os.wait()  # for all: orphans would be zombies for good where the first process of a container reaps none


def work(connection: int, memory: int, grade: Callable[..., str]) -> NoReturn:
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
                if REFUSED:  # the reply is no verdict
                    break
                asking.sendall(reply.encode() + b"\n")
    finally:
        os._exit(0)


def end_with_parent() -> None:
    """Have the system kill this process when the thread that started it ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


HARMLESS = {
    "array.__new__", "builtins.id", "compile", "gc.get_objects", "gc.get_referrers", "import", "marshal.loads",
    "object.__getattr__", "object.__setattr__", "os.listdir", "os.scandir", "sys._getframe", "sys._getframemodulename",
    "sys.unraisablehook",
}  # fmt: skip
"""Events of imports and of computations; what is compiled runs with the event `exec` alone."""
WRITERS = ("/collections/__init__.py", "/dataclasses.py", "/sympy/polys/monomials.py")
"""Modules that run code which they have written: of classes by their fields, of products by the number of variables."""
REFUSED: list[str] = []


def guard() -> None:
    sys.addaudithook(refuse)


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise PermissionError for what a guarded process may not do: code may run that is a module's, files be read."""
    if event == "exec":
        place, caller = arguments[0].co_filename, sys._getframe(1).f_code.co_filename
        is_harmless = os.path.isabs(place) or place.startswith("<frozen ") or caller.endswith(WRITERS)
    else:
        is_harmless = event in HARMLESS or (event == "open" and not arguments[2] & (os.O_ACCMODE | os.O_CREAT))
    if not is_harmless:
        REFUSED.append(event)
        raise PermissionError(f"a worker that grades does not do {event}: {str(arguments)[:200]}")
