r"""Operators that an answer leaves to its reader: `\sum_{k=1}^{100} k` says what was asked, and not that it is 5050.

Where the reference is a number, an answer is one too: digits, + - * /, fractions, powers, roots, and the constants \pi, e and i.
Where it is made of roots and constants as well, functions such as `\cos` may stand in the answer, sums and their like may not.
Where it has variables nothing is refused. An absolute value is an operator too: `|-5|` is not 5. Text only, no algebra.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fairlen.verify.claims import sides_of
from fairlen.verify.notation import read
from fairlen.verify.structure import strip_name, take_apart
from fairlen.verify.typesetting import clean
from fairlen.verify.units import LETTER_UNIT

ARITHMETIC = r"[\d\s.,;:+\-*/^(){}\[\]%]|\\(?:[{}%]|(?:frac|cdot|times|div)(?![A-Za-z]))"
RATIONAL = re.compile(rf"(?:{ARITHMETIC})+")
CONSTANT = re.compile(
    rf"(?:{ARITHMETIC}|\\(?:sqrt|pi|infty|cup|cap|emptyset|pm|mp)(?![A-Za-z])|\\(?:begin|end) ?\{{[bp]matrix\}}|&|\\\\"
    r"|(?<![A-Za-z])[ei](?![A-Za-z]))+"
)
DIGIT = re.compile(r"\d|\\(?:pi|infty|emptyset)")
"""What a side has that states a value, and does not name it as `e` does in `e = 5`."""
UNEVALUATED = re.compile(
    r"\\(?:sum|prod|coprod|i*int|oint|lim|limsup|liminf|sup|inf|max|min|[dt]?binom|choose|gcd|log|det|[bp]?mod|[lc]?dots|Gamma|zeta)"
    r"(?![A-Za-z])|!|(?<![A-Za-z])(?:gcd|lcm|log|det|max|min|mod)(?![A-Za-z])|\bC_|[CP] ?\(|\\begin ?\{vmatrix\}|'"
)


def is_left_open(golds: Sequence[str], answer: str) -> bool:
    """Whether the answer leaves work to be done that the references, numbers all of them, have done."""
    wanted = [value for gold in golds for value in values(gold)]
    if not all(map(CONSTANT.fullmatch, wanted)):
        return False
    are_rational = all(map(RATIONAL.fullmatch, wanted)) and all(take_apart(gold).kind != "tuple" for gold in golds)
    return any(not states_value(item) and (are_rational or UNEVALUATED.search(item)) for item in items_of(answer))


def values(gold: str) -> list[str]:
    """What a reference says, without names and units."""
    return [bare(strip_name(item)) for item in items_of(gold)]


def items_of(text: str) -> tuple[str, ...]:
    """The parts of a list, set or tuple, and of those in it."""
    parts = take_apart(text).items
    return parts if len(parts) < 2 else tuple(item for part in parts for item in take_apart(part).items)


def states_value(item: str) -> bool:
    """Whether one side of an answer is worked out."""
    return any(
        DIGIT.search(side) and CONSTANT.fullmatch(side)
        for side in map(bare, sides_of(clean(item).replace(r"\approx", "=")))
    )


def bare(side: str) -> str:
    """A side without its unit; a date is a value as well."""
    reading = read(side)
    return "0" if reading.date else LETTER_UNIT.sub("", reading.body)
