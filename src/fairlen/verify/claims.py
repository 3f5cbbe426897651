r"""What an equation given as an answer claims: `x = 2+3 = 5` claims 5, and that 2+3 is 5. Text only, no algebra.

An equation may restate an answer and never contradict itself: Math-Verify takes what follows the last `=` alone, so that
`2 = 3` is 3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fairlen.verify.notation import read
from fairlen.verify.structure import split, split_at
from fairlen.verify.typesetting import clean, closes

GREEK = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho varrho sigma tau upsilon "
    "phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega ell"
)
COMMAND = re.compile(rf"\\(?!(?:{'|'.join(GREEK.split())})(?![A-Za-z]))[A-Za-z]+")
"""Any but those that name a variable."""
LETTER = re.compile(r"(?:\\[A-Za-z]+|[A-Za-z])(?:_ ?(?:\{[^{}]*\}|\w))?'*")
CONSTANTS = {"e", "i"}
"""In expressions; alone on their side they name something, as in `e = 1/2`."""
EQUALS = re.compile(r"(?<![<>:])(?<!(?<![\d)}])!)==?(?!=)|\\equiv(?![A-Za-z])")
"""Of `5!=120` as well, but not of `x!=2`."""
DEEPEST = 4
UNEQUAL = re.compile(r"\\not ?=")
OTHERWISE = re.compile(r"\\begin\{(?!.?matrix|array)|\\[pb]mod(?![A-Za-z])")
"""Where signs of equality do not make one chain of equal things."""


@dataclass(frozen=True, slots=True)
class Claim:
    """An answer that may be an equation."""

    text: str
    """To compare with the reference: the answer, its value last; the value alone where nothing on the other sides is a name."""
    value: str = ""
    """The side that says what it is."""
    same: tuple[str, ...] = ()
    """Sides that must equal the value."""


def read_claim(answer: str, gold: str) -> Claim:
    """What the answer claims. Where the reference is an equation too, the two are compared as equations."""
    cleaned = clean(answer)
    sides = sides_of(cleaned)
    if len(sides) < 2:
        return Claim(answer)
    is_product = sides[-1].endswith(")") and read(sides[0]).number  # of `20 = 0.25(80)` the 20 is the value
    if is_product or (letters(sides[-1]) and not letters(sides[0])):
        sides.reverse()
    *others, value = sides
    if len(sides) == 2 and letters(others[0]) and len(sides_of(clean(gold))) > 1:
        return Claim(answer)
    same = tuple(side for side in others if not is_name(side, value))
    if len(same) == len(others):
        return Claim(value, value, same)
    return Claim(" = ".join(sides), value, same)


def sides_of(cleaned: str) -> list[str]:
    """What stands between the signs of equality outside all brackets; the whole where it is a list or a system."""
    head = cleaned.partition(r"\approx")[0].strip()
    if EQUALS.search(head):
        cleaned = head  # what follows is rounded
    elif EQUALS.search(cleaned):
        cleaned = cleaned.replace(r"\approx", "=")
    cleaned = open_brackets(UNEQUAL.sub(r"\\ne ", cleaned))
    if "\0" in cleaned or OTHERWISE.search(cleaned) or len(split(cleaned)) > 1:
        return [cleaned]
    return [side.replace("\0", "=") for side in split_at(EQUALS.sub("\0", cleaned), "\0") if side]


def open_brackets(text: str) -> str:
    """`(x = 5)` -> `x = 5`, through `DEEPEST` brackets."""
    for _ in range(DEEPEST):
        if text[:1] not in ("(", "[") or closes(text) != len(text) - 1 or len(split(text[1:-1])) > 1:
            break
        text = text[1:-1].strip() if EQUALS.search(text) else text
    return text


def is_name(side: str, value: str) -> bool:
    """Whether a side names what has the value: it has a letter that the value lacks. Options do not name each other."""
    return bool(letters(side) - letters(value)) and not (read(side).choice and read(value).choice)


def letters(side: str) -> set[str]:
    """Variables of an expression; units of a number are none."""
    reading = read(side)
    if reading.number or side.strip() in CONSTANTS:
        return set() if reading.number else {side.strip()}
    return set(LETTER.findall(COMMAND.sub(" ", side))) - CONSTANTS
