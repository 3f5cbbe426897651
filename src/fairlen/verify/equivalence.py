r"""Whether two mathematical answers are the same, by algebra: Math-Verify on sympy. For a worker, which may be killed.

Each comparison is of one expression with one expression, so that no part of an answer can pass for the whole (Math-Verify's issue
47). Order, brackets, units, bases and words are settled before it is asked, and tiny decimals are not rounded to 0.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import isclose
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, grader, parse, verify
from sympy import Expr, Float, I, Integral, Limit, Number, Product, Rational, Sum, simplify

from fairlen.rollouts import Status
from fairlen.verify import families, structure
from fairlen.verify.answer import match_exactly
from fairlen.verify.formula import replace_evaluator
from fairlen.verify.notation import ANGLE, LETTER_UNIT, Reading, agree, read
from fairlen.verify.typesetting import clean, write_fraction
from fairlen.verify.units import parse_unit

WARM_UP = (
    (r"\frac{x+1}{2}", r"\frac{x}{2}+\frac{1}{2}"), (r"\sqrt{8}", r"2\sqrt{2}"), ("x<3", r"(-\infty,3)"),
    ("x^2-3x+2", "(x-1)(x-2)"), (r"\sin^2 x", r"1-\cos^2 x"), ("y=2x+1", "y-2x=3"),
)  # fmt: skip
"""Comparisons that fill the parser's tables and sympy's caches, which otherwise cost every new worker a second."""
MAX_ITEMS = 64  # items of one list; matching compares all with all
LOOSE = re.compile(
    r"\\(?:cup|cap|le|leq|ge|geq|lt|gt|ne|neq|in|setminus|mathbb|begin|pm|emptyset|varnothing)(?![A-Za-z])|[<>≤≥∪]"
)
"""Marks expressions that may be another way to write a set, interval or vector."""
DIGITS, MAX_DIGITS = 15, 1000  # significant digits of a true difference, and most digits that are computed for it
CLOSE = 1e-5  # relative error of a rounded decimal; Math-Verify's own bound is 5e-7 absolute, which lets 0 be 1e-7

# Units and boxes are ours: Math-Verify takes a trailing m, c, t or x for a unit even where it is a variable.
NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
LATEX = [LatexExtractionConfig(boxed_match_priority=-1, normalization_config=NORMALIZATION)]
logging.getLogger("math_verify").setLevel(logging.ERROR)


def is_same(golds: Sequence[str], answer: str, tolerance: float = 0.0, unevaluated: bool = False) -> bool:
    """Whether `answer` gives all of `golds` and nothing else; an unreadable answer is incorrect. `unevaluated`: `5!` is an answer
    where the reference is 120. Raises ValueError for an unreadable reference."""
    if not unevaluated and structure.is_left_open(golds, answer):
        return False
    *golds, answer = tell_cases([*golds, answer])
    if len(golds) == 1:
        return same(golds[0], answer, tolerance)
    wanted: list[str] = []
    for gold in golds:
        found = structure.take_apart(gold)
        wanted += found.items if found.kind in ("list", "set") and not read(gold).number else (gold,)
    return same_structure(structure.Structure("list", tuple(wanted)), structure.take_apart(answer), tolerance)


SPARE = ("kappa", "iota", "xi", "zeta", "tau", "upsilon", "nu", "eta", "chi", "psi", "sigma", "rho")


def tell_cases(texts: Sequence[str]) -> list[str]:
    """Rename, in all texts, the capitals of letters that one text has in both cases, which Math-Verify would take as one."""
    capitals: set[str] = set()
    for text in texts:
        reading = read(text)
        if not (reading.words or reading.number or reading.choice or reading.option or reading.base):
            found = set(structure.TOKEN.findall(text))
            capitals |= {one for one in found if len(one) == 1 and one.isupper() and one.lower() in found}
    spare = [name for name in SPARE if not any("\\" + name in text for text in texts)]
    if not capitals or len(capitals) > len(spare):
        return list(texts)
    written = {letter: rf"\{name} " for letter, name in zip(sorted(capitals), spare, strict=False)}
    return [structure.TOKEN.sub(lambda found: written.get(found.group(), found.group()), text) for text in texts]


def same(gold: str, answer: str, tolerance: float) -> bool:
    """Return whether one answer is one reference."""
    exact = match_exactly(answer, gold, tolerance)
    if exact is not None:
        return exact
    gold, answer = families.write_system(clean(gold)), families.write_system(clean(answer))
    verdict = same_family(gold, answer, tolerance)
    if verdict is not None:
        return verdict
    gold, answer = structure.write_range(gold), structure.write_range(answer)
    if "," not in answer and read(gold).number:
        gold = gold.replace(",", "")
    if r"\binom" in gold + answer:
        gold, answer = write_choices(gold), write_choices(answer)
    answer = structure.rename_bound(gold, answer)
    text, value, sides = structure.read_equation(answer, gold)
    if "=" not in text and len(structure.sides_of(gold)) == 2:
        if is_relation(gold):
            return False
        gold = structure.strip_name(gold)  # of which algebra may not read the name
    exact = None if text == answer else match_exactly(text, gold, tolerance)
    if not (same_whole(gold, text, tolerance) if exact is None else exact):
        return False
    try:
        return all(same(value, side, tolerance) for side in sides)
    except ValueError:  # a side that cannot be read
        return False


def same_family(gold: str, answer: str, tolerance: float) -> bool | None:
    """Return whether two answers that state many values are the same; None if the reference states one."""
    verdict = families.same_congruence(gold, answer)
    if verdict is None:
        verdict = families.same_cases(gold, answer, lambda left, right: same(left, right, tolerance))
    if verdict is None:
        verdict = families.same_family(gold, answer, same_progression)
    return verdict


def same_progression(gold: str, answer: str, parameter: str, is_two_sided: bool) -> bool:
    """Return whether two expressions have the same values over all whole numbers in place of the parameter.

    a + bk and c + dk do if b = d or b = -d, and if b divides a - c.
    """
    if ("circ" in gold) != ("circ" in answer):
        return False
    wanted, given = (parse_latex(write_plainly(DEGREE_SIGN.sub("", text))) for text in (gold, answer))
    if not wanted or not given:
        return False
    left, right = wanted[0], given[0]
    if not is_two_sided:
        return are_equal(wanted, given)
    letter = next((symbol for symbol in left.free_symbols if symbol.name == parameter), None)
    if letter is None:
        return False
    step, other_step = (simplify(expression.diff(letter)) for expression in (left, right))
    if letter in step.free_symbols or letter in other_step.free_symbols or step == 0:
        return are_equal(wanted, given)
    if simplify(step - other_step) != 0 and simplify(step + other_step) != 0:
        return False
    shift = simplify((left.subs(letter, 0) - right.subs(letter, 0)) / step)
    return bool(shift.is_Integer)


DEGREE_SIGN = re.compile(r" ?\^ ?(?:\\circ(?![A-Za-z])|\{ ?\\circ ?\})")


def is_relation(gold: str) -> bool:
    """Return whether an equation relates several things, such as `x+y=3`, and does not name one."""
    left = structure.sides_of(gold)[0]
    return bool(structure.letters(left)) and len(structure.split_signs(left)) > 1


CHOICES = (
    re.compile(r"(?<![A-Za-z\\])C ?\( ?(\w+) ?, ?(\w+) ?\)"),
    re.compile(r"(?<![A-Za-z\\])C ?_ ?\{? ?(\w+) ?\}? ?\^ ?\{? ?(\w+) ?\}?"),
    re.compile(r"(?:\{ ?\})?[_^] ?\{? ?(\w+) ?\}? ?C ?_ ?\{? ?(\w+) ?\}?"),
)


def write_choices(text: str) -> str:
    """Return `C(9,2)`, `C_9^2` and `_9C_2` as binomial coefficients, which they are beside one."""
    for pattern in CHOICES:
        text = pattern.sub(r"\\binom{\1}{\2}", text)
    return text


def same_whole(gold: str, answer: str, tolerance: float) -> bool:
    wanted, given = structure.take_apart(gold), structure.take_apart(answer)
    if "one" not in (wanted.kind, given.kind):
        return same_structure(wanted, given, tolerance)
    if wanted.kind != given.kind:  # a set of one thing is that thing, and an inequality may be an interval
        several, single = (wanted, answer) if given.kind == "one" else (given, gold)
        if several.items == (r"\emptyset",):
            return False  # the set of the empty set is not empty
        if several.kind in ("list", "set") and len(several.items) == 1:
            return same(wanted.items[0], given.items[0], tolerance)
        if not LOOSE.search(single):
            return False
    return same_expression(gold, answer, tolerance)


def same_structure(wanted: structure.Structure, given: structure.Structure, tolerance: float) -> bool:
    if len(wanted.items) > MAX_ITEMS:
        raise ValueError(f"{len(wanted.items)} items in the reference: at most {MAX_ITEMS} are compared")
    kinds = {wanted.kind, given.kind}
    if kinds <= {"list", "set"} and len(wanted.names) <= 1:
        given = structure.without_indices(given, wanted.names)
    if len(given.items) > MAX_ITEMS or kinds == {"tuple", "set"}:
        return False  # of many items no error either: who writes more and more would be without a verdict
    fewest, most = sorted((len(wanted.names), len(given.names)))
    is_named_once = fewest == 0 and most > 1  # of `x=1, y=2` against `1, 2` only the order says which is which
    if not ("tuple" in kinds or is_named_once):
        return covers(wanted.items, given.items, tolerance, (wanted.kind, given.kind).count("set"))
    # two items in brackets may be an interval; a bare list stands for a tuple in parentheses
    if {wanted.brackets, given.brackets} == {structure.ROW, structure.COLUMN}:
        return False
    brackets, others = (structure.BRACKETS.get(one.brackets, one.brackets) or "()" for one in (wanted, given))
    differ_in_brackets = len(wanted.items) == 2 and brackets != others
    if differ_in_brackets or len(wanted.items) != len(given.items):
        return False
    items = given.items
    named = dict(zip(given.order, items, strict=False))
    if len(named) == len(items) == len(given.order) and sorted(wanted.order) == sorted(given.order):
        items = [named[name] for name in wanted.order]  # `(y,x) = (2,1)` is `(x,y) = (1,2)`
    return all(same(gold, item, tolerance) for gold, item in zip(wanted.items, items, strict=True))


def covers(golds: Sequence[str], items: Sequence[str], tolerance: float, sets: int) -> bool:
    """Whether every reference is given and everything given is a reference; `sets` of the two stand in braces. Items of lists
    count as often as they occur, those of sets once; a set that repeats nothing may stand for a list that does."""
    found = [[same(gold, item, tolerance) for item in items] for gold in golds]
    if bool(golds) != bool(items) or not (all(map(any, found)) and all(map(any, zip(*found, strict=True)))):
        return False
    repeats = any(sum(row) > 1 for row in found) and any(sum(column) > 1 for column in zip(*found, strict=True))
    if sets == 2 or (sets == 1 and not repeats):
        return True
    free = set(range(len(items)))
    for row in sorted(found, key=sum):  # each takes an item of its own, those with the least choice first
        fitting = [item for item in free if row[item]]
        free -= set(fitting[:1])
        if not fitting:
            return False
    return not free


def same_expression(gold: str, answer: str, tolerance: float) -> bool:
    wanted, given = read(gold), read(answer)
    if not agree(wanted, given) or (wanted.base and given.base and wanted.text != given.text):
        return False
    if wanted.words and (given.words or r"\text" in gold):
        return wanted.words == given.words or structure.strip_name(given.body).strip().lower() == wanted.words
    if AS_WRITTEN.search(gold):
        left, right = (MID.sub("|", reading.text).replace(" ", "") for reading in (wanted, given))
        return left == right
    gold = write_plainly(without_letter_unit(wanted, given))
    answer = write_plainly(without_letter_unit(given, wanted))
    if says_nothing(answer) or ("=" not in gold and is_equation_to_zero(answer)):
        return False
    left, right = (PERCENT.sub("", text) for text in (gold, answer))
    pairs = [(left, right)]
    if (left == gold) != (right == answer):  # where just one is a percentage also a hundredth of it
        pairs.append((left, rf"\frac{{{right}}}{{100}}") if left == gold else (rf"\frac{{{left}}}{{100}}", right))
    if "|" in gold + answer and COMPARISON.search(gold) and COMPARISON.search(answer):  # `|x| < 2` is an interval
        pairs.append((structure.read_inequality(left)[1] or left, structure.read_inequality(right)[1] or right))
    return any(same_algebra(left, right, tolerance) for left, right in pairs)


PERCENT = re.compile(r"\s*\\?%\s*$")
COMPARISON = re.compile(r"[<>≤≥]|\\(?:le|leq|ge|geq|lt|gt|ne|neq)(?![A-Za-z])")
ONE_OF = re.compile(r"(?:^|(?<=[-+(=]))\s?1 ?(?=[A-Za-z])(?!e[-+\d])")
IN_DEGREES = re.compile(r"(\d+(?:\.\d+)?) ?\^ ?(?:\\circ(?![A-Za-z])|\{ ?\\circ ?\})")
AS_WRITTEN = re.compile(r"\\ldots|\\pmod|^\\\{.*(?:\\mid|[|:])")
"""Parts of a reference that algebra cannot read: an ellipsis, a remainder, a set defined by a condition."""
MID = re.compile(r"\\mid(?![A-Za-z]) ?|:")
INDEXED = re.compile(r"(?<![A-Za-z\\])([Ee]) ?_ ?(?:\{([^{}]*)\}|(\w))")
DECIMAL_POWER = re.compile(r"\^ ?(?:\{ ?([+-]?\d{0,3}\.\d{1,3}) ?\}|(\d{0,3}\.\d{1,3}))(?!\d)")


def write_plainly(text: str) -> str:
    r"""`1x` is `x`, `\sin 30^\circ` is of \pi/6, `^{0.5}` is 1/2: Math-Verify reads a product, 30 radians, a float."""
    text = DECIMAL_POWER.sub(
        lambda found: f"^{{{write_fraction(Fraction(found[1] or found[2]))}}}", ONE_OF.sub("", text)
    )
    text = INDEXED.sub(r"x_{\1\2\3}", text)  # an energy, where Math-Verify reads the base of logarithms
    if ANGLE.search(text):
        text = IN_DEGREES.sub(lambda found: rf"({write_fraction(Fraction(found[1]) / 180)}\pi)", text)
    return text


def says_nothing(answer: str) -> bool:
    """`5 6`, which Math-Verify would multiply, or `0<1`, which is true and no set of numbers."""
    is_statement = COMPARISON.search(answer) and "=" not in answer and not structure.letters(answer)
    return bool(is_statement or re.search(r"(?<!_)\d \d", answer))


def is_equation_to_zero(answer: str) -> bool:
    """`x^2 - 4 = 0` claims no 0, as `m + n = 5` claims 5."""
    left, equals, right = answer.rpartition("=")
    return bool(equals) and right.strip() == "0" and structure.strip_name(answer) == answer and left[-1:] not in "<>!"


def without_letter_unit(one: Reading, other: Reading) -> str:
    """Return the body without a unit of one letter, where the other has no letter and no other unit: `5 m` is 5 beside 5."""
    found, theirs = LETTER_UNIT.search(one.body), LETTER_UNIT.search(other.body)
    if not found or structure.letters(LETTER_UNIT.sub("", other.body)):
        return one.body
    unit = other.unit or (parse_unit(theirs.group()) if theirs else "")
    return one.body[: found.start()] if unit in ("", parse_unit(found.group())) else one.body


def same_algebra(gold: str, answer: str, tolerance: float) -> bool:
    wanted = parse_latex(gold)
    if not wanted:
        raise ValueError(f"gold={gold[:80]!r} cannot be read as mathematics: leave the problem out, or mend it")
    given = parse_latex(answer)
    if not given:
        return False
    if tolerance and are_close(wanted[0], given[0], False, rel_tol=0.0, abs_tol=tolerance):
        return True
    return are_equal(wanted, given) or same_imaginary(wanted[0], given[0])


def parse_latex(text: str) -> list[Any]:
    """The expression in a list, as Math-Verify takes it; empty where the text cannot be read."""
    return parse(f"${text}$", LATEX, fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True)  # pyright: ignore[reportArgumentType]


def are_equal(wanted: list[Any], given: list[Any]) -> bool:
    # No timeouts of its own: they are signals, which threads lack and C code ignores. The worker is killed instead.
    if not verify(wanted, given, timeout_seconds=None, raise_on_error=True, allow_set_relation_comp=True):
        return False
    is_decimal = isinstance(wanted[0], Float) or isinstance(given[0], Float)
    return not is_decimal or are_close(wanted[0], given[0], True, rel_tol=CLOSE)


def differ(wanted: Any, given: Any) -> bool:
    """Certainly different: exactly if rational, else to `MAX_DIGITS` digits, with one value for each letter."""
    try:
        difference = wanted - given
        names = sorted(difference.free_symbols, key=str)
        difference = difference.subs({name: 1 + Rational(237, 1000 + place) for place, name in enumerate(names)})
        if difference.has(Integral, Sum, Product, Limit):  # a thousand digits of which would take long
            return False
        value = difference.doit()
        value = value if value.is_Rational else value.evalf(DIGITS, maxn=MAX_DIGITS)
        return any(part.is_Rational or part._prec > 1 for part in value.as_real_imag() if part != 0)
    except Exception:  # of what cannot be evaluated, such as an unknown function
        return False


def same_value(one: Any, other: Any, *rounding: int, alike: Callable[..., bool] = grader.sympy_numeric_eq) -> bool:
    """Compare two values as Math-Verify does, but for differences below 1e-15, which it takes for 0."""
    if not all(isinstance(side, Expr) and not grader.is_atomic_or_pct_atomic(side, Number) for side in (one, other)):
        return alike(one, other, *rounding)  # matrices by their entries; a number exactly, or rounded as it is written
    # decimals as they were written, which floats are not
    one, other = (side.xreplace({n: Rational(str(n)) for n in side.atoms(Float)}) for side in (one, other))
    return alike(one, other, *rounding) and not differ(one, other)


grader.sympy_numeric_eq = same_value


def same_imaginary(wanted: Any, given: Any) -> bool:
    """Equal with i as the imaginary unit, where it is the only letter."""
    try:
        symbols = wanted.free_symbols | given.free_symbols
    except AttributeError:
        return False
    if {symbol.name for symbol in symbols} != {"i"}:
        return False
    left, right = (expression.subs(dict.fromkeys(symbols, I)).doit() for expression in (wanted, given))
    return are_equal([left], [right])


def are_close(wanted: Any, given: Any, otherwise: bool, **margin: float) -> bool:
    """By `math.isclose`; `otherwise` where one is not a number."""
    try:
        return isclose(float(wanted.evalf()), float(given.evalf()), **margin)
    except (AttributeError, TypeError, ValueError):
        return otherwise


def warm_up() -> None:
    """Fill tables and caches before workers are forked, and replace the evaluator of sympy."""
    replace_evaluator()
    for gold, answer in WARM_UP:
        is_same([gold], answer)


def grade(golds: Sequence[str], answer: str, tolerance: float, unevaluated: bool = False) -> Status:
    """Exceptions of algebra, of stack or memory included, are errors."""
    try:
        return "correct" if is_same(golds, answer, tolerance, unevaluated) else "incorrect"
    except Exception:
        return "error"
