"""Memory of the CPU: keep what was freed, instead of giving it back to the system and asking for it again.

glibc returns every large block at once, and a training step frees and takes the same large blocks again and
again: the page faults cost more than the arithmetic of a small model. Blocks of a large model are still given back: kept,
they would be cut up for smaller ones, and a run would take twice the memory and more.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEEP, _MARGIN = 2**31 - 1, 64 * 2**20
_LARGE = 32 * 2**20
"""Blocks of so many bytes are given back; micro-batches of the shipped model have smaller ones."""


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
