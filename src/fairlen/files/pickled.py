"""Plain data of a pickle, by its opcodes: texts, numbers, lists, dicts; nothing is imported, called or constructed."""

from __future__ import annotations

import re
import struct
from io import BytesIO
from pickletools import genops
from typing import Any

from fairlen.files.limits import MAX_DEPTH, RATIO, RefusedError, is_deep

REMEDY = "reading one runs whatever code is in it; load it where you trust it and write one JSON object a line"
MIN_COPIED = 64 * 2**20
"""Characters that may be repeated, 64 for a value, or 100 a byte of a larger file: a hundred bytes could stand for a billion."""
NUMBER = re.compile(rb"K.|M..|J....|G.{8}", re.DOTALL)
RUN = re.compile(rb"(?:%b){1,1000}" % NUMBER.pattern, re.DOTALL)  # numbers of one list, of which rollouts are full
SHAPES = dict(zip(b"KMJG", (struct.Struct(shape).unpack for shape in ("<xB", "<xH", "<xi", ">xd")), strict=True))
VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
NEW = {"NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": bool}
NEW |= {"EMPTY_LIST": list, "EMPTY_TUPLE": list, "EMPTY_DICT": dict}
TAKEN = {"APPEND": 1, "APPENDS": 0, "SETITEM": 2, "SETITEMS": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "TUPLE": 0}
"""Values that an opcode takes from the stack; 0 is all from the last mark on."""


def read_plain(data: bytes) -> Any:
    """Read the value of a pickle: tuples as lists, keys as texts, and copies of values that occur twice.

    Raises RefusedError for more than plain data, ValueError for opcodes that make no value.
    """
    file, plain = BytesIO(data), Plain(max(MIN_COPIED, RATIO * len(data)))
    try:
        for opcode, argument, _ in genops(file):
            if opcode.name == "MARK" and (run := RUN.match(data, file.tell())):
                plain.marks.append(len(plain.stack))
                plain.stack += [SHAPES[one[0]](one)[0] for one in NUMBER.findall(run[0])]
                file.seek(run.end())
            elif opcode.name not in ("PROTO", "FRAME", "STOP"):
                plain.apply(opcode.name, argument)
        (value,) = plain.stack
        if is_deep(value):
            raise RefusedError(f"lists and objects nested more than {MAX_DEPTH} deep: write JSON lines")
    except (IndexError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"opcodes that no program writes ({type(error).__name__})") from None
    return value


class Plain:
    """A pickle's machine without what constructs objects."""

    def __init__(self, room: int) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.room = self.most = room

    def apply(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in VALUES:
            stack.append(argument)
        elif name in NEW:
            stack.append(NEW[name]())
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if argument is None else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.copy(self.memo[argument]))
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name in TAKEN:
            start = len(stack) - TAKEN[name] if TAKEN[name] else self.marks.pop()
            items, stack[start:] = stack[start:], []
            if name.startswith("TUPLE"):
                stack.append(items)
            elif name.startswith("APPEND"):
                stack[-1].extend(items)
            else:
                stack[-1].update(zip(map(str, items[::2]), items[1::2], strict=True))
        else:
            asked = f"{name} {argument}".strip()
            raise RefusedError(f"a pickle of more than plain data ({asked!r:.60}): {REMEDY}")

    def copy(self, value: Any) -> Any:
        """Raises RefusedError where all copies together are too large."""
        keys = sum(map(len, value)) if isinstance(value, dict) else 0
        self.room -= len(value) + 1 if isinstance(value, str) else 64 + keys
        if self.room < 0:
            size = f"more than {self.most >> 20} Mi characters"
            raise RefusedError(f"{size} occur in it again and again: write JSON lines")
        if isinstance(value, list):
            return [self.copy(one) for one in value]
        return {key: self.copy(one) for key, one in value.items()} if isinstance(value, dict) else value
