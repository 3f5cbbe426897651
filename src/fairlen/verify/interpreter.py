"""The Python that runs programs: where it is, what it needs to read, and the command that starts it under limits."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from fairlen.verify.execution import Limits

USUAL = ("/usr/bin/python3", "/usr/local/bin/python3")

QUESTION = """
import json, os, site, sys
print(json.dumps([sys.version.split()[0], os.path.realpath(sys.base_prefix),
                  [p for p in site.getsitepackages() if os.path.isdir(p) and os.listdir(p)]]))
"""

ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PATH": "/usr/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "TZ": "UTC",
    # Every thread of a linear algebra library reserves address space.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""All that a program finds in its environment, beside the packages' folder. The hash seed is fixed so that a program that
depends on the order of a set gets the same verdict every time."""

STACK_MIB = 64
"""Of the main thread, and of each other one whose size the program does not set: deep recursion through C needs it."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python for programs, not necessarily ours."""

    path: str
    """Of the executable, links resolved."""
    version: str
    prefix: str
    """Folder that holds its standard library."""
    packages: tuple[str, ...]
    """Folders with installed packages, which programs may import."""
    prlimit: str
    """Path of the program that sets limits and becomes the interpreter."""

    def command(self, file: str, limits: Limits, processes: int) -> list[str]:
        """Starts `file` with limits that it cannot raise; `processes` 0 leaves their number unlimited."""
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
        """All that the program finds in its environment."""
        return ENVIRONMENT | {"PYTHONPATH": ":".join(self.packages)}


def find_tool(name: str, package: str) -> str:
    """Absolute path of a program; ValueError with the package to install where it is missing."""
    path = shutil.which(name)
    if path is None:
        raise ValueError(f"{name} is missing: apt-get install {package}")
    return path


def find_interpreter(path: str = "") -> Interpreter:
    """The given one, the system's, or the one that we run on. ValueError where it does not answer."""
    candidates: Sequence[str] = [path] if path else [*(p for p in USUAL if os.access(p, os.X_OK)), sys.executable]
    real = os.path.realpath(candidates[0])
    try:
        answer = subprocess.run([real, "-I", "-c", QUESTION], capture_output=True, timeout=30, check=True, cwd="/")
        version, prefix, packages = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ValueError(f"interpreter={candidates[0]!r} does not run ({error}): give the path of a Python 3") from None
    return Interpreter(real, version, prefix, tuple(packages), find_tool("prlimit", "util-linux"))
