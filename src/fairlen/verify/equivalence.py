r"""Whether two mathematical answers are the same, by algebra: Math-Verify on sympy. For a worker process, which may be killed.

Nothing here has a deadline: the algebra of an answer such as `9^{9^{9^{9}}}` holds the interpreter for hours and listens to no
signal of Python's. Call it through `AnswerPool`.

What Math-Verify alone gets wrong for our purposes is settled before it is asked: each comparison is of one expression with one
expression, so that no part of an answer can pass for the whole (its issue 47); order and brackets are kept, `(1,2)` is not
`\{1,2\}`; units and bases must not contradict each other; words are compared as words; tiny decimals are not rounded to 0.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from sympy import Float

from fairlen.verify.answer import match_exactly
from fairlen.verify.notation import LETTER_UNIT, Reading, agree, read
from fairlen.verify.structure import Structure, strip_name, take_apart

MOST_ITEMS = 64
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


def is_same(golds: Sequence[str], answer: str, tolerance: float = 0.0) -> bool:
    """Whether `answer` gives all of `golds` and nothing else.

    Raises whatever algebra raises, and ValueError where a reference cannot be read. An answer that cannot be read is wrong.
    """
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
    wanted, given = take_apart(gold), take_apart(answer)
    if wanted.kind == given.kind == "one":
        return same_expression(gold, answer, tolerance)
    if "one" in (wanted.kind, given.kind):
        return same_across(wanted, given, gold, answer, tolerance)
    return same_structure(wanted, given, tolerance)


def same_across(wanted: Structure, given: Structure, gold: str, answer: str, tolerance: float) -> bool:
    """One of the two is a single expression: a set of one thing is that thing, and an inequality may be an interval."""
    several = wanted if given.kind == "one" else given
    if several.kind in ("list", "set") and len(several.items) == 1:
        return same(wanted.items[0], given.items[0], tolerance)
    expression = answer if given.kind == "one" else gold
    return bool(LOOSE.search(expression)) and same_expression(gold, answer, tolerance)


def same_structure(wanted: Structure, given: Structure, tolerance: float) -> bool:
    """Several things and several things: the same ones, in the same order and brackets where these mean something."""
    if max(len(wanted.items), len(given.items)) > MOST_ITEMS:
        raise ValueError(f"{len(wanted.items)} and {len(given.items)} items: at most {MOST_ITEMS} are compared")
    kinds = {wanted.kind, given.kind}
    if kinds == {"tuple", "set"}:
        return False
    is_ordered = "tuple" in kinds or differently_named(wanted, given)
    if not is_ordered:
        return covers(wanted.items, given.items, tolerance)
    if not same_brackets(wanted, given) or len(wanted.items) != len(given.items):
        return False
    return all(same(gold, item, tolerance) for gold, item in zip(wanted.items, given.items, strict=True))


def differently_named(wanted: Structure, given: Structure) -> bool:
    """`x=1, y=2` against `1, 2`: only the order says which is which."""
    names, others = wanted.names, given.names
    return (len(names) > 1 and not others) or (len(others) > 1 and not names)


def same_brackets(wanted: Structure, given: Structure) -> bool:
    """Two items in brackets may be an interval, where brackets matter; a bare list stands for a tuple in parentheses."""
    if len(wanted.items) != 2:
        return True
    return (wanted.brackets or "()") == (given.brackets or "()")


def covers(golds: Sequence[str], items: Sequence[str], tolerance: float) -> bool:
    """Every reference is given and everything given is a reference; repetitions do not count."""
    found = [[same(gold, item, tolerance) for item in items] for gold in golds]
    return bool(golds) == bool(items) and all(map(any, found)) and all(map(any, zip(*found, strict=True)))


def same_expression(gold: str, answer: str, tolerance: float) -> bool:
    """Two single expressions."""
    wanted, given = read(gold), read(answer)
    if not agree(wanted, given) or (wanted.base and given.base and wanted.text != given.text):
        return False
    if wanted.words and (given.words or r"\text" in gold):
        return wanted.words == given.words or strip_name(given.body).strip().lower() == wanted.words
    gold_text, answer_text = without_letter_units(wanted, given)
    if is_unclear(answer_text) or ("=" not in gold_text and is_equation_to_zero(answer_text)):
        return False
    return any(same_algebra(left, right, tolerance) for left, right in percentages(gold_text, answer_text))


def is_unclear(answer: str) -> bool:
    """`5 6`, which Math-Verify would multiply."""
    return bool(re.search(r"\d \d", answer))


def is_equation_to_zero(answer: str) -> bool:
    """`x^2 - 4 = 0` is an equation and claims no 0, as `m + n = 5` claims 5."""
    left, equals, right = answer.rpartition("=")
    return bool(equals) and right.strip() == "0" and bool(strip_name(answer) == answer) and left[-1:] not in "<>!"


def without_letter_units(wanted: Reading, given: Reading) -> tuple[str, str]:
    """Bodies in which `5 m` is 5 where the other has no letters, so that m can be no variable, and no unit to contradict."""
    gold, answer = wanted.body, given.body
    if not (re.search("[A-Za-z]", gold) or wanted.unit):
        answer = LETTER_UNIT.sub("", answer)
    elif not (re.search("[A-Za-z]", answer) or given.unit):
        gold = LETTER_UNIT.sub("", gold)
    return gold, answer


def percentages(gold: str, answer: str) -> list[tuple[str, str]]:
    r"""What to compare: the two as they are, and where just one is a percentage also a hundredth of it."""
    left, right = (re.sub(r"\s*\\?%\s*$", "", text) for text in (gold, answer))
    pairs = [(left, right)]
    if left != gold and right == answer:
        pairs.append((rf"\frac{{{left}}}{{100}}", right))
    if right != answer and left == gold:
        pairs.append((left, rf"\frac{{{right}}}{{100}}"))
    return pairs


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
    return is_equal and is_close(wanted[0], given[0])


def parse_latex(text: str) -> list[Any]:
    """The expression of a text, in a list as Math-Verify wants it; empty where it cannot be read."""
    return parse(f"${text}$", LATEX, fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True)  # pyright: ignore[reportArgumentType]


def is_within(wanted: Any, given: Any, tolerance: float) -> bool:
    """Whether two numbers differ by at most `tolerance`; False where one is not a number."""
    try:
        return abs(float(wanted.evalf()) - float(given.evalf())) <= tolerance
    except (AttributeError, TypeError, ValueError):
        return False


def is_close(wanted: Any, given: Any) -> bool:
    """Whether a decimal, taken as equal after rounding, has the size of what it stands for."""
    if not (isinstance(wanted, Float) or isinstance(given, Float)):
        return True
    try:
        left, right = float(wanted.evalf()), float(given.evalf())
    except (AttributeError, TypeError, ValueError):
        return True
    return abs(left - right) <= CLOSE * max(abs(left), abs(right))
