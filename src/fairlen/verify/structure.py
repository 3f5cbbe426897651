r"""Structure of an answer: one thing, several in any order, or several in order, `1, 2`, `\{1,2\}`, `(1,2)`; equations,
and sets that are described by inequalities. Text only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import and_
from typing import Literal

from fairlen.verify.notation import LETTER_UNIT, read
from fairlen.verify.typesetting import GREEK, clean, closes

Kind = Literal["one", "list", "set", "tuple"]
SPACED_WORD = re.compile(r"\\text ?\{ ?,? ?(?:and|or) ?\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z](?![_=(]))")
TOKEN = re.compile(r"\\text[a-z]* ?\{[^{}]*\}|\\(?:begin|end|operatorname) ?\{[^{}]*\}|\\[A-Za-z]+|[A-Za-z]")
ONE_NAME = (
    r"(?:\\?[A-Za-z]+(?:_ ?(?:\{[^{}]*\}|\w))?'?(?: ?\([^()]*\))?"  # x, x_1, \alpha', f(x)
    r"|\([^()]*\)|\\text ?\{[^{}]*\}"  # (x,y), \text{area}
    r"|\|?[A-Z]{2,3}\|?|\{[A-Z]{2}\}|\\(?:angle|overline) ?\{?[A-Z]+\}?)"  # |AB|, \angle ABC
)
NAME = re.compile(ONE_NAME + r" ?(?:(?<![<>!:])=|\\in(?![A-Za-z])) ?")
ROW, COLUMN = "row", "column"
"""Brackets of a matrix of one row or column, which stands for a tuple."""
BRACKETS = {ROW: "()", COLUMN: "()"}
ROW_OF_MATRIX = re.compile(
    r"\\begin\{([pb])matrix\}((?:(?!\\\\)[^&])+(?:&(?:(?!\\\\)[^&])+)+)(?:\\\\ ?)?\\end\{\1matrix\}"
)
COLUMN_OF_MATRIX = re.compile(r"\\begin\{([pb])matrix\}([^&]*)\\end\{\1matrix\}")
EITHER_SIGN = re.compile(r"\\(pm|mp)(?![A-Za-z])")


@dataclass(frozen=True, slots=True)
class Structure:
    kind: Kind
    items: tuple[str, ...]  # one for "one"
    brackets: str = ""  # "()", "[)", ... of a tuple; with two items it may be an interval
    order: tuple[str, ...] = ()  # names before a tuple, as in `(x, y) = (1, 2)`

    @property
    def names(self) -> frozenset[str]:
        return frozenset(found.group() for item in self.items if (found := NAME.match(item)))


def take_apart(answer: str) -> Structure:
    r"""The structure of a cleaned answer; `\pm` is two answers."""
    answer = clean(answer).replace(r"\langle", "(").replace(r"\rangle", ")")
    items = split(answer)
    if len(items) > 1:
        return Structure("list", spread(count_through(items)))
    if "=" not in answer and len(parts := split_at(answer, ":")) > 2 and all(parts):
        ratios = tuple(rf"\frac{{{one}}}{{{other}}}" for one, other in pairwise(parts))
        return Structure("tuple", ratios, "::")
    bare = strip_name(answer)
    if column := COLUMN_OF_MATRIX.fullmatch(bare):
        rows = [row.strip() for row in column.group(2).split(r"\\")]
        return Structure("tuple", tuple(row for row in rows if row), COLUMN)
    if row := ROW_OF_MATRIX.fullmatch(bare):
        return Structure("tuple", tuple(cell.strip() for cell in row.group(2).split("&")), ROW)
    inner, kind, brackets = open_brackets(bare if bare[:1] in "([{\\" else answer)
    if kind != "one":
        items = split(inner) if inner else ()
        name = answer.partition("=")[0].strip() if answer.startswith("(") and NAME.match(answer) else ""
        order = split(name[1:-1]) if name else ()
        if kind == "set" and len(items) == 1 and (only := take_apart(items[0])).kind == "tuple":
            return only
        if kind == "set" or len(items) > 1:
            return Structure(kind, spread(count_through(items)) if kind == "set" else items, brackets, order)
    items = spread((answer,))
    return Structure("list" if len(items) > 1 else "one", items)


INDEXED = re.compile(r"([A-Za-z])_ ?(?:\{\d+\}|\d)")


def without_indices(given: Structure, names: frozenset[str]) -> Structure:
    """Return `x_1=2, x_2=-3` as `2, -3`: solutions for one unknown, which `names` has or leaves out, are only numbered."""
    found = [NAME.match(item) for item in given.items]
    bases = [INDEXED.fullmatch(name.group().rstrip("= ")) if name else None for name in found]
    letters = {base[1] for base in bases if base}
    if not all(bases) or len(letters) != 1 or len({base.group() for base in bases if base}) < len(bases):
        return given
    wanted = {name.rstrip("= ") for name in names}
    if wanted and wanted != letters:
        return given
    return replace(given, items=tuple(strip_name(item) for item in given.items))


def count_through(items: tuple[str, ...]) -> tuple[str, ...]:
    r"""`1, 2, \ldots, 5` with what lies between: at most 64 whole numbers in even steps up to the last."""
    if (
        len(items) < 4
        or items[-2] != r"\ldots"
        or not all(re.fullmatch(r"-?\d{1,9}", one) for one in items if one != r"\ldots")
    ):
        return items
    first, second, last = int(items[0]), int(items[1]), int(items[-1])
    step = second - first or 1
    through = tuple(map(str, range(first, last + step, step)[:65]))
    return (
        through
        if len(through) < 65 and (*through[: len(items) - 2], through[-1]) == (*items[:-2], items[-1])
        else items
    )


def strip_name(item: str) -> str:
    r"""`x = 5` -> `5`, `(p,q) = (3,2)` -> `(3,2)`, `x \in [0,1)` -> `[0,1)`."""
    return NAME.sub("", item, count=1) if NAME.match(item) else item


def open_brackets(text: str) -> tuple[str, Kind, str]:
    if text.startswith("\\{") and text.endswith("\\}") and closes(text[1:]) == len(text) - 2:
        inner = text[2:-2].strip()
        is_rule = re.search(r"\\mid(?![A-Za-z])|[|:]", inner)
        return (text, "one", "") if is_rule else (inner, "set", "")
    if text[:1] in ("(", "[") and text[-1:] in (")", "]") and closes(text) == len(text) - 1:
        return text[1:-1].strip(), "tuple", text[0] + text[-1]
    return text, "one", ""


def split(text: str) -> tuple[str, ...]:
    """At the separators outside all brackets: semicolons where there are any, otherwise commas and the words and, or."""
    if "\\begin" in text:
        return (text,)
    text = SPACED_WORD.sub(",", text)
    for separator in ";,":
        parts = split_at(text, separator)
        if len(parts) > 1:
            return tuple(part for part in parts if part)
    return (text,)


def split_at(text: str, separator: str) -> list[str]:
    parts, start, depth = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and character == separator:
            parts.append(text[start:position].strip())
            start = position + 1
    return [*parts, text[start:].strip()]


def split_signs(side: str) -> list[str]:
    """Return the terms of a sum, split at plus and minus signs outside all brackets."""
    parts, start, depth = [], 0, 0
    for position, character in enumerate(side):
        depth += (character in "([{") - (character in ")]}")
        before = side[:position].rstrip()[-1:]
        if depth == 0 and character in "+-" and (before.isalnum() or before in ")]}'"):
            parts.append(side[start:position].strip())
            start = position + 1
    return [*parts, side[start:].strip()]


def spread(items: tuple[str, ...]) -> tuple[str, ...]:
    r"""Every item with `\pm` as two."""
    both: list[str] = []
    for item in items:
        if EITHER_SIGN.search(item) and not item.startswith(("(", "[", "\\{")):
            for upper, lower in ("+-", "-+"):
                signs = {"pm": upper, "mp": lower}
                both.append(EITHER_SIGN.sub(lambda found, signs=signs: signs[found[1]], item))
        else:
            both.append(item)
    return tuple(both)


NAMES = {*GREEK.values(), "varepsilon", "vartheta", "varrho", "varphi", "ell"} - {"pi", "Pi"}
COMMAND = re.compile(rf"\\(?!(?:{'|'.join(sorted(NAMES))})(?![A-Za-z]))[A-Za-z]+")
LETTER = re.compile(r"(?:\\[A-Za-z]+|[A-Za-z])(?:_ ?(?:\{[^{}]*\}|\w))?'*")
CONSTANTS = {"e", "i"}  # in expressions; alone on their side they name something, as in `e = 1/2`
EQUALS = re.compile(r"(?<![<>:])(?<!(?<![\d)}])!)==?(?!=)|\\equiv(?![A-Za-z])")  # in `5!=120` too, not in `x!=2`


def read_equation(answer: str, gold: str) -> tuple[str, str, tuple[str, ...]]:
    """The text of an answer to compare with the reference, the side with its value, and sides that equal it. The text is the
    value alone where nothing on the other sides is a name. Two equations are compared as such."""
    sides = sides_of(clean(answer))
    if len(sides) < 2:
        return answer, "", ()
    is_product = sides[-1].endswith(")") and read(sides[0]).number  # of `20 = 0.25(80)` the 20 is the value
    if is_product or (letters(sides[-1]) and not letters(sides[0])):
        sides.reverse()
    *others, value = sides
    if len(sides) == 2 and letters(others[0]) and len(sides_of(clean(gold))) > 1:
        return answer, "", ()
    same = tuple(side for side in others if not is_name(side, value))
    return (value if len(same) == len(others) else " = ".join(sides)), value, same


def sides_of(cleaned: str) -> list[str]:
    """The parts between the signs of equality outside all brackets; the whole of a list or a system."""
    head = cleaned.partition(r"\approx")[0].strip()
    if EQUALS.search(head):
        cleaned = head  # what follows is rounded
    elif EQUALS.search(cleaned):
        cleaned = cleaned.replace(r"\approx", "=")
    if "\0" in cleaned or len(split(cleaned)) > 1:
        return [cleaned]
    return [side.replace("\0", "=") for side in split_at(EQUALS.sub("\0", cleaned), "\0") if side]


def is_name(side: str, value: str) -> bool:
    """A side is a name where it has a letter that the value lacks. Options do not name each other."""
    return bool(letters(side) - letters(value)) and not (read(side).choice and read(value).choice)


def letters(side: str) -> set[str]:
    """Variables of an expression; units of a number are none."""
    reading = read(side)
    if reading.number or side.strip() in CONSTANTS:
        return set() if reading.number else {side.strip()}
    return set(LETTER.findall(COMMAND.sub(" ", side))) - CONSTANTS


ARITHMETIC = r"[\d\s.,;:+\-*/^(){}\[\]%]|\\(?:[{}%]|(?:frac|cdot|times|div)(?![A-Za-z]))"
RATIONAL = re.compile(rf"(?:{ARITHMETIC})+")
CONSTANT = re.compile(
    rf"(?:{ARITHMETIC}|\\(?:sqrt|pi|infty|cup|cap|emptyset|pm|mp)(?![A-Za-z])|\\(?:begin|end) ?\{{[bp]matrix\}}|&|\\\\"
    r"|(?<![A-Za-z])[ei](?![A-Za-z]))+"
)
DIGIT = re.compile(r"\d|\\(?:pi|infty|emptyset)")  # part of every side that states a value; `e` in `e = 5` names one
TRIGONOMETRIC = r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])"
OPERATORS = (
    "sum|prod|coprod", "i*int|oint", "lim|limsup|liminf", "sup|inf|max|min", "gcd|lcm|[bp]?mod", "det|vmatrix",
    "[lcd]?dots", r"frac ?\{ ?(?:d|\\partial)[^{}]*\} ?\{ ?(?:d|\\partial) ?[^{}]+|d ?/ ?d[a-z]|(?<=[)\]}]) ?'",
)  # fmt: skip
"""Operators that say how a value is found: sums, integrals, limits, extremes, divisors, determinants, ellipses, derivatives."""
FUNCTIONS = (
    r"[dt]?binom|choose|Gamma|!|C_|[CP](?= ?\()", "ln|log|lg", "sin|cos|tan|cot|sec|csc", "arc(?:sin|cos|tan|cot|sec|csc)",
    "zeta|'", r"\|(?:\\[A-Za-z]+|[^A-Za-z|])+\||[lr]?(?:floor|ceil|vert)",
)  # fmt: skip
"""Functions that leave a number to be worked out, but belong to expressions with variables."""
POLAR = re.compile(r"e ?\^ ?(?:i|\{[^{}]*i)")  # `e^{i\pi/5}`, which is a cosine and a sine
KNOWN_ANGLE = re.compile(
    TRIGONOMETRIC
    + r"(?: ?\^ ?(?:\{ ?\d ?\}|\d))? ?[({]? ?-?(?:\\frac ?(?:\{ ?\d* ?\\pi ?\}|\\pi) ?(?:\{ ?[2346] ?\}|[2346])"
    r"|\d* ?\\pi(?: ?/ ?[2346])?(?![\d/])"
    r"|(?:[369]?0|1(?:[258]0|35)|2(?:[147]0|25)|3(?:[036]0|15)|45) ?\^ ?\{? ?\\circ(?![A-Za-z]))"
)
"""A multiple of \\pi/6 or \\pi/4, of which the sine is as good as a root."""


def is_left_open(golds: Sequence[str], answer: str) -> bool:
    """Whether the answer leaves work to be done that the references have done: for rational numbers all but arithmetic, powers
    and roots; for others functions that no reference has; else operators."""
    wanted = [bare(strip_name(item)) for gold in golds for item in items_of(gold)]
    if all(map(RATIONAL.fullmatch, wanted)) and all(take_apart(gold).kind != "tuple" for gold in golds):
        return any(not states_value(item) for item in items_of(answer))
    are_numbers = not any(map(letters, wanted)) or all(map(CONSTANT.fullmatch, wanted))
    text = POLAR.sub(r"\\sin", " ".join(map(clean, golds)))
    kinds = [re.compile(rf"(?<![A-Za-z])(?:{one})(?![A-Za-z])") for one in OPERATORS + FUNCTIONS * are_numbers]
    undone = [one for one in kinds if not one.search(text)]
    are_equations = any(len(sides_of(item)) > 1 for item in wanted)
    return any(is_open(item, undone, are_equations, wanted) for item in items_of(answer))


def is_open(item: str, undone: Sequence[re.Pattern[str]], is_equation: bool, wanted: Sequence[str]) -> bool:
    """All sides of a part of an answer that say more than a name, or any of an equation, have one of `undone`."""
    sides = [bare(side) for side in sides_of(clean(item).replace(r"\approx", "="))]
    done = [not any(one.search(KNOWN_ANGLE.sub("", side)) for one in undone) for side in sides]
    says = [side in wanted or not re.fullmatch(ONE_NAME, side) for side in sides]
    return not (all(done) if is_equation else all(done) or any(map(and_, done, says)))


def items_of(text: str) -> tuple[str, ...]:
    parts = take_apart(text).items
    return parts if len(parts) < 2 else tuple(item for part in parts for item in take_apart(part).items)


def states_value(item: str) -> bool:
    return any(
        DIGIT.search(side) and CONSTANT.fullmatch(side)
        for side in map(bare, sides_of(clean(item).replace(r"\approx", "=")))
    )


def bare(side: str) -> str:
    """A side without its unit; a date is a value as well."""
    reading = read(side)
    return "0" if reading.moment and reading.moment.is_sure else LETTER_UNIT.sub("", reading.body)


RELATION = re.compile(r" ?(\\(?:leq?|geq?|lt|gt|neq?)(?![A-Za-z])|<=|>=|!=|[<>=]|\\in(?![A-Za-z])) ?")
SIGNS = {
    r"\le": "<=", r"\leq": "<=", r"\ge": ">=", r"\geq": ">=", r"\lt": "<", r"\gt": ">", r"\ne": "!=", r"\neq": "!=",
}  # fmt: skip
MIRRORED = {">": "<", ">=": "<="}
JOINED = re.compile(
    r",? ?(?:\\text ?\{ ?,? ?(or|and) ?\}|(?<![A-Za-z\\])(or|and)(?![A-Za-z])|\\(lor|land)(?![A-Za-z])) ?"
)
VARIABLE = re.compile(r"(?:\\[A-Za-z]+|[A-Za-z])(?:_ ?(?:\{\w+\}|\w))?")
NO_VARIABLES = (r"\infty", r"\pi", "e")
BUILDER = re.compile(
    rf"\\\{{ ?({VARIABLE.pattern}) ?(?:\\in ?\\mathbb ?\{{? ?R ?\}}? ?)?(?:\\mid(?![A-Za-z])|[|:]) ?(.+?) ?\\\}}"
)
IN_REALS = re.compile(rf"({VARIABLE.pattern}) ?\\in ?\\mathbb ?\{{? ?R ?\}}? ?(?:,|\\text ?\{{ ?and ?\}}|\\land) ?")
BOUND = re.compile(
    r"[A-Za-z] ?\(([A-Za-z])\) ?=|\\\{ ?([A-Za-z]) ?(?:\\mid(?![A-Za-z])|[|:]|\\in(?![A-Za-z]))|\\(?:sum|prod) ?_ ?\{ ?([a-z]) ?="
)
"""The variable that a definition or a sum binds: `f(x) =`, `\\{x \\mid`, `\\sum_{k=1}`."""
ALONE = {"=": r"\{{{}\}}", "!=": r"(-\infty,{0})\cup({0},\infty)", r"\in": "{}"}  # all x with x = 3, and so on
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
    r"""The common part of two half-lines, `(1,2)` of `(1,\infty)` and `(-\infty,2)`; empty for anything else."""
    low, high = [one for one in sets if one.endswith(r"\infty)")], [one for one in sets if one.startswith(r"(-\infty")]
    if len(sets) != 2 or not len(low) == len(high) == 1 or low == high:
        return ""
    return low[0].removesuffix(r"\infty)") + high[0].removeprefix(r"(-\infty,")


def read_inequality(text: str) -> tuple[str, str]:
    r"""The variable and the set, `x` and `(-\infty,3)` of `x<3`; both empty for anything else."""
    sides = [side.strip() for side in RELATION.split(text)[::2]]
    signs = [SIGNS.get(sign, sign) for sign in map(str, RELATION.findall(text))]
    names = [side for side in sides if VARIABLE.fullmatch(side) and side not in NO_VARIABLES]
    if len(names) != 1 or any(names[0] in TOKEN.findall(side) for side in sides if side != names[0]):
        return "", ""
    (name,) = names
    if len(signs) == 1 and signs[0] in ALONE:
        is_set = signs[0] != r"\in" or sides[0] == name
        return (name, ALONE[signs[0]].format(*(side for side in sides if side != name))) if is_set else ("", "")
    if all(sign in MIRRORED for sign in signs):
        sides, signs = sides[::-1], [MIRRORED[sign] for sign in signs[::-1]]
    if len(sides) == 2 and sides[0] == name:
        sides, signs = [r"-\infty", *sides], ["<", *signs]
    elif len(sides) == 2:
        sides, signs = [*sides, r"\infty"], [*signs, "<"]
    if len(sides) != 3 or sides[1] != name or not {"<", "<="}.issuperset(signs):
        return "", ""
    opening, closing = "[" if signs[0] == "<=" else "(", "]" if signs[1] == "<=" else ")"
    return name, f"{opening}{sides[0]},{sides[2]}{closing}"


def write_brackets(text: str) -> str:
    r"""`]0,1[` -> `(0,1)`."""
    pieces = re.split(r" ?\\cup ?", text)
    if any(piece[:1] == "]" or piece[-1:] == "[" for piece in pieces) and all(
        piece[:1] in OPENING and piece[-1:] in CLOSING and len(split(piece[1:-1])) == 2 for piece in pieces
    ):
        return r" \cup ".join(
            f"{OPENING[piece[0]]}{','.join(split(piece[1:-1]))}{CLOSING[piece[-1]]}" for piece in pieces
        )
    return text


def rename_bound(gold: str, answer: str) -> str:
    """The answer with the bound variable of the reference: `f(t) = t+1` is `f(x) = x+1`."""
    wanted, given = BOUND.match(gold), BOUND.match(answer)
    if not wanted or not given:
        return answer
    new, old = (found[found.lastindex or 0] for found in (wanted, given))
    if new == old or new in TOKEN.findall(answer):
        return answer
    return TOKEN.sub(lambda found: new if found.group() == old else found.group(), answer)
