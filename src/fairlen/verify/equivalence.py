r"""Whether two mathematical answers are the same, by algebra: Math-Verify on sympy. For a worker process, which may be killed.

Nothing here has a deadline: the algebra of an answer such as `9^{9^{9^{9}}}` holds the interpreter for hours and listens to no
signal of Python's. Call it through `AnswerPool`.

What Math-Verify alone gets wrong for our purposes is settled before it is asked: each comparison is of one expression with one
expression, so that no part of an answer can pass for the whole (its issue 47); order and brackets are kept, `(1,2)` is not
`\{1,2\}`; an equation may not contradict itself; units and bases must not contradict each other; words are compared as words;
tiny decimals are not rounded to 0.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from sympy import Float, I

from fairlen.verify.answer import match_exactly
from fairlen.verify.expression import (
    is_equation_to_zero,
    is_statement,
    is_unclear,
    percentages,
    rename_bound,
    tell_cases,
    without_letter_units,
    write_plainly,
    write_range,
)
from fairlen.verify.notation import agree, read
from fairlen.verify.structure import Structure, is_left_open, read_equation, strip_name, take_apart
from fairlen.verify.typesetting import clean

MAX_ITEMS = 64
"""Of one list; matching compares all with all."""
LOOSE = re.compile(
    r"\\(?:cup|cap|le|leq|ge|geq|lt|gt|ne|neq|in|setminus|mathbb|begin|pm|emptyset|varnothing)(?![A-Za-z])|[<>≤≥∪]"
)
"""Marks expressions that may be another way to write a set, interval or vector."""
CLOSE = 1e-5
"""Relative difference of a decimal from what it rounds; Math-Verify's own bound is 5e-7 absolute, which lets 0 be 1e-7."""

# Units and boxes are ours: Math-Verify takes a trailing m, c, t or x for a unit even where it is a variable.
LATEX = [
    LatexExtractionConfig(
        boxed_match_priority=-1,
        normalization_config=NormalizationConfig(
            basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
        ),
    )
]
logging.getLogger("math_verify").setLevel(logging.ERROR)


def is_same(golds: Sequence[str], answer: str, tolerance: float = 0.0, unevaluated: bool = False) -> bool:
    r"""Return whether `answer` gives all of `golds` and nothing else.

    `unevaluated`: `5!` is an answer where the reference is 120. Raises whatever algebra raises, and ValueError where a reference
    cannot be read. An answer that cannot be read is incorrect.
    """
    if not unevaluated and is_left_open(golds, answer):
        return False
    *golds, answer = tell_cases([*golds, answer])
    if len(golds) == 1:
        return same(golds[0], answer, tolerance)
    wanted = tuple(item for gold in golds for item in items_of(take_apart(gold), gold))
    return same_structure(Structure("list", wanted), take_apart(answer), tolerance)


def items_of(structure: Structure, whole: str) -> tuple[str, ...]:
    """The answers that a reference lists."""
    return structure.items if structure.kind in ("list", "set") else (whole,)


def same(gold: str, answer: str, tolerance: float) -> bool:
    """One answer and one reference, whatever they are made of."""
    exact = match_exactly(answer, gold, tolerance)
    if exact is not None:
        return exact
    gold, answer = write_range(clean(gold)), write_range(clean(answer))
    answer = rename_bound(gold, answer)
    equation = read_equation(answer, gold)
    exact = None if equation.text == answer else match_exactly(equation.text, gold, tolerance)
    fits = same_whole(gold, equation.text, tolerance) if exact is None else exact
    if not fits:
        return False
    try:
        return all(same(equation.value, side, tolerance) for side in equation.same)
    except ValueError:  # a side that cannot be read
        return False


def same_whole(gold: str, answer: str, tolerance: float) -> bool:
    """As they are made: one thing, several, or several in order."""
    wanted, given = take_apart(gold), take_apart(answer)
    if wanted.kind == given.kind == "one":
        return same_expression(gold, answer, tolerance)
    if "one" in (wanted.kind, given.kind):
        return same_across(wanted, given, gold, answer, tolerance)
    return same_structure(wanted, given, tolerance)


def same_across(wanted: Structure, given: Structure, gold: str, answer: str, tolerance: float) -> bool:
    """One of the two is a single expression: a set of one thing is that thing, and an inequality may be an interval."""
    several = wanted if given.kind == "one" else given
    if several.items == (r"\emptyset",):
        return False  # the set of the empty set is not empty
    if several.kind in ("list", "set") and len(several.items) == 1:
        return same(wanted.items[0], given.items[0], tolerance)
    expression = answer if given.kind == "one" else gold
    return bool(LOOSE.search(expression)) and same_expression(gold, answer, tolerance)


def same_structure(wanted: Structure, given: Structure, tolerance: float) -> bool:
    """Several things and several things: the same ones, in the same order and brackets where these mean something."""
    if len(wanted.items) > MAX_ITEMS:
        raise ValueError(f"{len(wanted.items)} items in the reference: at most {MAX_ITEMS} are compared")
    if len(given.items) > MAX_ITEMS:
        return False  # and no error: who writes more and more would be without a verdict
    kinds = {wanted.kind, given.kind}
    if kinds == {"tuple", "set"}:
        return False
    fewest, most = sorted((len(wanted.names), len(given.names)))
    is_named_once = fewest == 0 and most > 1  # of `x=1, y=2` against `1, 2` only the order says which is which
    if not ("tuple" in kinds or is_named_once):
        return covers(wanted.items, given.items, tolerance, (wanted.kind, given.kind).count("set"))
    # two items in brackets may be an interval; a bare list stands for a tuple in parentheses
    differ_in_brackets = len(wanted.items) == 2 and (wanted.brackets or "()") != (given.brackets or "()")
    if differ_in_brackets or len(wanted.items) != len(given.items):
        return False
    items = in_order(wanted, given)
    return all(same(gold, item, tolerance) for gold, item in zip(wanted.items, items, strict=True))


