r"""Inequalities as the sets that they say: `\{x\mid x<3\}` and `]-\infty,3[` are `(-\infty,3)`. Text only, no algebra.

Only where one variable stands alone between numbers; everything else is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fairlen.verify.cases import TOKEN
from fairlen.verify.structure import split_at

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
    r"""What two half-lines have in common, `(1,2)` of `(1,\infty)` and `(-\infty,2)`; empty for anything else."""
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
    if any(piece[:1] == "]" or piece[-1:] == "[" for piece in pieces) and all(map(is_interval, pieces)):
        return r" \cup ".join(f"{OPENING[piece[0]]}{piece[1:-1]}{CLOSING[piece[-1]]}" for piece in pieces)
    return text


def is_interval(text: str) -> bool:
    """Whether these are two bounds between brackets that face either way."""
    return text[:1] in OPENING and text[-1:] in CLOSING and len(split_at(text[1:-1], ",")) == 2


def rename_bound(gold: str, answer: str) -> str:
    """The answer with the bound variable of the reference: `f(t) = t+1` is `f(x) = x+1`."""
    wanted, given = BOUND.match(gold), BOUND.match(answer)
    if not wanted or not given:
        return answer
    new, old = (found.group(1) or found.group(2) for found in (wanted, given))
    if new == old or new in TOKEN.findall(answer):
        return answer
    return TOKEN.sub(lambda found: new if found.group() == old else found.group(), answer)
