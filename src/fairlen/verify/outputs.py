"""LiveCodeBench's comparison of outputs (facts of its `lcb_runner/evaluation/testing_util.py`, not code).

Texts: stripped, with as many lines, which are the same when stripped, or as many decimal numbers of exactly equal values.
Values: equal as JSON, in which a tuple is a list; LiveCodeBench converts the outermost only.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from itertools import zip_longest

WORD = re.compile(r"\S+")


def same_text(given: str, expected: str) -> bool:
    given, expected = given.strip(), expected.strip()
    # Counted first: a program may print millions of lines where one was expected.
    if given.count("\n") != expected.count("\n"):
        return False
    return all(map(same_line, given.split("\n"), expected.split("\n")))


def same_line(given: str, expected: str) -> bool:
    if given.strip() == expected.strip():
        return True
    words = zip_longest(WORD.finditer(given), WORD.finditer(expected))
    return all(one and other and same_number(one[0], other[0]) for one, other in words)


def same_number(given: str, expected: str) -> bool:
    """Decimals of the same value. A text that is no number, and not-a-number, equal nothing."""
    try:
        return Decimal(given) == Decimal(expected)
    except InvalidOperation:
        return False


def same_value(given: bytes, expected: str) -> bool:
    """Equal as JSON; text that is no JSON equals nothing."""
    try:  # numbers of more digits than Python converts are a ValueError too
        return json.loads(given.decode()) == json.loads(expected)
    except (ValueError, RecursionError):
        return False
