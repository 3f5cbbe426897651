"""Arithmetic beside a claim, on numbers that its paper prints: each line is computed, nothing else of Python is."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: operator.pow,
    ast.Lt: operator.lt, ast.Gt: operator.gt,
}  # fmt: skip
FUNCTIONS = {"max": max, "min": min}


def holds(line: str) -> bool:
    """Return whether "34.48 - 31.56 = 2.92" is so to the last digit, or "33.19 > 32.92". Raises ValueError for anything else."""
    left, equals, right = line.partition(" = ")
    value = compute(ast.parse(left, mode="eval").body)
    last = 10.0 ** -len(right.partition(".")[2])
    return abs(value - float(right)) <= last / 2 + 1e-9 if equals else value is True


def compute(node: ast.expr) -> Any:
    """Return the value of numbers, + - * / **, one < or >, which counts as 1 where it is so, max and min."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.BinOp(left, kind, right) if type(kind) in OPERATORS:
            return OPERATORS[type(kind)](compute(left), compute(right))
        case ast.Compare(left, [kind], [right]) if type(kind) in OPERATORS:
            return OPERATORS[type(kind)](compute(left), compute(right))
        case ast.Call(ast.Name(name), arguments, []) if name in FUNCTIONS:
            return FUNCTIONS[name](*map(compute, arguments))
    raise ValueError(f"{ast.unparse(node)!r}: give numbers, + - * / **, < or >, max and min")
