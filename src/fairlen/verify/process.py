"""One child process: timed, and killed at the end with its whole group, without a thread. What it writes goes to files in memory.

A process that still computes at its deadline goes on until it has used as much CPU time, so that a busy machine decides nothing.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from math import inf
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from fairlen.verify.execution import Execution, Limits, failed, find_interpreter, find_tool

REAPING = 10.0  # seconds for the parent of a killed process to reap it and end, before it is killed too
PATIENCE = 10  # deadlines after which a process is stopped even if it still computes
PAUSE = 0.5  # seconds without CPU time after which a process that is past its deadline counts as idle


class ProcessWatch:
    """Waits for a process, and ends it.

    `find_program`: id of the child that does the work and ends first, 0 until it is known; None stands for the process itself.
    """

    def __init__(self, process: subprocess.Popen[bytes], find_program: Callable[[], int] | None) -> None:
        self.process, self.find_program = process, find_program
        self.loop, self.exited = asyncio.get_running_loop(), asyncio.Event()
        self.descriptor = os.pidfd_open(process.pid)
        self.loop.add_reader(self.descriptor, self._hear_end)

    def _hear_end(self) -> None:
        self.loop.remove_reader(self.descriptor)
        self.exited.set()

    async def is_late(self, seconds: float) -> bool:
        """Wait for the end; True where it does not come while the process uses its `seconds`."""
        start = active = time.monotonic()
        used, wait = 0.0, seconds
        while not await is_set_within(self.exited, wait):
            now, last = time.monotonic(), used
            used = read_cpu_seconds(self.program or self.process.pid)
            active = now if used > last else active
            if seconds <= used < inf or now - active > PAUSE or now - start > PATIENCE * seconds:
                # where the loop was busy elsewhere, the end of a process that was in time is heard after its deadline
                return not has_ended(self.process.pid)
            wait = max(0.02, min(PAUSE, seconds - used))
        return False

    @property
    def program(self) -> int:
        return self.find_program() if self.find_program else self.process.pid

    def kill(self) -> None:
        """Kill the process that does the work. Its parent, if it is not ours, is left to reap it and ends by itself: an orphan
        would be a zombie for good where the first process of a container reaps nothing."""
        if self.find_program is None:
            self.kill_group()
        elif program := self.program:
            kill_child(program, self.process.pid)

    def kill_group(self) -> None:
        """Kill the process and all that stayed in its group, whose id is not given away while it has members."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def end(self) -> None:
        try:
            limit = time.monotonic() + REAPING
            while not has_ended(self.process.pid) and time.monotonic() < limit:
                self.kill()  # more than once: it may not be known yet which process does the work
                await is_set_within(self.exited, 0.02)
            self.kill_group()
            await self.exited.wait()
        finally:
            self.kill_group()
            self.loop.remove_reader(self.descriptor)
            os.close(self.descriptor)


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def has_ended(pid: int) -> bool:
    """Does not reap it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # somebody has waited for it already
        return True


def read_cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process; infinite for one that is gone."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid(3)
    except OSError:
        return inf


def kill_child(pid: int, parent: int) -> None:
    """Kill a process if it is a child of `parent`: held by a descriptor, as its id may be given away at any time."""
    with suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            if int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1]) == parent:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


async def supervise(
    command: Sequence[str],
    stdin: bytes,
    limits: Limits,
    environment: Mapping[str, str],
    descriptors: Sequence[int] = (),
    folder: str = "/",
    find_program: Callable[[], int] | None = None,
) -> Execution:
    """Run a command to its end, for `limits.seconds` of its own time; cancelling kills it. Raises OSError."""
    is_late = False
    with memory_file(stdin) as source, memory_file() as out, memory_file() as errors:
        with subprocess.Popen(
            command, stdin=source, stdout=out, stderr=errors, env=dict(environment), cwd=folder, pass_fds=descriptors,
            start_new_session=True,
        ) as process:  # fmt: skip
            try:
                watch = ProcessWatch(process, find_program)
            except BaseException:
                process.kill()
                raise
            try:
                is_late = await watch.is_late(limits.seconds)
            finally:
                await watch.end()
        most, code = limits.output_bytes, process.returncode
        stdout, stderr = (os.pread(file, most, 0) for file in (out, errors))
        if is_late or max(os.fstat(file).st_size for file in (out, errors)) > most:
            return Execution("timeout" if is_late else "output_limit", stdout, stderr, None)
    return Execution("crashed" if code else "ok", stdout, stderr, code if code >= 0 else 128 - code)


@contextmanager
def memory_file(data: bytes | None = None) -> Iterator[int]:
    """A file in memory: of `data`, which nobody can change, or an empty one."""
    descriptor = os.memfd_create("fairlen", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        if data is not None:
            os.write(descriptor, data)
            os.lseek(descriptor, 0, os.SEEK_SET)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        yield descriptor
    finally:
        os.close(descriptor)


class Sandbox:
    """Runs programs on this machine, `slots` at a time in each event loop, each on one core."""

    name: str

    def __init__(self, slots: int) -> None:
        self.taskset = find_tool("taskset", "util-linux")  # programs of many threads would slow each other
        self.interpreter = find_interpreter()
        cores = sorted(os.sched_getaffinity(0))
        self.slots = slots or len(cores)
        self._cores = list(islice(cycle(cores), self.slots))
        self._free: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.LifoQueue[int]] = WeakKeyDictionary()

    def describe(self) -> dict[str, Any]:
        """Return what the run folder records of it: plain values; `unsafe` says whether programs run without containment."""
        facts = {"python": self.interpreter.version, "interpreter": self.interpreter.path, "slots": self.slots}
        return {"sandbox": self.name, "unsafe": True, **facts}

    async def run(self, program: str, stdin: bytes, limits: Limits) -> Execution:
        """Run a program once. Bad programs and failing machines are executions too: nothing is raised for them."""
        loop = asyncio.get_running_loop()
        if loop not in self._free:
            self._free[loop] = asyncio.LifoQueue()
            for core in self._cores:
                self._free[loop].put_nowait(core)
        core = await self._free[loop].get()
        try:
            bound = (self.taskset, "--cpu-list", str(core))
            return await self._run(bound, program.encode("utf-8", "replace"), stdin, limits)
        except OSError as error:
            return failed(f"{self.name}: {error}")
        finally:
            self._free[loop].put_nowait(core)

    async def _run(self, bound: Sequence[str], program: bytes, stdin: bytes, limits: Limits) -> Execution:
        raise NotImplementedError
