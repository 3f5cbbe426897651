r"""Imported by the process that answer workers are forked from, and by nothing else: algebra loaded and warm, secrets dropped."""

import atexit
import os
import time
from contextlib import suppress

from fairlen.verify.equivalence import is_same
from fairlen.verify.worker import end_with_parent

KEPT = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TMPDIR")
WARM_UP = (
    (r"\frac{x+1}{2}", r"\frac{x}{2}+\frac{1}{2}"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    ("x<3", r"(-\infty,3)"),
    ("x^2-3x+2", "(x-1)(x-2)"),
    (r"\sin^2 x", r"1-\cos^2 x"),
    ("y=2x+1", "y-2x=3"),
)
"""Comparisons that fill the parser's tables and sympy's caches, which otherwise cost every new worker a second."""
REAPING = 1.0
"""Seconds at the end for workers that were asked to end."""


def reap() -> None:
    """Wait for workers, which would be zombies for good where the first process of a container reaps no orphans."""
    limit = time.monotonic() + REAPING
    with suppress(ChildProcessError):
        while time.monotonic() < limit:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                time.sleep(0.01)


end_with_parent()
atexit.register(reap)  # workers leave by os._exit and never come here
for name in set(os.environ).difference(KEPT):
    del os.environ[name]
for gold, answer in WARM_UP:
    is_same([gold], answer)
