"""A run of an untrusted program: what it may use, what is known of it afterwards, and the Python that it runs on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

from fairlen.checks import Checked, Count, Positive

ExecutionStatus = Literal["ok", "crashed", "timeout", "output_limit", "infrastructure"]


@dataclass(frozen=True)
class Limits(Checked):
    """Limits of one run, all above 0."""

    seconds: Positive = 6.0
    """Start of the interpreter included. Six as in LiveCodeBench (`testing_util.py`), which counts wall clock. A run that still
    computes by then goes on until it has used as much CPU time, so that its neighbours do not decide whether it was in time."""
    cpu_seconds: Count = 7  # the kernel's own limit, of all threads together; above `seconds`
    memory_mib: Count = 1024  # address space. There is one process in a run, so this bounds the whole of it
    processes: Count = 32  # threads, the first included. Programs cannot start processes in `bubblewrap`
    output_bytes: Count = 8 << 20  # each of stdout and stderr; what writes more has failed
    file_bytes: Count = 16 << 20  # everything that it writes to its private folder, each file there and each output


@dataclass(frozen=True, slots=True)
class Execution:
    status: ExecutionStatus
    """`infrastructure` is never the program's doing: it did not run. No exit code leads there, as it chooses that."""
    stdout: bytes
    stderr: bytes  # at most `output_bytes` each. Where the status is `infrastructure`, stderr says what failed
    exit_code: int | None  # 128 + signal where a signal ended it; None where the sandbox killed it or it never started


def failed(reason: str) -> Execution:
    return Execution("infrastructure", b"", reason.encode("utf-8", "replace"), None)


USUAL = ("/usr/bin/python3", "/usr/local/bin/python3")
QUESTION = """
import json, os, site, sys
print(json.dumps([sys.version.split()[0], os.path.realpath(sys.base_prefix),
                  [p for p in site.getsitepackages() if os.path.isdir(p) and os.listdir(p)]]))
"""
ENVIRONMENT = {
    "HOME": "/tmp", "LANG": "C.UTF-8", "PATH": "/usr/bin", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1", "TZ": "UTC",
    # Every thread of a linear algebra library reserves address space.
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
}  # fmt: skip
"""All that a program finds in its environment, beside the packages' folder. The hash seed is fixed so that a program that
depends on the order of a set gets the same verdict every time."""
STACK_MIB = 64  # of each thread whose size the program does not set: deep recursion through C needs it


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python for programs, not necessarily ours."""

    path: str
    version: str
    prefix: str
    packages: tuple[str, ...]
    prlimit: str

    def command(self, file: str, limits: Limits, processes: int) -> list[str]:
        """Start `file` with limits that it cannot raise; `processes` 0 leaves their number unlimited."""
        most: dict[str, int | str] = {
            "as": limits.memory_mib << 20, "cpu": f"{limits.cpu_seconds}:{limits.cpu_seconds + 1}", "core": 0,
            "fsize": limits.file_bytes, "nofile": 64, "memlock": 0, "msgqueue": 0, "stack": STACK_MIB << 20,
        }  # fmt: skip
        if processes:
            most["nproc"] = processes
        options = [f"--{name}={value}" for name, value in most.items()]
        # Without `site`, which takes half as long as the start itself; PYTHONPATH leads to the packages.
        return [self.prlimit, *options, self.path, "-s", "-S", file]

    def environment(self) -> dict[str, str]:
        return ENVIRONMENT | {"PYTHONPATH": ":".join(self.packages)}


def find_tool(name: str, package: str) -> str:
    """Raises ValueError with the package to install where the program is missing."""
    path = shutil.which(name)
    if path is None:
        raise ValueError(f"{name} is missing: apt-get install {package}")
    return path


def find_interpreter() -> Interpreter:
    """The system's Python, or ours. Raises ValueError where it does not run."""
    path = os.path.realpath(next((path for path in USUAL if os.access(path, os.X_OK)), sys.executable))
    try:
        answer = subprocess.run([path, "-I", "-c", QUESTION], capture_output=True, timeout=30, check=True, cwd="/")
        version, prefix, packages = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ValueError(f"{path} does not run ({error}): install a Python 3 for programs") from None
    return Interpreter(path, version, prefix, tuple(packages), find_tool("prlimit", "util-linux"))
