"""The contract of a sandbox: what a run of an untrusted program may use, and what is known of it afterwards.

Not here: how programs are contained (`bubblewrap`, `remote`, `host`), which sandbox is used (`sandbox`), and what an output
is worth (`program`). A sandbox never learns what a right output is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from fairlen.checks import check_positive

MAX_WORDS = 4096
"""Bytes at the end of stderr that are read."""

ExecutionStatus = Literal["ok", "crashed", "timeout", "memory", "output_limit", "infrastructure"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use. Raises ValueError where a limit is not above 0."""

    seconds: float = 6.0
    """Start of the interpreter included. Six as in LiveCodeBench (`testing_util.py`), which counts wall clock. A run that still
    computes by then goes on until it has used as much CPU time, so that its neighbours do not decide whether it was in time."""
    cpu_seconds: int = 7
    """The kernel's own limit, of all threads together; above `seconds`."""
    memory_mib: int = 1024
    """Address space. There is one process in a run, so this bounds the whole of it."""
    processes: int = 32
    """Threads, the first included. Programs cannot start processes in `bubblewrap`."""
    output_bytes: int = 8 << 20
    """Each of stdout and stderr; the program is killed at the first byte above."""
    file_bytes: int = 16 << 20
    """Everything that it writes to its private folder, and each file there."""

    def __post_init__(self) -> None:
        check_positive(self, "seconds", "cpu_seconds", "memory_mib", "processes", "output_bytes", "file_bytes")


@dataclass(frozen=True, slots=True)
class Execution:
    """What happened in one run."""

    status: ExecutionStatus
    """`infrastructure` is never the program's doing: it did not run, or nobody knows what it did."""
    stdout: bytes
    stderr: bytes
    """At most `output_bytes` each. Where the status is `infrastructure`, stderr says what failed."""
    exit_code: int | None
    """128 + signal where a signal ended it; None where the sandbox killed it or it never started."""
    seconds: float
    """Wall clock of the run, waiting for a place excluded."""


class Sandbox(Protocol):
    """Runs Python programs that nobody has read."""

    @property
    def name(self) -> str:
        """As in `--sandbox`."""
        ...

    def describe(self) -> dict[str, Any]:
        """What the run folder records of it: plain values; `unsafe` says whether programs run without containment."""
        ...

    async def run(self, program: str, stdin: bytes, limits: Limits) -> Execution:
        """Runs a program once. Bad programs and failing machines are executions too: nothing is raised for them."""
        ...


def read_ending(exit_code: int, stderr: bytes, seconds: float, limits: Limits) -> ExecutionStatus:
    """What an exit code means that the sandbox did not cause, 128 + signal for signals.

    A program can choose its own exit code and signal. So none of them is ever `infrastructure`, or a program that is about
    to fail could make itself not count.
    """
    if exit_code == 0:
        return "ok"
    if exit_code == 128 + 24 or (exit_code == 128 + 9 and seconds >= limits.cpu_seconds):  # SIGXCPU, then SIGKILL
        return "timeout"
    if exit_code == 128 + 9 or b"MemoryError" in stderr[-MAX_WORDS:].rstrip().rpartition(b"\n")[2]:
        return "memory"
    return "crashed"


def failed(reason: str, seconds: float = 0.0) -> Execution:
    """A run of which nothing can be said, and why."""
    return Execution("infrastructure", b"", reason.encode("utf-8", "replace"), None, seconds)
