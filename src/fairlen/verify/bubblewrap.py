"""Programs in namespaces of their own, made by bubblewrap for a user that is not root, with a filter of system calls.

A program sees the system's libraries read-only, a private folder of bounded size, itself, and nothing else: no network, no
processes but its own threads, no environment, no files of the host. It cannot start processes, so that nothing outlives it.

When we are root, every run gets a user id of its own, taken from FIRST_UID on: as root, bubblewrap would leave 763 kernel
settings writable and the number of processes unbounded. When we are not, all runs share our id, and the kernel counts the
processes of each user namespace apart (Linux 5.14 and later), so that one run cannot use up the number allowed to another.

Only time bounds what the kernel keeps of empty files: a kilobyte each, 190 MiB after six seconds of making them, freed at the
end. One start takes under twice as long as that of the bare interpreter (`benchmarks/sandbox.py`).

Source: containers/bubblewrap, whose manual describes the options. Not here: the probes that prove it (`probe`).
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fairlen.verify.execution import MAX_WORDS, Execution, Limits, failed, read_ending
from fairlen.verify.interpreter import find_interpreter, find_tool
from fairlen.verify.places import Places
from fairlen.verify.process import supervise
from fairlen.verify.seccomp import build_filter

FIRST_UID, NUM_UIDS = 60706, 478
"""User ids of runs started by root: systemd's list of ranges leaves 60706 to 61183 unused."""

OLDEST_BUBBLEWRAP, OLDEST_LINUX = (0, 8), (5, 14)
"""With `--disable-userns`; with processes counted per user namespace."""

PROGRAM = "/box/program.py"
HELPERS = 1
"""Processes in the user namespace beside the program's threads. The program is the first of its PID namespace: under
bubblewrap's own first process, which has the same user, a program could write to the memory of that."""