def in_order(wanted: Structure, given: Structure) -> tuple[str, ...]:
    """The given items as the reference orders them: `(y,x) = (2,1)` is `(x,y) = (1,2)`."""
    if sorted(wanted.order) != sorted(given.order) or not len(set(given.order)) == len(given.items) == len(given.order):
        return given.items
    named = dict(zip(given.order, given.items, strict=True))
    return tuple(named[name] for name in wanted.order)


def covers(golds: Sequence[str], items: Sequence[str], tolerance: float, sets: int) -> bool:
    r"""Every reference is given and everything given is a reference. `sets`: how many of the two stand in braces.

    In lists each counts as often as it is there. Two sets are the same whatever they repeat; a set that repeats nothing may
    stand for a list that does, and the other way round.
    """
    found = [[same(gold, item, tolerance) for item in items] for gold in golds]
    if bool(golds) != bool(items) or not (all(map(any, found)) and all(map(any, zip(*found, strict=True)))):
        return False
    repeats = any(sum(row) > 1 for row in found) and any(sum(column) > 1 for column in zip(*found, strict=True))
    return sets == 2 or (sets == 1 and not repeats) or (len(golds) == len(items) and is_one_to_one(found))


def is_one_to_one(found: list[list[bool]]) -> bool:
    """Return whether each reference can have an item of its own (augmenting paths)."""
    owners: dict[int, int] = {}

    def place(gold: int, seen: set[int]) -> bool:
        for item, fits in enumerate(found[gold]):
            if fits and item not in seen:
                seen.add(item)
                if item not in owners or place(owners[item], seen):
                    owners[item] = gold
                    return True
        return False

    return all(place(gold, set()) for gold in range(len(found)))


def same_expression(gold: str, answer: str, tolerance: float) -> bool:
    """Two single expressions."""
    wanted, given = read(gold), read(answer)
    if not agree(wanted, given) or (wanted.base and given.base and wanted.text != given.text):
        return False
    if wanted.words and (given.words or r"\text" in gold):
        return wanted.words == given.words or strip_name(given.body).strip().lower() == wanted.words
    gold_text, answer_text = map(write_plainly, without_letter_units(wanted, given))
    if (
        is_unclear(answer_text)
        or is_statement(answer_text)
        or ("=" not in gold_text and is_equation_to_zero(answer_text))
    ):
        return False
    return any(same_algebra(left, right, tolerance) for left, right in percentages(gold_text, answer_text))


def same_algebra(gold: str, answer: str, tolerance: float) -> bool:
    """Two expressions in LaTeX, by Math-Verify."""
    wanted = parse_latex(gold)
    if not wanted:
        raise ValueError(
            f"gold={gold[:80]!r} cannot be read as mathematics: leave the problem out, or mend its reference"
        )
    given = parse_latex(answer)
    if not given:
        return False
    if tolerance and is_within(wanted[0], given[0], tolerance):
        return True
    # No timeouts of its own: they are signals, which threads lack and C code ignores. The worker is killed instead.
    is_equal = verify(wanted, given, timeout_seconds=None, raise_on_error=True, allow_set_relation_comp=True)
    return is_close(wanted[0], given[0]) if is_equal else same_imaginary(wanted[0], given[0])


def same_imaginary(wanted: Any, given: Any) -> bool:
    """Two expressions without any letter but i, which then is the imaginary unit and no index."""
    try:
        symbols = wanted.free_symbols | given.free_symbols
    except AttributeError:
        return False
    if {symbol.name for symbol in symbols} != {"i"}:
        return False
    left, right = (expression.subs(dict.fromkeys(symbols, I)).doit() for expression in (wanted, given))
    return verify([left], [right], timeout_seconds=None, raise_on_error=True) and is_close(left, right)


def parse_latex(text: str) -> list[Any]:
    """The expression of a text, in a list as Math-Verify wants it; empty where it cannot be read."""
    return parse(f"${text}$", LATEX, fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True)  # pyright: ignore[reportArgumentType]


def is_within(wanted: Any, given: Any, tolerance: float) -> bool:
    """Return whether two numbers differ by at most `tolerance`; False where one is not a number."""
    try:
        return abs(float(wanted.evalf()) - float(given.evalf())) <= tolerance
    except (AttributeError, TypeError, ValueError):
        return False


def is_close(wanted: Any, given: Any) -> bool:
    """Return whether a decimal, taken as equal after rounding, has the size of what it stands for."""
    if not (isinstance(wanted, Float) or isinstance(given, Float)):
        return True
    try:
        left, right = float(wanted.evalf()), float(given.evalf())
    except (AttributeError, TypeError, ValueError):
        return True
    return abs(left - right) <= CLOSE * max(abs(left), abs(right))
