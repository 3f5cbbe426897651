"""Rules of the tests themselves, so that they run at the same time, in any order, on a machine that is busy."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from loops import over

TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("*.py"))

WALL = {"time", "monotonic", "perf_counter"}
"""Functions of `time` that go on while the machine does something else; `process_time` and `thread_time` do not."""
PATIENCE = 30.0
"""The fewest seconds after which a test may say that something took too long, by the wall clock."""


Names = frozenset[str]


def reads_wall(node: ast.AST, names: Names) -> bool:
    """Whether a name that holds or returns wall time, a call that reads it, or a field called seconds occurs."""
    return any(
        (isinstance(part, ast.Name) and part.id in names)
        or (isinstance(part, ast.Attribute) and part.attr == "seconds")
        or (isinstance(part, ast.Call) and ast.unparse(part.func) in {f"time.{name}" for name in WALL})
        for part in ast.walk(node)
    )


def find_names(function: ast.AST, names: Names) -> Names:
    """What holds wall time in a function, beside `names`."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and reads_wall(node.value, names):
            names |= {part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    return names


def find_clocks(functions: list[ast.AST]) -> Names:
    """Functions that return wall time."""
    return frozenset(
        function.name
        for function in functions
        if any(
            isinstance(node, ast.Return) and node.value and reads_wall(node.value, find_names(function, frozenset()))
            for node in ast.walk(function)
        )
    )


def find_constants(tree: ast.Module) -> dict[str, float]:
    """Numbers with a name of the module."""
    return {
        ast.unparse(node.targets[0]): node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }


def find_bound(node: ast.expr, constants: dict[str, float]) -> float | None:
    """The value of arithmetic with plain numbers and constants of the module."""
    known = (ast.Constant, ast.BinOp, ast.operator, ast.Name, ast.Load)
    if any(not isinstance(part, known) for part in ast.walk(node)):
        return None
    if {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} - set(constants):
        return None
    value = eval(ast.unparse(node), dict(constants))
    return value if isinstance(value, (int, float)) else None


def find_hasty(source: str) -> list[tuple[int, str]]:
    """(line, assertion) of everything that says that less than PATIENCE seconds of wall time went by."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    clocks, constants = find_clocks(functions), find_constants(tree)
    return [
        (node.lineno, ast.unparse(node))
        for function in functions
        for names in [find_names(function, clocks)]
        for node in ast.walk(function)
        if isinstance(node, ast.Assert)
        for part in ast.walk(node)
        if isinstance(part, ast.Compare) and is_hasty(part, names, constants)
    ]


def is_hasty(node: ast.Compare, names: Names, constants: dict[str, float]) -> bool:
    """Whether a comparison bounds wall time from above by a number below PATIENCE."""
    sides = [node.left, *node.comparators]
    for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
        if isinstance(operator, (ast.Gt, ast.GtE)):
            left, right = right, left
        if isinstance(operator, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) and reads_wall(left, names):
            bound = find_bound(right, constants)
            if bound is not None and bound < PATIENCE:
                return True
    return False


@over("path", FILES)
def test_nobody_is_in_a_hurry(path):
    """A machine with other work may take seconds over anything: how long is asked of the processor's clock, or generously."""
    assert find_hasty(path.read_text()) == []


def test_haste_is_seen():
    module = "LIMIT = 9.5\ndef measure():\n    start = time.monotonic()\n    work()\n    return 1, time.monotonic() - start\n"
    lines = "begun = time.time()\n    took, (code, there) = time.time() - begun, measure()\n    assert "
    for hasty in (
        "took < 0.2",
        "0.1 < took <= 2 * 5",
        "1 and 29.9 > took",
        "verdict.seconds <= 2.0 + 0.5",
        "there < 3 * LIMIT",
    ):
        assert len(find_hasty(f"{module}def test():\n    {lines}{hasty}")) == 1, hasty
    for patient in (
        "took >= 0.2",
        "took < 60",
        "took < late",
        "other < 1",
        "verdict.seconds < 3 * 20",
        "there < 4 * LIMIT",
    ):
        assert find_hasty(f"{module}def test():\n    {lines}{patient}") == [], patient


def test_ports_are_given_by_the_system():
    bound = re.compile(r"(?:Server|bind|listen|create_server)\(\(?[^()\n]*,\s*[1-9]\d{2,4}\b")
    assert bound.search('HTTPServer(("127.0.0.1", 8080), Handler)') and not bound.search('HTTPServer(("", 0), H)')
    probed = re.compile(r"\.getsockname\(\)\[1\]")  # a port that is let go of belongs to whoever is first
    assert [str(path) for path in FILES if path != Path(__file__) and bound.search(path.read_text())] == []
    assert [str(path) for path in FILES if path != Path(__file__) and probed.search(path.read_text())] == []


def test_nobody_imports_a_conftest():
    """There are several of that name; which one it is depends on what else is run."""
    named = re.compile(r"^(?:from|import) conftest\b", re.M)
    assert [str(path) for path in FILES if named.search(path.read_text())] == []


def collect(seed: str) -> list[str]:
    """The ids of all tests, collected by a process of its own with this seed of Python's hashes."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", str(TESTS)],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONHASHSEED": seed}, cwd=TESTS.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    return sorted(line for line in done.stdout.splitlines() if "::" in line)


@pytest.mark.slow
def test_ids_are_the_same_in_another_process_at_another_time():
    """pytest-xdist refuses to run where they differ. Hashes, addresses and the second are others in each process."""
    first, second = collect("1"), collect("2")
    assert len(first) > 3000
    assert set(first) ^ set(second) == set()
