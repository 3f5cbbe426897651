"""Formulas are read as sympy reads them, and nothing else is."""

import pytest
import sympy
from loops import over

from fairlen.verify.formula import read_formula


def test_formulas_are_read_as_sympy_reads_them():
    """Sums, powers, factorials, functions, decimals: the same expression as the evaluator's."""
    x = sympy.Symbol("x")
    for text in (
        "17*10 + 69 - 28 + 96", "3*x*atan(x) - 3*log(x**2 + 1)/2 + C", "sqrt(16)*3!/1.5", "exp(-x)*sin(2*x)", "4!!",
        "-x**2/2 + .5", "(x + 1)*(x - 1)", "7//2", "Rational(1, 3)*x", "binomial(5, 2)", "pi*x + E**x", "2^3", "1e3", "acosh(x)",
        "7/3*3", "Abs(x)", "ab*x",
    ):  # fmt: skip
        names = {"x": x, "C": sympy.Symbol("C")}
        expected = sympy.sympify(text, {**names, "ab": sympy.Symbol("ab")}, convert_xor=False)
        assert read_formula(text, names) == expected, text


@over(
    "text",
    ["x.real", "x[0]", "[x]", "[x for x in (1, 2)]", "lambda x: x", "(x := 1)", "sin(x=1)", "f'{x}'", "x if x else 1", "'x'",
     "sin('x')", "open(1)", "eval(1)", "S(1)", "N(1)", "Symbol(x)", "Function('f')(x)", "x < 1", "not x", "{x}", "x; x", "*x",
     "Integral(x, x)"],
)  # fmt: skip
def test_what_is_no_formula_is_refused(text):
    with pytest.raises((ValueError, KeyError, TypeError, SyntaxError)):
        read_formula(text)
