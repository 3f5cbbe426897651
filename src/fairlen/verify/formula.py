"""Formulas as sympy's expressions, read without an evaluator.

sympy's `parse_expr` writes a text as an expression of Python's and evaluates it. Here that expression is walked instead: numbers,
names, operators and the functions below; an attribute, a subscript, a comprehension or any other function is an error.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from typing import Any

import sympy
from sympy.parsing import sympy_parser

TRIGONOMETRIC = ("sin", "cos", "tan", "cot", "sec", "csc")
FUNCTIONS = (*(f"{a}{name}{h}" for name in TRIGONOMETRIC for a in ("", "a") for h in ("", "h")), "exp", "log", "ln", "sqrt",
             "Abs", "factorial", "factorial2", "binomial", "Rational", "erf", "erfc", "Ei", "Si", "Ci")  # fmt: skip
NAMES: dict[str, Any] = {name: getattr(sympy, name) for name in (*FUNCTIONS, "pi", "E", "I", "oo")} | {"abs": sympy.Abs}
LITERALS: dict[str, Any] = {"Integer": sympy.Integer, "Float": sympy.Float, "Symbol": sympy.Symbol}
"""Constructors that sympy writes around numbers and unknown names; none of them evaluates a text."""
OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: operator.pow,
    ast.FloorDiv: operator.floordiv, ast.BitXor: operator.xor, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
    ast.UAdd: operator.pos, ast.USub: operator.neg,
}  # fmt: skip


def replace_evaluator() -> None:
    """Let everything in this process that makes an expression of a text, `sympy.sympify` and numbers too, read it here."""
    sympy_parser.parse_expr = sympy.parse_expr = read_formula


def read_formula(
    text: str,
    local_dict: Mapping[str, Any] | None = None,
    transformations: Any = sympy_parser.standard_transformations,
    **_: Any,
) -> Any:
    """The expression that `sympy.parse_expr` returns for a formula. Raises an exception for any other text."""
    own = dict(local_dict or {})
    code = sympy_parser.stringify_expr(text, own, NAMES | LITERALS, transformations)
    return build(ast.parse(code.strip(), mode="eval").body, NAMES | own)


def build(node: ast.AST, names: Mapping[str, Any]) -> Any:
    """Raises ValueError for nodes of other kinds, KeyError for other names."""
    match node:
        case ast.Call(ast.Name(name), [ast.Constant(value)], []) if name in LITERALS:
            return LITERALS[name](value)
        case ast.Call(ast.Name(name), arguments, []):
            return names[name](*(build(argument, names) for argument in arguments))
        case ast.Name(name):
            return names[name]
        case ast.BinOp(left, kind, right):
            return OPERATORS[type(kind)](build(left, names), build(right, names))
        case ast.UnaryOp(kind, operand):
            return OPERATORS[type(kind)](build(operand, names))
    raise ValueError(f"{type(node).__name__} is no part of a formula")
