r"""Single expressions, written so that Math-Verify reads what they say; and those that say nothing. Text only, no algebra."""

from __future__ import annotations

import re
from fractions import Fraction

from fairlen.verify.claims import letters
from fairlen.verify.notation import Reading
from fairlen.verify.structure import strip_name
from fairlen.verify.units import ANGLE, LETTER_UNIT, name_unit

RELATION = re.compile(r"[<>≤≥]|\\(?:le|leq|ge|geq|lt|gt|ne|neq)(?![A-Za-z])")
ONE_OF = re.compile(r"(?:^|(?<=[-+(=]))\s?1 ?(?=[A-Za-z])(?!e[-+\d])")
IN_DEGREES = re.compile(r"(\d+(?:\.\d+)?) ?\^ ?(?:\\circ(?![A-Za-z])|\{ ?\\circ ?\})")
DECIMAL_POWER = re.compile(r"\^ ?(?:\{ ?([+-]?\d{0,3}\.\d{1,3}) ?\}|(\d{0,3}\.\d{1,3}))(?!\d)")


def write_plainly(text: str) -> str:
    r"""`1x` is `x`, and `\sin 30^\circ` is of \pi/6: Math-Verify reads the one as a product, the other as 30 radians."""
    text = DECIMAL_POWER.sub(write_power, ONE_OF.sub("", text))
    return IN_DEGREES.sub(write_angle, text) if ANGLE.search(text) else text


def write_power(found: re.Match[str]) -> str:
    """`^{0.5}` -> `^{\\frac{1}{2}}`, which algebra compares exactly."""
    power = Fraction(found.group(1) or found.group(2))
    return rf"^{{\frac{{{power.numerator}}}{{{power.denominator}}}}}"


def write_angle(found: re.Match[str]) -> str:
    """Degrees as a multiple of pi."""
    turn = Fraction(found.group(1)) / 180
    return rf"(\frac{{{turn.numerator}\pi}}{{{turn.denominator}}})"


def is_unclear(answer: str) -> bool:
    """`5 6`, which Math-Verify would multiply."""
    return bool(re.search(r"(?<!_)\d \d", answer))


def is_statement(answer: str) -> bool:
    """`0<1`, which is true and no set of numbers."""
    return bool(RELATION.search(answer)) and "=" not in answer and not letters(answer)


def is_equation_to_zero(answer: str) -> bool:
    """`x^2 - 4 = 0` is an equation and claims no 0, as `m + n = 5` claims 5."""
    left, equals, right = answer.rpartition("=")
    return bool(equals) and right.strip() == "0" and bool(strip_name(answer) == answer) and left[-1:] not in "<>!"


def without_letter_units(wanted: Reading, given: Reading) -> tuple[str, str]:
    """Bodies in which `5 m` is 5 where the other has no letters, so that m can be no variable, and no unit to contradict."""
    return without_letter_unit(wanted, given), without_letter_unit(given, wanted)


def without_letter_unit(one: Reading, other: Reading) -> str:
    """The body of one of them."""
    found = LETTER_UNIT.search(one.body)
    if not found or re.search("[A-Za-z]", LETTER_UNIT.sub("", other.body)):
        return one.body
    return one.body[: found.start()] if other.unit in ("", name_unit(*found.groups())) else one.body


def percentages(gold: str, answer: str) -> list[tuple[str, str]]:
    r"""What to compare: the two as they are, and where just one is a percentage also a hundredth of it."""
    left, right = (re.sub(r"\s*\\?%\s*$", "", text) for text in (gold, answer))
    pairs = [(left, right)]
    if left != gold and right == answer:
        pairs.append((rf"\frac{{{left}}}{{100}}", right))
    if right != answer and left == gold:
        pairs.append((left, rf"\frac{{{right}}}{{100}}"))
    return pairs
