"""Settings of the allocators of memory: of glibc, and of torch on CUDA."""

from __future__ import annotations

import contextlib
import ctypes
import os

MALLOPT = {-3: 32 * 2**20, -1: 2**31 - 1, -2: 64 * 2**20}
"""M_MMAP_THRESHOLD (larger blocks are given back; the shipped model has smaller ones), M_TRIM_THRESHOLD and M_TOP_PAD."""
EXPANDABLE = "expandable_segments:True"
"""torch's CUDA allocator grows blocks in place: micro-batches of many lengths leave no holes. vLLM knows it by this variable."""


def keep_freed_memory() -> None:
    """Tell glibc's allocator so, for this process; nothing happens where there is no glibc.

    On CUDA, segments grow unless PYTORCH_CUDA_ALLOC_CONF says otherwise. To be called before anything is on the device.
    """
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", EXPANDABLE)
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for name, value in MALLOPT.items():
            mallopt(name, value)
