"""Programs on the host itself, without containment. Only for `--unsafe-exec-on-host`, which the run folder records.

They are limited in time, memory and output, which stops accidents. A program that means harm can read, change and send
whatever our user can. Not for training: what a model is rewarded for, it finds.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairlen.verify.execution import Execution, Limits, failed, read_ending
from fairlen.verify.interpreter import find_interpreter, find_tool
from fairlen.verify.places import Places
from fairlen.verify.process import Ended, supervise


class HostSandbox:
    """Runs programs as our own user, `slots` at a time, each in a temporary folder."""

    name = "host"

    def __init__(self, interpreter: str = "", slots: int = 0) -> None:
        """As `Bubblewrap`."""
        self.interpreter = find_interpreter(interpreter)
        self.slots = slots or len(os.sched_getaffinity(0))
        find_tool("taskset", "util-linux")
        self.places = Places(self.slots)
        self.dies_with_us = (find_tool("setpriv", "util-linux"), "--pdeathsig", "KILL")

    def describe(self) -> dict[str, Any]:
        """Says that it is unsafe."""
        return {
            "sandbox": self.name, "unsafe": True, "python": self.interpreter.version,
            "interpreter": self.interpreter.path, "slots": self.slots,
        }  # fmt: skip

    async def run(self, program: str, stdin: bytes, limits: Limits) -> Execution:
        """Runs a program in a temporary folder. Threads and processes are not limited: the limit would count all of ours."""
        async with self.places.take() as bound:
            try:
                ended = await self._run(bound, program.encode("utf-8", "replace"), stdin, limits)
            except OSError as error:
                return failed(f"{self.name}: {error}")
        if ended.killed:
            return Execution(ended.killed, ended.stdout, ended.stderr, None, ended.seconds)
        status = read_ending(ended.exit_code, ended.stderr, ended.seconds, limits)
        return Execution(status, ended.stdout, ended.stderr, ended.exit_code, ended.seconds)

    async def _run(self, bound: Sequence[str], program: bytes, stdin: bytes, limits: Limits) -> Ended:
        folder = tempfile.mkdtemp(prefix="fairlen-")
        try:
            file = Path(folder) / "program.py"
            file.write_bytes(program)
            command = [*bound, *self.dies_with_us, *self.interpreter.command(str(file), limits, processes=0)]
            return await supervise(
                command, stdin, limits, self.interpreter.environment() | {"HOME": folder}, folder=folder
            )
        finally:  # by a process of its own: there may be a hundred thousand files
            await supervise(["rm", "-rf", folder], b"", Limits(seconds=60.0), {})
