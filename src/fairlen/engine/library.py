"""Functions in C, compiled for this machine when they are first wanted."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

FLAGS = ("-O3", "-march=native", "-fPIC")


def build_library(source: Path, names: Mapping[str, object], flags: Sequence[str] = ()) -> ctypes.CDLL | None:
    """The functions of `source`, compiled with these macros and flags; None where there is no compiler that builds it."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    options = [*FLAGS, *flags, *(f"-D{name}={value}" for name, value in names.items())]
    for threading in (["-fopenmp"], []):
        with tempfile.TemporaryDirectory() as folder:
            made, loaded = (str(Path(folder) / source.with_suffix(ending).name) for ending in (".o", ".so"))
            commands = ([*options, *threading, "-c", str(source), "-o", made], ["-shared", made, "-o", loaded, "-lm"])
            if any(subprocess.run([compiler, *c], capture_output=True, check=False).returncode for c in commands):
                continue
            try:
                return ctypes.CDLL(loaded)
            except OSError:  # no OpenMP in this process
                continue
    return None
