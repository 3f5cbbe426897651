"""One child process under watch: fed, read with a cap, timed, and gone at the end with its whole group.

Not here: what contains the process, and what its ending means.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from asyncio.subprocess import PIPE
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, cast

from fairlen.verify.execution import Limits

GRACE = 1.0
"""Seconds for the pipes of a dead process to end: a stray child may hold their other ends."""

STDOUT, STDERR = 1, 2


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended, before anything is made of it."""

    killed: Literal["", "timeout", "output_limit"]
    """Why we killed it, or empty."""
    exit_code: int
    """128 + signal where a signal ended it."""
    stdout: bytes
    stderr: bytes
    seconds: float
    """From the start of the process to its end."""


class Watch(asyncio.SubprocessProtocol):
    """What is heard of a process while it runs.

    A protocol rather than streams: `Process.wait` of streams returns only when all pipes have ended, and those of a program
    that was stopped in the middle of its output, or that left a child behind, do not.
    """

    def __init__(self, most: int) -> None:
        loop = asyncio.get_running_loop()
        self.most, self.is_overflown = most, False
        self.outputs = {STDOUT: bytearray(), STDERR: bytearray()}
        self.open = {STDOUT, STDERR}
        self.exited: asyncio.Future[None] = loop.create_future()
        self.drained: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        """Keeps what fits under the cap, and kills at the first byte above."""
        kept, data = self.outputs[fd], cast(bytes, data)
        room = self.most - len(kept)
        kept += data[:room]
        if len(data) > room and not self.is_overflown:
            self.is_overflown = True
            self.kill()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self.open.discard(fd)
        if not self.open and not self.drained.done():
            self.drained.set_result(None)

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)

    def feed(self, data: bytes) -> None:
        """Writes stdin and closes it when it is read; a program that does not read is no error."""
        pipe = cast(asyncio.WriteTransport, self.transport.get_pipe_transport(0))
        pipe.write(data)
        pipe.close()

    def kill(self) -> None:
        """The process and all that stayed in its group. A group id is not given away while the group has members."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.transport.get_pid(), signal.SIGKILL)


def has_ended(pid: int) -> bool:
    """Whether a child has ended, without taking its exit code away from who waits for it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # somebody has waited for it already
        return True


async def supervise(
    command: Sequence[str],
    stdin: bytes,
    limits: Limits,
    environment: Mapping[str, str],
    descriptors: Sequence[int] = (),
    folder: str = "/",
) -> Ended:
    """Runs a command to its end, at most `limits.seconds`; cancelling kills it. OSError where it cannot start."""
    start = time.perf_counter()
    _, watch = await asyncio.get_running_loop().subprocess_exec(
        lambda: Watch(limits.output_bytes), *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=dict(environment),
        cwd=folder, pass_fds=descriptors, start_new_session=True,
    )  # fmt: skip
    is_late = False
    try:
        watch.feed(stdin)
        async with asyncio.timeout(limits.seconds):
            await asyncio.shield(watch.exited)
    except TimeoutError:
        # where the loop was busy elsewhere, the end of a process that was in time is heard after its deadline
        is_late = not has_ended(watch.transport.get_pid())
    finally:
        seconds = time.perf_counter() - start
        watch.kill()
        await watch.exited
        await asyncio.wait([watch.drained], timeout=GRACE)
        watch.transport.close()
    code = watch.transport.get_returncode()
    code = -signal.SIGKILL if code is None else code
    killed = "output_limit" if watch.is_overflown else "timeout" if is_late else ""
    stdout, stderr = (bytes(watch.outputs[fd]) for fd in (STDOUT, STDERR))
    return Ended(killed, code if code >= 0 else 128 - code, stdout, stderr, seconds)
