"""What a worker may not do while it grades: run code that was a text, write a file, start a process, open a connection.

Python reports all of this to audit hooks, and a hook cannot be removed. It is a second line of defence: the graders that workers
call hand no answer to an evaluator, and one that did, of a new version of a library, is stopped before its first instruction.
It is no sandbox for code that already runs; programs run in `bubblewrap`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

HARMLESS = {
    "array.__new__", "builtins.id", "compile", "gc.get_objects", "gc.get_referrers", "import", "marshal.loads", "object.__getattr__",
    "object.__setattr__", "os.listdir", "os.scandir", "sys._getframe", "sys._getframemodulename", "sys.unraisablehook",
}  # fmt: skip
"""Events of imports, and of computations. What is compiled runs only with the event `exec`."""
WRITERS = tuple(os.path.join(*parts) for parts in (("", "collections", "__init__.py"), ("", "dataclasses.py"),
                                                  ("sympy", "polys", "monomials.py")))  # fmt: skip
"""Modules that write code of their own and run it: classes by their fields, products of powers by the number of variables."""
MAY_EXECUTE: list[bool] = []
"""One entry for each `trusted` that is entered."""
REFUSED: list[str] = []
"""Events that were refused in this process."""


def is_harmless(event: str, arguments: tuple[Any, ...]) -> bool:
    """Return whether a guarded process may do this."""
    if event == "exec":
        place, caller = arguments[0].co_filename, sys._getframe(2).f_code.co_filename
        is_module = os.path.isabs(place) or place.startswith("<frozen ")
        return is_module or bool(MAY_EXECUTE) or caller.endswith(WRITERS)
    if event == "open":
        return not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    return event in HARMLESS


def guard() -> None:
    """Refuse, from now on and in this process, whatever is not harmless: PermissionError where it is attempted."""

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if not is_harmless(event, arguments):
            REFUSED.append(event)
            raise PermissionError(f"a worker that grades does not do {event}: {str(arguments)[:200]}")

    sys.addaudithook(refuse)


@contextmanager
def trusted() -> Iterator[None]:
    """Within, texts may run as code: those that a package brings, before an answer is seen."""
    MAY_EXECUTE.append(True)
    try:
        yield
    finally:
        MAY_EXECUTE.pop()
