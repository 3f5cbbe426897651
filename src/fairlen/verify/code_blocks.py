"""Finds the program in a finished text: fenced blocks as in CommonMark 0.31, section 4.5, in quotes too. Linear in the text."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

from fairlen.verify.answer import MAX_TEXT, after_thinking

MAX_FENCES = 1000
"""At the end of a response, among which a program is looked for: the caller waits for it."""

FENCE = re.compile(r"^([ \t>]*)(`{3,}|~{3,})(.*)\n?", re.MULTILINE)
PYTHON = re.compile(r"[{.]*(?:python|pypy|py)[\d.]*(?![\w-])", re.IGNORECASE)
"""What follows an opening fence, at its start."""


def extract_code(text: str, starts_inside: bool = False) -> str | None:
    """The code of the last closed block after the thinking that is marked as Python. Where none is, it is that of the last
    without a mark, and then of the last with any. None where there is no block; empty ones are none.

    `starts_inside`: the prompt ended with `<think>`.
    """
    rest = (after_thinking(text, starts_inside) or "")[-MAX_TEXT:]
    last: dict[int, tuple[str, str]] = {}
    for before, mark, code in find_blocks(rest):
        if code and not code.isspace():
            last[1 if not mark else 2 if PYTHON.match(mark) else 0] = before, code
    return unindent(*last[max(last)]) if last else None


def find_blocks(text: str) -> Iterator[tuple[str, str, str]]:
    """What stands before the opening fence, the mark after it and the lines of each closed block.

    A fence with a mark opens a block even within one, as the one before was never closed. One that is shorter, of the other kind
    or deeper in quotes than the one that opened the block belongs to its lines.
    """
    opened, start, before, mark = "", 0, "", ""
    for found in deque(FENCE.finditer(text), MAX_FENCES):
        indent, fence, info = found.groups()
        if opened and not (fence.startswith(opened) and indent.count(">") <= before.count(">")):
            continue
        if "`" in info:
            continue
        info = info.strip()
        if opened and not info:
            yield before, mark, text[start : found.start()]
            opened = ""
        else:
            opened, start, before, mark = fence, found.end(), indent, info


def unindent(before: str, code: str) -> str:
    """Lines without the signs of quotation and the blanks that stand before the opening fence too, where they have them."""
    quotes, indent = before.count(">"), len(before) - len(before.rstrip(" \t"))
    if quotes:
        code = re.sub(rf"^(?:[ \t]*>){{1,{quotes}}} ?", "", code, flags=re.MULTILINE)
        indent = max(indent - 1, 0)
    return re.sub(rf"^[ \t]{{1,{indent}}}", "", code, flags=re.MULTILINE) if indent else code
