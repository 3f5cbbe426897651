"""Programs against tests of a name that Python or the prelude has as well: a program is correct where it binds the name itself.

Written before the code that grades them. A definition, an assignment, an import and a base class are of the program; what the
prelude imports for it is not.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Named:
    code: str
    is_correct: bool


CALLS: dict[str, tuple[str, str]] = {
    "sum": ("[1, 2, 3]", "6"), "gcd": ("12\n18", "6"), "median": ("[3, 1, 2]", "2"), "sorted": ("[2, 1]", "[1, 2]"),
    "max": ("[1, 5]", "5"), "sqrt": ("9", "3"), "factorial": ("5", "120"), "comb": ("5\n2", "10"), "lcm": ("4\n6", "12"),
    "reduce": ("[1]\n[2]", "3"), "bisect_left": ("[1, 3]\n3", "1"), "prod": ("[2, 3]", "6"), "deepcopy": ("[[1]]", "[[1]]"),
    "count": ("1", "0"), "mode": ("[1, 1, 2]", "1"), "exit": ("0", "0"), "solve": ("[2, 1]", "[1, 2]"), "add": ("1\n2", "3"),
    "List": ("[1]", "[1]"), "dumps": ("[1]", '"[1]"'), "math": ("1", "1"), "loads": ('"[1]"', "[1]"), "heappop": ("[1, 2]", "1"),
}  # fmt: skip
"""The arguments and the result of each name, as JSON."""

PROGRAMS: list[tuple[str, Named]] = [
    # nothing is defined
    ("sum", Named("pass", False)),
    ("gcd", Named("pass", False)),
    ("median", Named("pass", False)),
    ("sorted", Named("# sorted([2, 1]) is there already", False)),
    ("max", Named("def maximum(values): return max(values)", False)),
    ("sqrt", Named("import math\ndef root(x): return math.sqrt(x)", False)),
    ("factorial", Named("print(factorial(5))", False)),
    ("comb", Named("x = comb(5, 2)", False)),
    ("lcm", Named("'''lcm'''", False)),
    ("bisect_left", Named("class Solution:\n    def search(self, a, x): return bisect_left(a, x)", False)),
    ("prod", Named("class Solution: pass", False)),
    ("deepcopy", Named("import copy", False)),
    ("mode", Named("import statistics\nanswer = statistics.mode", False)),
    ("dumps", Named("from __future__ import annotations", False)),
    ("loads", Named("if False:\n    def loads(text): return json.loads(text)", False)),
    ("heappop", Named("def solve(a):\n    def heappop(a): return a[0]\n    return heappop(a)", False)),
    ("add", Named("def add_numbers(a, b): return add(a, b)", False)),
    ("gcd", Named("del gcd", False)),
    ("gcd", Named("from math import gcd\ndel gcd", False)),
    ("sum", Named("global sum", False)),
    # the program defines it, and may use what the prelude has
    ("sum", Named("def sum(values):\n    total = 0\n    for value in values: total += value\n    return total", True)),
    ("gcd", Named("def gcd(a, b):\n    while b: a, b = b, a % b\n    return a", True)),
    ("gcd", Named("class Solution:\n    def gcd(self, a: int, b: int) -> int: return gcd(a, b)", True)),
    ("median", Named("def median(values): return sorted(values)[len(values) // 2]", True)),
    ("max", Named("class Solution:\n    def max(self, values: List[int]) -> int: return max(values)", True)),
    ("sqrt", Named("def sqrt(x): return isqrt(x)", True)),
    ("factorial", Named("factorial = lambda n: reduce(lambda a, b: a * b, range(1, n + 1), 1)", True)),
    ("comb", Named("@cache\ndef comb(n, k): return 1 if k in (0, n) else comb(n - 1, k - 1) + comb(n - 1, k)", True)),
    ("lcm", Named("def lcm(a, b): return a * b // gcd(a, b)", True)),
    ("reduce", Named("class Solution:\n    def reduce(self, a, b): return reduce(lambda x, y: x + y, a + b)", True)),
    ("prod", Named("prod = partial(reduce, lambda a, b: a * b)", True)),
    ("count", Named("class Base:\n    def count(self, x): return x - x\nclass Solution(Base): pass", True)),
    ("exit", Named("def exit(code): return code", True)),
    ("List", Named("def List(values: 'List[int]') -> list: return [*values]", True)),
    ("math", Named("import math as m\ndef math(x): return m.floor(x)", True)),
    # an import and an assignment bind a name as a definition does
    ("gcd", Named("from math import gcd", True)),
    ("median", Named("from statistics import median", True)),
    ("solve", Named("solve = sorted", True)),
    ("add", Named("from operator import add", True)),
    ("mode", Named("import statistics\nmode = statistics.mode", True)),
    ("sorted", Named("from __future__ import annotations\nsorted = sorted", True)),
    ("sum", Named("for sum in (sum,): pass", True)),
]
