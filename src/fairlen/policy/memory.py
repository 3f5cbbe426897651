"""Memory: that of the CPU is kept for the next use, and a shortage of any is recognised, whichever library reports it.

glibc returns every large block at once, and a training step frees and takes the same large blocks again and
again: the page faults cost more than the arithmetic of a small model. Blocks of a large model are still given back: kept,
they would be cut up for smaller ones, and a run would take twice the memory and more.
"""

from __future__ import annotations

import ctypes
import gc
import sys

import torch

from fairlen.hangs import TrainingStopped

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEEP, _MARGIN = 2**31 - 1, 64 * 2**20
_LARGE = 32 * 2**20
"""Blocks of so many bytes are given back; micro-batches of the shipped model have smaller ones."""
SHORTAGES = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "std::bad_alloc",
)
"""How errors that are not torch.OutOfMemoryError say it."""


class OutOfMemoryError(TrainingStopped):
    """Not even the smallest micro-batch fits."""


def is_shortage(error: BaseException) -> bool:
    """Whether it says that memory ran out."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(text in str(error) for text in SHORTAGES)


def release_memory() -> None:
    """Gives back what nothing refers to any more; what an exception's traceback refers to is kept until that is gone."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def keep_freed_memory() -> bool:
    """Tells glibc's allocator so, for this process; False where there is no glibc."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_MMAP_THRESHOLD, _LARGE), (_TRIM_THRESHOLD, _KEEP), (_TOP_PAD, _MARGIN))
    return all([mallopt(name, value) == 1 for name, value in settings])