class Bubblewrap:
    """Runs programs through bwrap, `slots` at a time."""

    name = "bubblewrap"

    def __init__(self, interpreter: str = "", slots: int = 0) -> None:
        """`interpreter`: path of a Python 3, the system's by default. `slots`: runs at a time, one for each core by default.

        ValueError where something is missing, with the remedy.
        """
        if not 0 <= slots <= NUM_UIDS:
            raise ValueError(f"slots={slots}: give 1 to {NUM_UIDS} runs at a time, or 0 for one on each core")
        self.bwrap = find_tool("bwrap", "bubblewrap")
        find_tool("taskset", "util-linux")  # programs of many threads would slow each other
        self.version = read_version(self.bwrap)
        self.filter = build_filter(platform.machine())
        self.interpreter = find_interpreter(interpreter)
        self.slots = slots or len(os.sched_getaffinity(0))
        self.places = Places(self.slots)
        self.is_root = os.geteuid() == 0
        self.setpriv = find_tool("setpriv", "util-linux") if self.is_root else ""
        if not self.is_root and read_numbers(platform.release()) < OLDEST_LINUX:
            raise ValueError(
                f"Linux {platform.release()}: before 5.14 parallel programs of one user share one limit of processes; "
                "run as root, which gives each run a user id of its own, or give the URL of a sandbox service"
            )
        self._uids = deque(range(FIRST_UID, FIRST_UID + NUM_UIDS))
        self._view = view_options(self.interpreter.prefix, self.interpreter.path, *self.interpreter.packages)

    def describe(self) -> dict[str, Any]:
        """Versions and settings, for the run folder."""
        return {
            "sandbox": self.name, "unsafe": False, "version": ".".join(map(str, self.version)),
            "python": self.interpreter.version, "interpreter": self.interpreter.path, "slots": self.slots,
            "uids": f"{FIRST_UID}-{FIRST_UID + NUM_UIDS - 1}" if self.is_root else str(os.geteuid()),
            "kernel": platform.release(),
        }  # fmt: skip

    async def run(self, program: str, stdin: bytes, limits: Limits) -> Execution:
        """Runs a program in a sandbox of its own, which is gone afterwards."""
        async with self.places.take() as bound:
            uid = self._uids.popleft()
            try:
                return await self._run(bound, program.encode("utf-8", "replace"), stdin, limits, uid)
            except OSError as error:
                return failed(f"{self.name}: {error}")
            finally:
                self._uids.append(uid)

    async def _run(self, bound: Sequence[str], program: bytes, stdin: bytes, limits: Limits, uid: int) -> Execution:
        with memory_file(program) as source, memory_file(self.filter) as calls, status_pipe() as (status, writer):
            command = [*bound, *self._command(limits, uid, source, calls, writer)]
            ended = await supervise(command, stdin, limits, {}, (source, calls, writer), find_program=status.read_pid)
            pid, code = status.read_pid(), status.read("exit-code")
        if ended.killed and pid:
            return Execution(ended.killed, ended.stdout, ended.stderr, None, ended.seconds)
        if code is None:
            words = ended.stderr[-MAX_WORDS:].decode("utf-8", "replace").strip()
            return failed(f"{self.name}: {words}", ended.seconds)
        ending = read_ending(code, ended.stderr, ended.seconds, limits)
        return Execution(ending, ended.stdout, ended.stderr, code, ended.seconds)

    def _command(self, limits: Limits, uid: int, source: int, calls: int, status: int) -> list[str]:
        """Everything up to the interpreter. Neither the program nor its input is on a command line, which all users can read."""
        drop = [self.setpriv, f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"] if self.is_root else []
        variables = [("--setenv", name, value) for name, value in self.interpreter.environment().items()]
        return [
            *drop, self.bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session",
            "--as-pid-1", "--cap-drop", "ALL", "--hostname", "sandbox", "--clearenv",
            *(word for words in variables for word in words), *self._view,
            "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev", "--remount-ro", "/dev",
            "--dir", "/box", "--file", str(source), PROGRAM,
            "--size", str(limits.file_bytes), "--tmpfs", "/tmp", "--chdir", "/tmp",
            "--remount-ro", "/",  # the root is a tmpfs too, and without a size
            "--seccomp", str(calls), "--json-status-fd", str(status), "--",
            *self.interpreter.command(PROGRAM, limits, limits.processes + HELPERS),
        ]  # fmt: skip


def view_options(*needed: str) -> list[str]:
    """What of the host's files is visible: /usr without /usr/local, the loader's cache, and where the interpreter lies."""
    options = ["--ro-bind", "/usr", "/usr"]
    for path in map(Path, ("/lib", "/lib32", "/lib64", "/bin")):
        if path.is_symlink():
            options += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    for path in ("/etc/ld.so.cache", "/etc/alternatives"):
        options += ["--ro-bind-try", path, path]
    hidden = [path for path in ("/usr/local",) if Path(path).is_dir()]
    for path in hidden:
        options += ["--tmpfs", path]
    for path in needed:
        if path != "/usr" and (not path.startswith("/usr/") or path.startswith("/usr/local")):
            options += ["--ro-bind", path, path]
    for path in hidden:
        options += ["--remount-ro", path]
    return options


def read_version(bwrap: str) -> tuple[int, ...]:
    """Of bwrap; ValueError where it is too old."""
    text = subprocess.run([bwrap, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    version = read_numbers(text)
    if version < OLDEST_BUBBLEWRAP:
        raise ValueError(
            f"{bwrap}: version {text.strip()!r}: programs need bubblewrap 0.8 or later; install a newer one"
        )
    return version


def read_numbers(text: str) -> tuple[int, ...]:
    """The first dotted number: "bubblewrap 0.8.0" is (0, 8, 0)."""
    found = re.search(r"\d+(\.\d+)+", text)
    return tuple(int(number) for number in found[0].split(".")) if found else ()


@contextmanager
def memory_file(data: bytes) -> Iterator[int]:
    """A descriptor that reads these bytes; bwrap copies them and closes its own."""
    descriptor = os.memfd_create("fairlen", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


class Status:
    """What bwrap says of a run, on a pipe out of reach of the program: JSON objects, one a line."""

    def __init__(self, reader: int) -> None:
        self.reader, self.text = reader, b""

    def read(self, name: str) -> int | None:
        """A number that bwrap has said by now: `child-pid`, the program's, or `exit-code`, 128 + signal for signals."""
        with suppress(BlockingIOError):
            self.text += os.read(self.reader, 1 << 16)
        lines = self.text.splitlines(keepends=True)
        found = [json.loads(line) for line in lines if line.endswith(b"\n")]
        return next((status[name] for status in found if name in status), None)

    def read_pid(self) -> int:
        """The program's, 0 where it has not started."""
        return self.read("child-pid") or 0


@contextmanager
def status_pipe() -> Iterator[tuple[Status, int]]:
    """The status, and where bwrap writes it."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield Status(reader), writer
    finally:
        os.close(reader)
        os.close(writer)
