"""Tests of programs as LiveCodeBench keeps them: JSON, or base64 of zlib of a pickle of one JSON string.

A pickle can run code when it is loaded, so none is loaded: this reads the opcodes and takes the one string that a pickled
string consists of. Everything else (calls, imports, lists) is refused. Unpacked size is bounded.

Source of the format: LiveCodeBench, lcb_runner/benchmarks/code_generation.py.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from pickletools import genops
from typing import Any

from fairlen.files.limits import NotJSONError, parse_json

MAX_BYTES = 512 * 2**20
"""Largest unpacked tests of one problem."""
STRINGS = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
AROUND = {"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"}


def unpack_tests(text: str, most_bytes: int = MAX_BYTES) -> list[dict[str, Any]]:
    """The tests, each with input and output. Raises ValueError saying what is wrong with them."""
    text = text.strip()
    if not text.startswith(("[", "{")):
        text = pickled_string(inflate(text, most_bytes))
    try:
        tests = parse_json(text)
    except NotJSONError as error:
        raise ValueError(f"tests: {error}") from None
    if not isinstance(tests, list) or not all(isinstance(test, dict) for test in tests):
        raise ValueError(f"tests are not a list of objects but {type(tests).__name__}")
    return tests


def inflate(text: str, most_bytes: int) -> bytes:
    """base64 and zlib undone, up to `most_bytes`."""
    try:
        packed = base64.b64decode(text, validate=True)
        stream = zlib.decompressobj()
        data = stream.decompress(packed, most_bytes + 1)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise ValueError(f"tests are neither JSON nor base64 of zlib: {error}") from None
    if len(data) > most_bytes:
        raise ValueError(f"tests unpack to more than {most_bytes:,} bytes")
    if not stream.eof:
        raise ValueError("tests are cut off: the zlib stream does not end")
    return data


def pickled_string(data: bytes) -> str:
    """The string that a pickle of one string holds; ValueError for a pickle of anything else. Nothing is loaded."""
    found: list[str] = []
    try:
        for opcode, argument, _ in genops(data):
            if opcode.name in STRINGS and not found:
                found.append(str(argument))
            elif opcode.name not in AROUND:
                raise ValueError(f"opcode {opcode.name}")
    except (ValueError, IndexError, UnicodeError) as error:
        raise ValueError(
            f"tests are not a pickled string ({error}); other pickles can run code and are refused"
        ) from None
    if not found:
        raise ValueError("tests are not a pickled string; other pickles can run code and are refused")
    return found[0]
