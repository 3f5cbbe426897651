"""LiveCodeBench's comparison of outputs (facts of its `lcb_runner/evaluation/testing_util.py`, not code). Also a program:
python outputs.py KIND SIZE MEMORY compares the first SIZE bytes of stdin with the rest.

Texts: stripped, with as many lines, which are the same when stripped, or as many decimal numbers of exactly equal values.
Values: equal as JSON, in which a tuple is a list; LiveCodeBench converts the outermost only.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Literal

OutputKind = Literal["text", "value"]  # printed text, or the returned value of a function as JSON


def is_same(kind: OutputKind, given: bytes, expected: bytes) -> bool:
    if kind == "value":
        return same_value(given, expected.decode())
    return same_text(given.decode("utf-8", "replace"), expected.decode())


def same_text(given: str, expected: str) -> bool:
    lines, wanted = given.strip().split("\n"), expected.strip().split("\n")
    return len(lines) == len(wanted) and all(map(same_line, lines, wanted))


def same_line(given: str, expected: str) -> bool:
    if given.strip() == expected.strip():
        return True
    words, wanted = given.split(), expected.split()
    # Counted first: a program may print millions of numbers in a line where one was expected.
    return len(words) == len(wanted) and all(map(same_number, words, wanted))


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


def main() -> None:
    kind, size, memory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with suppress(ValueError, OSError):  # a lower limit holds already, or the system has none, as macOS
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    gc.disable()  # millions of lists take four times as long with it, and none of them is garbage
    text = sys.stdin.buffer.read()
    try:
        found = is_same("value" if kind == "value" else "text", text[:size], text[size:])
    except MemoryError:
        found = False
    print("same" if found else "other")


if __name__ == "__main__":
    main()
