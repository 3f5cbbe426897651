"""Memory of the CPU: keep what was freed, instead of giving it back to the system and asking for it again.

glibc returns every large block at once, and a training step frees and takes the same large blocks again and
again: the page faults cost more than the arithmetic of a small model.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEEP, _MARGIN = 2**31 - 1, 64 * 2**20


def keep_freed_memory() -> bool:
    """Tells glibc's allocator so, for this process; False where there is no glibc."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_MMAP_THRESHOLD, _KEEP), (_TRIM_THRESHOLD, _KEEP), (_TOP_PAD, _MARGIN))
    return all([mallopt(name, value) == 1 for name, value in settings])
