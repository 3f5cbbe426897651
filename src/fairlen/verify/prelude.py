"""Imports that programs for LiveCodeBench find in place: many use `List`, `inf` or `Counter` without importing them.

LiveCodeBench puts the same line before every program, which takes 35 ms to run. Here only modules are imported of which the
program mentions a name. What it does not mention, in code or in text that it evaluates, it cannot miss.

Source: LiveCodeBench, `lcb_runner/evaluation/testing_util.py`, `import_string`: its modules and their order.
"""

from __future__ import annotations

import builtins
import importlib
import re
from functools import cache

STARRED = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "io", "sys", "json", "builtins", "typing",
)  # fmt: skip
"""In order: later ones win where two have a name in common, and builtins win over all but typing."""

NAMED = tuple(name for name in STARRED if name not in ("builtins", "typing"))
"""Imported by name afterwards, so that `datetime`, `copy` or `random` mean the module, as there."""

RECURSION = 50_000
"""Frames, as there."""

LEAVING = {"exit", "quit"}
"""What the `site` module, which the sandbox's interpreter goes without, adds to the builtins."""

REOPENED = "open = lambda f, *a, _open=open, **k: _open({'/dev/stdin': 0, '/dev/stdout': 1, '/dev/stderr': 2}.get(f, f), *a, **k)"
"""The pipes of a sandboxed program are another user's, so that it cannot open them by name again."""

WORD = re.compile(r"[^\W\d]\w*")
FUTURE = re.compile(r"^from __future__ import .*$", re.MULTILINE)


def with_prelude(code: str) -> str:
    """The program with the imports that it may rely on, on one line before it; `from __future__` stays the first."""
    words = set(WORD.findall(code))
    starred = [f"from {name} import *" for name in STARRED if name == "builtins" or exported(name) & words]
    named = [f"import {name}" for name in NAMED if name in words]
    leave = ["exit = quit = sys.exit"] if LEAVING & words else []
    reopen = [REOPENED] if "/dev/std" in code else []
    future = FUTURE.findall(code)
    rest = FUTURE.sub("", code) if future else code
    lines = [
        *future,
        "; ".join([*starred, *named, "import sys", *leave, *reopen, f"sys.setrecursionlimit({RECURSION})"]),
    ]
    return "\n".join([*lines, rest])


@cache
def exported(name: str) -> frozenset[str]:
    """What a star import brings that `builtins`, imported after, does not bring again."""
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None) or [word for word in vars(module) if not word.startswith("_")]
    return frozenset(names) - (frozenset() if name == "typing" else frozenset(vars(builtins)))
