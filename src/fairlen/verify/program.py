"""Verdicts on programs: the code of a response runs on every test, and is correct where all outputs are.

Expected outputs stay here. A sandbox that fails says nothing about the program: the test is run once more, then it is an `error`.
"""

from __future__ import annotations

import asyncio
import builtins
import importlib
import re
import secrets
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache, partial

from fairlen.rollouts import Status
from fairlen.verify import outputs
from fairlen.verify.answer import extract_code
from fairlen.verify.execution import Execution, Limits
from fairlen.verify.outputs import OutputKind, is_same
from fairlen.verify.process import Sandbox

STARRED = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "io", "sys", "json", "builtins", "typing",
)  # fmt: skip
"""In order: later ones win where two have a name in common, and builtins win over all but typing."""
NAMED = tuple(name for name in STARRED if name not in ("builtins", "typing"))
"""Imported by name afterwards, so that `datetime`, `copy` or `random` mean the module, as there."""
REOPENED = "open = lambda f, *a, _open=open, **k: _open({'/dev/stdin': 0, '/dev/stdout': 1, '/dev/stderr': 2}.get(f, f), *a, **k)"
"""Standard output is a file, from which opening it by name again would take what is in it."""
WORD = re.compile(r"[^\W\d]\w*")
FUTURE = re.compile(r"^from __future__ import (?:\([^)]*\)|.*)$", re.MULTILINE)


def with_prelude(code: str) -> str:
    """Imports stand on one line before the program; `from __future__` stays the first."""
    return "\n".join([*FUTURE.findall(code), write_prelude(code), FUTURE.sub("", code)])


def write_prelude(code: str) -> str:
    words = set(WORD.findall(code))
    starred = [f"from {name} import *" for name in STARRED if name == "builtins" or exported(name) & words]
    named = [f"import {name}" for name in NAMED if name in words]
    leave = ["exit = quit = sys.exit"] if {"exit", "quit"} & words else []  # which are from `site`, and it is not there
    reopen = [REOPENED] if "/dev/std" in code else []
    return "; ".join([*starred, *named, "import sys", *leave, *reopen, "sys.setrecursionlimit(50_000)"])


@cache
def exported(name: str) -> frozenset[str]:
    """The names of a star import that a later one of `builtins` does not bring again."""
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None) or [word for word in vars(module) if not word.startswith("_")]
    return frozenset(names) - (frozenset() if name == "typing" else frozenset(vars(builtins)))


DRIVER = '''\
import builtins, importlib.util, json, os, sys
for name, text in (("solution", CODE), ("prelude", PRELUDE)):
    with open(f"{name}.py", "w", encoding="utf-8") as file:
        file.write(text)
word, _, lines = sys.stdin.read().partition("\\n")
arguments = [json.loads(line) for line in lines.strip().split("\\n")] if lines.strip() else []
channel = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
sys.path.insert(0, os.getcwd())

def plain(value):
    """Numbers of other types as numbers; JSON has no others, and no sets."""
    if hasattr(value, "tolist"):
        return value.tolist()
    for kind in ("__index__", "__float__"):
        if hasattr(value, kind):
            return getattr(value, kind)()
    raise TypeError(f"{type(value).__name__} is not JSON")

def main():
    """The program reads the names of the prelude as built-in ones, so that all that its module holds is its own."""
    import prelude
    spec = importlib.util.find_spec("solution")
    solution = sys.modules["solution"] = importlib.util.module_from_spec(spec)
    solution.__builtins__ = {**vars(builtins), **vars(prelude)}
    spec.loader.exec_module(solution)
    found = getattr(solution, OWNER, None) if OWNER else None
    call = getattr(found(), NAME) if hasattr(found, NAME) else getattr(solution, NAME)
    payload = json.dumps(call(*arguments), default=plain).encode()
    sys.stdout.flush()
    channel.write(b"%s %d\\n" % (word.encode(), len(payload)) + payload)
    channel.flush()
    os._exit(0)  # no exit handlers, no waiting for threads

main()
'''


def build_driver(code: str, name: str, owner: str = "Solution") -> str:
    """Return the whole program, which imports `code` and calls a function that it defines.

    Args:
        code: The response's program; the driver keeps it as text.
        name: The function, or a method of the class `owner`.
        owner: Class whose method is called if it has one of that name; empty for a function of the module only.
    """
    clean = code.encode("utf-8", "replace").decode()
    values = {"CODE": ascii(clean), "NAME": ascii(name), "OWNER": ascii(owner), "PRELUDE": ascii(write_prelude(clean))}
    return re.sub(r"\b(CODE|NAME|OWNER|PRELUDE)\b", lambda found: values[found[0]], DRIVER)


