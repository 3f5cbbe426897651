"""Compares outputs without holding up the event loop: long ones in a process of our own, under limits, as JSON of megabytes
takes seconds and a thread would not let go of the interpreter meanwhile. The program that wrote the output has ended by then.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache

from fairlen.verify import outputs
from fairlen.verify.execution import Limits
from fairlen.verify.outputs import Kind, is_same
from fairlen.verify.places import Places
from fairlen.verify.process import Ended, supervise

SHORT = 1 << 16
"""Bytes and characters of both sides that are compared at once."""

LIMITS = Limits(seconds=10.0)
"""Of one comparison; what takes more is not the expected output."""


async def agrees(kind: Kind, given: bytes, expected: str) -> bool:
    """Whether an output is the expected one. OSError where the process that compares them does not run."""
    if len(given) + len(expected) <= SHORT:
        return is_same(kind, given, expected.encode("utf-8", "replace"))
    await asyncio.sleep(0)  # each of these steps copies megabytes
    wanted = expected.encode("utf-8", "replace")
    await asyncio.sleep(0)
    if kind == "text" and given.strip() == wanted.strip():
        return True
    await asyncio.sleep(0)
    command = [sys.executable, "-I", "-S", outputs.__file__, kind, str(len(given)), str(LIMITS.memory_mib << 20)]
    async with places().take() as bound:
        ended = await run([*bound, *command], given + wanted)
    if not ended.killed and ended.exit_code:
        raise OSError(f"outputs were not compared: {ended.stderr[-500:].decode('utf-8', 'replace')}")
    return ended.stdout == b"same\n"


async def run(command: Sequence[str], stdin: bytes) -> Ended:
    """Runs a comparison to its end, in a thread where the system has no descriptors of processes (macOS)."""
    if hasattr(os, "pidfd_open"):
        return await supervise(command, stdin, LIMITS, os.environ)
    try:
        done = await asyncio.to_thread(
            subprocess.run, command, input=stdin, capture_output=True, timeout=LIMITS.seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return Ended("timeout", 0, b"", b"", LIMITS.seconds)
    return Ended("", done.returncode, done.stdout, done.stderr, 0.0)


@cache
def places() -> Places:
    """As many comparisons at a time as there are cores."""
    return Places()
