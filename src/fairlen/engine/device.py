"""Resources of the machine: free memory, its allocators, uploads to a device, and functions in C compiled for it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

MALLOPT = {-3: 32 * 2**20, -1: 2**31 - 1, -2: 64 * 2**20}
"""M_MMAP_THRESHOLD (larger blocks are given back; the shipped model has smaller ones), M_TRIM_THRESHOLD and M_TOP_PAD."""


def upload(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy to the device from page-locked memory while the host goes on; on the CPU nothing is copied."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def free_memory(device: torch.device | str) -> int:
    """Free bytes of a CUDA device, with those that torch reserved and does not use; else of the machine or its container."""
    if (device := torch.device(device)).type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    lines = Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else []
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # "max" is no limit
        free.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        free[-1] += int(stat.get("inactive_file", 0))  # cached files, which give way
    return min(free, default=2**62)


def keep_freed_memory() -> None:
    """Make glibc keep freed memory, and CUDA segments grow unless PYTORCH_CUDA_ALLOC_CONF says otherwise.

    Call it before anything is on the device.
    """
    # blocks that grow in place: micro-batches of many lengths leave no holes; vLLM knows it by this variable
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    with suppress(OSError, AttributeError):  # no glibc
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for name, value in MALLOPT.items():
            mallopt(name, value)


def give_back_memory() -> None:
    """Give the system what glibc keeps of freed memory: holes of one phase's shapes do not fit the next phase's."""
    with suppress(OSError, AttributeError):  # no glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def build_library(source: Path, names: Mapping[str, object], flags: Sequence[str] = ()) -> ctypes.CDLL | None:
    """Compile a file of C with these macros and flags; None where there is no compiler that builds it."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    # tuning for AMD's Zen fuses a product and a sum in some copies of a loop alone, by which a row would depend on its place
    fused = "--param=avoid-fma-max-bits=0"
    options = ["-O3", "-march=native", fused, "-fPIC", *flags, *(f"-D{name}={value}" for name, value in names.items())]
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
