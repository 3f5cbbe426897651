r"""What an answer is made of: one thing, several in any order, or several in order, `1, 2`, `\{1,2\}`, `(1,2)`. Text only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from fairlen.verify.typesetting import clean, closes

Kind = Literal["one", "list", "set", "tuple"]

SPACED_WORD = re.compile(r"\\text ?\{ ?,? ?(?:and|or) ?\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z](?![_=(]))")
ONE_NAME = (
    r"(?:\\?[A-Za-z]+(?:_ ?(?:\{[^{}]*\}|\w))?'?(?: ?\([^()]*\))?"  # x, x_1, \alpha', f(x)
    r"|\([^()]*\)|\\text ?\{[^{}]*\}"  # (x,y), \text{area}
    r"|\|?[A-Z]{2,3}\|?|\\(?:angle|overline) ?\{?[A-Z]+\}?)"  # |AB|, \angle ABC
)
NAME = re.compile(ONE_NAME + r" ?(?:(?<![<>!:])=|\\in(?![A-Za-z])) ?")
COLUMN = re.compile(r"\\begin\{([pb])matrix\}([^&]*)\\end\{\1matrix\}")
PLUS_MINUS = re.compile(r"\\pm(?![A-Za-z])")
MINUS_PLUS = re.compile(r"\\mp(?![A-Za-z])")


@dataclass(frozen=True, slots=True)
class Structure:
    """An answer, taken apart once."""

    kind: Kind
    items: tuple[str, ...]
    """One for "one"."""
    brackets: str = ""
    """Of a tuple, "()", "[)", ...: with two items it may be an interval."""
    order: tuple[str, ...] = ()
    """Of a tuple, the names before it, as in `(x, y) = (1, 2)`."""

    @property
    def names(self) -> frozenset[str]:
        """Left-hand sides of the items."""
        return frozenset(found.group() for item in self.items if (found := NAME.match(item)))


def take_apart(answer: str) -> Structure:
    r"""The structure of a cleaned answer; `\pm` is two answers."""
    answer = clean(answer).replace(r"\langle", "(").replace(r"\rangle", ")")
    items = split(answer)
    if len(items) > 1:
        return Structure("list", spread(items))
    if "=" not in answer and len(parts := split_at(answer, ":")) > 2 and all(parts):
        ratios = tuple(rf"\frac{{{one}}}{{{other}}}" for one, other in pairwise(parts))
        return Structure("tuple", ratios, "::")
    bare = strip_name(answer)
    if column := COLUMN.fullmatch(bare):
        rows = [row.strip() for row in column.group(2).split(r"\\")]
        return Structure("tuple", tuple(row for row in rows if row), "()")
    inner, kind, brackets = open_brackets(bare if bare[:1] in "([{\\" else answer)
    if kind != "one":
        items = split(inner) if inner else ()
        if kind == "set" or len(items) > 1:
            return Structure(kind, spread(items) if kind == "set" else items, brackets, order_of(answer))
    items = spread((answer,))
    return Structure("list" if len(items) > 1 else "one", items)


def order_of(answer: str) -> tuple[str, ...]:
    """The names in `(x, y) = (1, 2)`, where there are some."""
    name = answer.partition("=")[0].strip() if answer.startswith("(") and NAME.match(answer) else ""
    return split(name[1:-1]) if name else ()


def strip_name(item: str) -> str:
    r"""`x = 5` -> `5`, `(p,q) = (3,2)` -> `(3,2)`, `x \in [0,1)` -> `[0,1)`."""
    return NAME.sub("", item, count=1) if NAME.match(item) else item


def open_brackets(text: str) -> tuple[str, Kind, str]:
    """What is between the outer brackets, and what they make of it."""
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
    """The stripped parts between separators at depth 0."""
    parts, start, depth = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and character == separator:
            parts.append(text[start:position].strip())
            start = position + 1
    return [*parts, text[start:].strip()]


def spread(items: tuple[str, ...]) -> tuple[str, ...]:
    r"""Every item with `\pm` as two."""
    both: list[str] = []
    for item in items:
        if (PLUS_MINUS.search(item) or MINUS_PLUS.search(item)) and not item.startswith(("(", "[", "\\{")):
            both.append(MINUS_PLUS.sub("-", PLUS_MINUS.sub("+", item)))
            both.append(MINUS_PLUS.sub("+", PLUS_MINUS.sub("-", item)))
        else:
            both.append(item)
    return tuple(both)
