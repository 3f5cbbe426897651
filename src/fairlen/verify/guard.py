"""What a worker may not do while it grades: run a text as code, write a file, start a process, open a connection.

Python reports all of this to audit hooks, which cannot be removed. It is a second line of defence, for versions of libraries that
nobody has read: the graders that are known hand no answer to an evaluator. It is no sandbox for code that already runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

HARMLESS = {
    "array.__new__", "builtins.id", "compile", "gc.get_objects", "gc.get_referrers", "import", "marshal.loads",
    "object.__getattr__", "object.__setattr__", "os.listdir", "os.scandir", "sys._getframe", "sys._getframemodulename",
    "sys.unraisablehook",
}  # fmt: skip
"""Events of imports and of computations; what is compiled runs with the event `exec` alone."""
WRITERS = ("/collections/__init__.py", "/dataclasses.py", "/sympy/polys/monomials.py")
"""Modules that run code which they have written: of classes by their fields, of products by the number of variables."""
REFUSED: list[str] = []
"""Events that were refused in this process."""
TRUSTED: list[bool] = []
"""One entry for each `trusted` that is entered."""


def guard() -> None:
    """Raise PermissionError, from now on and in this process, where anything is attempted that is not harmless."""
    sys.addaudithook(refuse)


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise PermissionError for what a guarded process may not do: code may run that is a module's or trusted, files be read."""
    if event == "exec":
        place, caller = arguments[0].co_filename, sys._getframe(1).f_code.co_filename
        is_harmless = os.path.isabs(place) or place.startswith("<frozen ") or bool(TRUSTED) or caller.endswith(WRITERS)
    else:
        is_harmless = event in HARMLESS or (event == "open" and not arguments[2] & (os.O_ACCMODE | os.O_CREAT))
    if not is_harmless:
        REFUSED.append(event)
        raise PermissionError(f"a worker that grades does not do {event}: {str(arguments)[:200]}")


@contextmanager
def trusted() -> Iterator[None]:
    """Within, texts may run as code: those that a package brings, before an answer is seen."""
    TRUSTED.append(True)
    try:
        yield
    finally:
        TRUSTED.pop()
