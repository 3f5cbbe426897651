"""A device's memory: free bytes, settings of its allocators, uploads to it."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

MALLOPT = {-3: 32 * 2**20, -1: 2**31 - 1, -2: 64 * 2**20}
"""M_MMAP_THRESHOLD (larger blocks are given back; the shipped model has smaller ones), M_TRIM_THRESHOLD and M_TOP_PAD."""
EXPANDABLE = "expandable_segments:True"
"""torch's CUDA allocator grows blocks in place: micro-batches of many lengths leave no holes. vLLM knows it by this variable."""


def upload(array: np.ndarray, device: torch.device) -> Tensor:
    """Return the array on the device, read from page-locked memory while the host goes on; on the CPU nothing is copied."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def free_memory(device: torch.device | str) -> int:
    """Return the free bytes of a CUDA device, what torch has reserved but not used included; else those of the machine.

    The memory limit of a container counts.
    """
    if (device := torch.device(device)).type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    lines = Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else []
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # "max" is no limit
        free.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(free, default=2**62)


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for this process, and CUDA segments grow unless PYTORCH_CUDA_ALLOC_CONF says otherwise.

    To be called before anything is on the device.
    """
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", EXPANDABLE)
    with suppress(OSError, AttributeError):  # no glibc
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for name, value in MALLOPT.items():
            mallopt(name, value)
