r"""Single expressions, written so that Math-Verify reads what they say; and those that say nothing. Text only, no algebra."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from fairlen.verify.notation import ANGLE, LETTER_UNIT, Reading, name_unit, read
from fairlen.verify.structure import letters, split_at, strip_name

TOKEN = re.compile(r"\\text[a-z]* ?\{[^{}]*\}|\\(?:begin|end|operatorname) ?\{[^{}]*\}|\\[A-Za-z]+|[A-Za-z]")
SPARE = ("kappa", "iota", "xi", "zeta", "tau", "upsilon", "nu", "eta", "chi", "psi", "sigma", "rho")


def tell_cases(texts: Sequence[str]) -> list[str]:
    """The texts, with the capitals of letters that one of them has in both cases written otherwise in all."""
    symbols = [text for text in texts if not is_prose(text)]
    found = [{token for token in TOKEN.findall(text) if len(token) == 1} for text in symbols]
    capitals = sorted(
        {letter for letters in found for letter in letters if letter.isupper() and letter.lower() in letters}
    )
    spare = [name for name in SPARE if not any("\\" + name in text for text in texts)]
    if not capitals or len(capitals) > len(spare):
        return list(texts)
    written = {letter: rf"\{name} " for letter, name in zip(capitals, spare, strict=False)}
    return [TOKEN.sub(lambda found: written.get(found.group(), found.group()), text) for text in texts]


def is_prose(text: str) -> bool:
    """Return whether the letters of a text are words, a unit or the letter of an option."""
    reading = read(text)
    return bool(reading.words or reading.number or reading.choice or reading.option or reading.base)


RELATION = re.compile(r" ?(\\(?:leq?|geq?|lt|gt|neq?)(?![A-Za-z])|<=|>=|!=|[<>=]|\\in(?![A-Za-z])) ?")
SIGNS = {
    r"\le": "<=", r"\leq": "<=", r"\ge": ">=", r"\geq": ">=", r"\lt": "<", r"\gt": ">", r"\ne": "!=", r"\neq": "!=",
}  # fmt: skip
MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!=", "=": "="}
JOINED = re.compile(
    r",? ?(?:\\text ?\{ ?,? ?(or|and) ?\}|(?<![A-Za-z\\])(or|and)(?![A-Za-z])|\\(lor|land)(?![A-Za-z])) ?"
)
VARIABLE = re.compile(r"(?:\\[A-Za-z]+|[A-Za-z])(?:_ ?(?:\{\w+\}|\w))?")
NO_VARIABLES = (r"\infty", r"\pi", "e")
BUILDER = re.compile(
    rf"\\\{{ ?({VARIABLE.pattern}) ?(?:\\in ?\\mathbb ?\{{? ?R ?\}}? ?)?(?:\\mid(?![A-Za-z])|[|:]) ?(.+?) ?\\\}}"
)
IN_REALS = re.compile(rf"({VARIABLE.pattern}) ?\\in ?\\mathbb ?\{{? ?R ?\}}? ?(?:,|\\text ?\{{ ?and ?\}}|\\land) ?")
BOUND = re.compile(r"[A-Za-z] ?\(([A-Za-z])\) ?=|\\\{ ?([A-Za-z]) ?(?:\\mid(?![A-Za-z])|[|:]|\\in(?![A-Za-z]))")
"""The variable that a definition binds: `f(x) =` and `\\{x \\mid`."""
LARGEST = {
    "<": r"(-\infty,{})", "<=": r"(-\infty,{}]", ">": r"({},\infty)", ">=": r"[{},\infty)", "=": r"\{{{}\}}",
    "!=": r"(-\infty,{0})\cup({0},\infty)", r"\in": "{}",
}  # fmt: skip
"""All x with x < 3, and so on."""
BETWEEN: dict[tuple[str, ...], str] = {
    ("<", "<"): "({},{})", ("<", "<="): "({},{}]", ("<=", "<"): "[{},{})", ("<=", "<="): "[{},{}]",
    (">", ">"): "({1},{0})", (">=", ">"): "({1},{0}]", (">", ">="): "[{1},{0})", (">=", ">="): "[{1},{0}]",
}  # fmt: skip
OPENING, CLOSING = {"[": "[", "]": "(", "(": "("}, {"]": "]", "[": ")", ")": ")"}


def write_range(text: str) -> str:
    """The set that a cleaned text describes by inequalities, as intervals; the text itself where it does not."""
    text = write_brackets(text)
    built = BUILDER.fullmatch(text)
    if not built and not JOINED.search(text):
        return text
    condition = built.group(2) if built else text
    if reals := IN_REALS.match(condition):
        condition = condition[reals.end() :]
    parts = JOINED.split(condition)
    found = [read_inequality(part) for part in parts[::4]]
    joints = {part.removeprefix("l") for place, part in enumerate(parts) if place % 4 and part}
    names, sets = {name for name, _ in found}, [one for _, one in found]
    is_equation = not built and not re.search(r"\\infty|[()\[]", "".join(sets))
    if "" in names or len(names) > 1 or len(joints) > 1 or is_equation or (built and built.group(1) not in names):
        return text
    return meet(sets) or text if joints == {"and"} else r" \cup ".join(sets)


def meet(sets: Sequence[str]) -> str:
    r"""Return what two half-lines have in common, `(1,2)` of `(1,\infty)` and `(-\infty,2)`; empty for anything else."""
    low, high = [one for one in sets if one.endswith(r"\infty)")], [one for one in sets if one.startswith(r"(-\infty")]
    if len(sets) != 2 or not len(low) == len(high) == 1 or low == high:
        return ""
    return low[0].removesuffix(r"\infty)") + high[0].removeprefix(r"(-\infty,")


def read_inequality(text: str) -> tuple[str, str]:
    r"""The variable and the set, `x` and `(-\infty,3)` of `x<3`; both empty where it is nothing of the kind."""
    sides = [side.strip() for side in RELATION.split(text)[::2]]
    signs = tuple(SIGNS.get(sign, sign) for sign in map(str, RELATION.findall(text)))
    names = [side for side in sides if VARIABLE.fullmatch(side) and side not in NO_VARIABLES]
    if len(names) != 1 or any(names[0] in TOKEN.findall(side) for side in sides if side != names[0]):
        return "", ""
    place = sides.index(names[0])
    if len(signs) == 1:  # with the variable in front
        form = LARGEST.get(signs[0] if place == 0 else MIRRORED.get(signs[0], ""), "")
        return (names[0], form.format(sides[1 - place])) if form else ("", "")
    form = BETWEEN.get(signs, "") if place == 1 and len(sides) == 3 else ""
    return (names[0], form.format(sides[0], sides[2])) if form else ("", "")


def write_brackets(text: str) -> str:
    r"""`]0,1[` -> `(0,1)`."""
    pieces = re.split(r" ?\\cup ?", text)
    if any(piece[:1] == "]" or piece[-1:] == "[" for piece in pieces) and all(
        piece[:1] in OPENING and piece[-1:] in CLOSING and len(split_at(piece[1:-1], ",")) == 2 for piece in pieces
    ):
        return r" \cup ".join(f"{OPENING[piece[0]]}{piece[1:-1]}{CLOSING[piece[-1]]}" for piece in pieces)
    return text


def rename_bound(gold: str, answer: str) -> str:
    """The answer with the bound variable of the reference: `f(t) = t+1` is `f(x) = x+1`."""
    wanted, given = BOUND.match(gold), BOUND.match(answer)
    if not wanted or not given:
        return answer
    new, old = (found.group(1) or found.group(2) for found in (wanted, given))
    if new == old or new in TOKEN.findall(answer):
        return answer
    return TOKEN.sub(lambda found: new if found.group() == old else found.group(), answer)


COMPARISON = re.compile(r"[<>≤≥]|\\(?:le|leq|ge|geq|lt|gt|ne|neq)(?![A-Za-z])")
ONE_OF = re.compile(r"(?:^|(?<=[-+(=]))\s?1 ?(?=[A-Za-z])(?!e[-+\d])")
IN_DEGREES = re.compile(r"(\d+(?:\.\d+)?) ?\^ ?(?:\\circ(?![A-Za-z])|\{ ?\\circ ?\})")
DECIMAL_POWER = re.compile(r"\^ ?(?:\{ ?([+-]?\d{0,3}\.\d{1,3}) ?\}|(\d{0,3}\.\d{1,3}))(?!\d)")


def write_plainly(text: str) -> str:
    r"""`1x` is `x`, and `\sin 30^\circ` is of \pi/6: Math-Verify reads the one as a product, the other as 30 radians."""
    text = DECIMAL_POWER.sub(lambda found: f"^{{{write_fraction(found[1] or found[2])}}}", ONE_OF.sub("", text))
    if ANGLE.search(text):
        text = IN_DEGREES.sub(lambda found: "(" + write_fraction(found[1], 180, r"\pi") + ")", text)
    return text


def write_fraction(decimal: str, divisor: int = 1, factor: str = "") -> str:
    r"""`0.5` -> `\frac{1}{2}`, which algebra compares exactly; divided, and times a factor."""
    value = Fraction(decimal) / divisor
    return rf"\frac{{{value.numerator}{factor}}}{{{value.denominator}}}"


def is_unclear(answer: str) -> bool:
    """`5 6`, which Math-Verify would multiply."""
    return bool(re.search(r"(?<!_)\d \d", answer))


def is_statement(answer: str) -> bool:
    """`0<1`, which is true and no set of numbers."""
    return bool(COMPARISON.search(answer)) and "=" not in answer and not letters(answer)


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
    r"""Return what to compare: the two as they are, and where just one is a percentage also a hundredth of it."""
    left, right = (re.sub(r"\s*\\?%\s*$", "", text) for text in (gold, answer))
    pairs = [(left, right)]
    if left != gold and right == answer:
        pairs.append((rf"\frac{{{left}}}{{100}}", right))
    if right != answer and left == gold:
        pairs.append((left, rf"\frac{{{right}}}{{100}}"))
    return pairs