def read_frame(stdout: bytes, word: str) -> bytes | None:
    """The JSON that the driver wrote after the call; None where there is none, or anything beside it."""
    head, _, payload = stdout.partition(b"\n")
    return payload if head == b"%s %d" % (word.encode(), len(payload)) else None


SHORT = 1 << 16  # bytes and characters of both sides that are compared at once
MEMORY, MAX_SECONDS = 1 << 30, 60.0  # bytes and seconds of a comparison in a process; what takes more differs


async def agrees(kind: OutputKind, given: bytes, expected: str) -> bool:
    """Raises OSError where the process that compares long outputs does not run."""
    if len(given) + len(expected) <= SHORT:
        return is_same(kind, given, expected.encode("utf-8", "replace"))
    await asyncio.sleep(0)  # each of these steps copies megabytes
    wanted = expected.encode("utf-8", "replace")
    await asyncio.sleep(0)
    if kind == "text" and given.strip() == wanted.strip():
        return True
    await asyncio.sleep(0)
    command = [sys.executable, "-I", "-S", outputs.__file__, kind, str(len(given)), str(MEMORY)]
    both = given + wanted
    try:
        done = await asyncio.to_thread(
            subprocess.run, command, input=both, capture_output=True, timeout=MAX_SECONDS, check=True
        )
    except subprocess.TimeoutExpired:
        return False
    return done.stdout == b"same\n"


MAX_PROGRAM = 1 << 16  # characters, as on Codeforces; what is longer is incorrect
LIMITS = Limits()


@dataclass(frozen=True)
class ProgramTests:
    """Tests that a program has to pass, all of them."""

    cases: tuple[tuple[str, str], ...]
    """Input and expected output of each test; of a function, one JSON value a line and the JSON of its result."""
    function: str = ""
    """The function or method of class Solution that is called; empty where a program reads stdin and writes stdout."""
    begun: str = ""
    """Code before the response's, such as a signature: a body continues it, a whole function takes its place."""
    check: str = field(default="", repr=False)
    """Code after the response's, whose `check` is called with `function`. It runs in the same process as the response's program,
    which can make it pass: see `CAN_BE_CHEATED`."""


CAN_BE_CHEATED = (
    "tests that are code of the data set (HumanEval's `check`) run in the same process as the response's program, which can make "
    "them pass without solving the problem"
)
"""What the sandbox does not prevent: it contains a program, but cannot keep it honest towards code that runs next to it."""


async def grade_program(sandbox: Sandbox, text: str, tests: ProgramTests, starts_inside: bool = False) -> Status:
    code = extract_code(text, starts_inside, tests.function if tests.begun else "")
    return "no_answer" if code is None else await grade_code(sandbox, code, tests)


async def grade_code(sandbox: Sandbox, code: str, tests: ProgramTests, limits: Limits = LIMITS) -> Status:
    """Run a program on each test until one fails. Raises ValueError without a test."""
    if not tests.cases:
        raise ValueError("cases=(): a program without tests would be correct whatever it does; give at least one")
    if len(code) > MAX_PROGRAM:
        return "incorrect"
    function = tests.function
    if tests.begun:
        function, call = "run_check", f"def run_check(): check({function}); return True"
        code = "\n".join([*FUTURE.findall(code), tests.begun + FUTURE.sub("", code), tests.check, call])
    owner = "" if tests.begun else "Solution"  # or a class of the response could have a `run_check` of its own
    program = build_driver(code, function, owner) if function else with_prelude(code)
    for given, expected in tests.cases:
        word = secrets.token_hex(16) if function else ""
        stdin = f"{word}\n{given}" if function else given
        if (status := await run_test(sandbox, program, stdin, expected, word, limits)) != "correct":
            return status
    return "correct"


async def run_test(sandbox: Sandbox, program: str, stdin: str, expected: str, word: str, limits: Limits) -> Status:
    """Run a program once; `word` begins the output of the driver of a function, and is empty for others."""
    run = partial(sandbox.run, program, stdin.encode("utf-8", "replace"), limits)
    execution = await run()
    if execution.status == "infrastructure":
        execution = await run()
    if execution.status == "infrastructure":
        return "error"
    try:
        return "correct" if await is_expected(execution, expected, word) else "incorrect"
    except Exception:  # a comparison that does not run says nothing about the program, and ends no training
        return "error"


async def is_expected(execution: Execution, expected: str, word: str) -> bool:
    if execution.status != "ok":
        return False
    if not word:
        return await agrees("text", execution.stdout, expected)
    value = read_frame(execution.stdout, word)
    return value is not None and await agrees("value", value, expected)
