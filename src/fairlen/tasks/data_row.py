"""One problem of a data set, in any schema: the question, and the reference of a correct response.

Tests of programs may be packed, as LiveCodeBench keeps them: base64 of zlib of a pickle of one JSON string (its
lcb_runner/benchmarks/code_generation.py). A pickle can run code when it is loaded, so none is loaded: the opcodes are read and
the one string is taken that a pickled string consists of; all else is refused, and the unpacked size is bounded.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pickletools import genops
from string import ascii_uppercase
from typing import Any, ClassVar

from fairlen.files.limits import NotJSONError, parse_json
from fairlen.verify.answer import instruct
from fairlen.verify.program import ProgramTests

PROGRAM = (
    "Write a Python program that reads its input from stdin and prints its output to stdout. "
    "Put the whole program into one ```python block at the end."
)
FUNCTION = (
    "Write this in Python, as a function, or method of a class Solution, that is called {name}. "
    "Put all of the code into one ```python block at the end."
)
COMPLETE = "Complete this Python function. Put the whole function into one ```python block at the end."


@dataclass(frozen=True)
class Answers:
    kind: ClassVar = "math"
    parts: tuple[str, ...]  # all required, in any order; most problems have one
    others: tuple[str, ...] = ()  # further answers that are correct as well, each alone
    tolerance: float = 0.0  # absolute distance up to which a number is correct; 0 is exact

    @property
    def shown(self) -> str:
        return ", ".join(self.parts)

    def instruction(self, form: str = "auto") -> str:
        return instruct("all answers, separated by commas," if len(self.parts) > 1 else "your final answer", form)


@dataclass(frozen=True)
class Choice:
    kind: ClassVar = "choice"
    letter: str
    letters: str

    def instruction(self, form: str = "auto") -> str:
        return instruct("the letter of the right option", form)

    @property
    def shown(self) -> str:
        return self.letter


class UnusableRow(ValueError):
    """A row that cannot be trained on or be graded, with a reason that is counted."""


LISTED = ("choices", "options", "endings")
ONE_EACH = re.compile(r"(?:op|(?:option|choice|answer)[_ ]?)?([A-J])|(?:op|(?:option|choice|answer)[_ ]?)([a-j1-9])")
"""Columns of one option each: `A`, `opa`, `option_a`, `answerA`."""
FROM_ONE = "an answer's number is that of no option, counted from 0"


def is_option(name: str) -> bool:
    return name in LISTED or bool(ONE_EACH.fullmatch(name))


def read_options(raw: dict[str, Any]) -> dict[str, str]:
    """Options of a row by their labels; empty where it has none. Raises UnusableRow where they cannot be read."""
    cell = next((raw[name] for name in LISTED if raw.get(name) is not None), None)
    if cell is None:
        found = [(mark[1] or mark[2], raw[name]) for name in raw if (mark := ONE_EACH.fullmatch(name))]
        cell = {label.upper(): text for label, text in sorted(found) if text is not None}
        cell = cell if len(cell) > 2 and "".join(cell) in ("ABCDEFGHIJ"[: len(cell)], "123456789"[: len(cell)]) else {}
    if isinstance(cell, dict) and {"label", "text"} <= cell.keys():
        cell = dict(zip(cell["label"], cell["text"], strict=True))
    elif isinstance(cell, (list, tuple)):
        pairs = zip(ascii_uppercase, cell, strict=False)
        named = [one if isinstance(one, dict) else {"key": letter, "value": one} for letter, one in pairs]
        cell = {one.get("key", one.get("label")): one.get("value", one.get("text")) for one in named}
    if not isinstance(cell, dict) or not all(isinstance(text, (str, int, float)) for text in cell.values()):
        raise UnusableRow("options that are not a list of texts")
    return {
        str(name): re.sub(rf"^\(?{re.escape(str(name))} ?[).:] ?", "", str(text)).strip() for name, text in cell.items()
    }


def list_options(question: str, options: Sequence[str]) -> str:
    lines = [f"{letter}) {option}" for letter, option in zip(ascii_uppercase, options, strict=False)]
    return f"{question}\n\n" + "\n".join(lines)


def choose(value: Any, answer: str, options: dict[str, str], index: Any = None) -> Choice:
    """The option that a cell or its answer names by label, text or number from 0 (`index`). Raises UnusableRow for none."""
    letters, words = ascii_uppercase[: len(options)], {str(value).strip(), answer}
    labels = {word.strip("(). ").upper() for word in words}
    fits = {place for place, (name, text) in enumerate(options.items()) if name.upper() in labels or text in words}
    number = int(answer) if re.fullmatch(r"\d{1,2}", answer) and answer not in options else -1
    if 0 <= number < len(options) or (number == len(options) and not fits):
        fits = {number} | (fits if isinstance(value, str) else set())
    if fits == {len(options)}:
        raise UnusableRow(FROM_ONE)
    if len(fits) != 1 or len(options) > len(letters) or (isinstance(index, int) and index not in fits):
        raise UnusableRow("an answer that is not one of the options")
    return Choice(letters[fits.pop()], letters)


@dataclass(frozen=True)
class Program(ProgramTests):
    kind: ClassVar = "code"
    packed: str = field(default="", repr=False)  # more tests, unpacked only while they are needed: `unpack_tests`

    @property
    def shown(self) -> str:
        return ""

    def instruction(self, form: str = "auto") -> str:
        return COMPLETE if self.begun else FUNCTION.format(name=self.function) if self.function else PROGRAM


MAX_TESTS = 512 * 2**20  # bytes of the unpacked tests of one problem
STRINGS = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
AROUND = {"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"}  # opcodes of a pickle that is one string
MAX_OPCODES = 16  # such a pickle has five


def unpack_tests(text: str, max_bytes: int = MAX_TESTS) -> list[dict[str, Any]]:
    """Tests, each with input and output. Raises ValueError naming the fault."""
    text = text.strip()
    try:
        tests = parse_json(text if text.startswith(("[", "{")) else pickled_string(inflate(text, max_bytes)))
    except NotJSONError as error:
        raise ValueError(f"tests: {error}") from None
    if not isinstance(tests, list) or not all(isinstance(test, dict) for test in tests):
        raise ValueError(f"tests are not a list of objects but {type(tests).__name__}")
    return tests


def inflate(text: str, max_bytes: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(base64.b64decode(text, validate=True), max_bytes + 1)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"tests are neither JSON nor base64 of zlib: {error}") from None
    if len(data) > max_bytes:
        raise ValueError(f"tests unpack to more than {max_bytes:,} bytes")
    if not stream.eof:
        raise ValueError("tests are cut off: the zlib stream does not end")
    return data


def pickled_string(data: bytes) -> str:
    """The string of a pickle of one string; ValueError for a pickle of anything else. Nothing is loaded."""
    found = ""
    try:
        for number, (opcode, argument, _) in enumerate(genops(data)):  # up to one too many of half a billion
            if opcode.name in STRINGS and not found:
                found = str(argument)
            elif opcode.name not in AROUND or number >= MAX_OPCODES:
                raise ValueError(f"opcode {opcode.name}")
    except (ValueError, IndexError) as error:
        raise ValueError(f"tests are no pickled string ({error}); other pickles can run code and are refused") from None
    return found


Reference = Answers | Choice | Program


@dataclass(frozen=True)
class DataRow:
    id: str  # unique within its set, and the same in every run
    dataset: str
    question: str
    reference: Reference
    columns: dict[str, Any] = field(default_factory=dict)
    earlier: tuple[tuple[str, str], ...] = ()  # (role, content) of messages before the question

    @property
    def kind(self) -> str:
        return self.reference.kind

    @cached_property
    def key(self) -> str:
        """The question, the same for all copies of a problem."""
        return normalize(self.question)

    @cached_property
    def mark(self) -> str:
        """A hash of the question and what was said before it: tells problems apart, and orders them independently of files."""
        earlier = (normalize(text) for _, text in self.earlier)
        return hashlib.sha256("\0".join([self.key, *earlier]).encode()).hexdigest()

    def canonical(self) -> str:
        """One line of JSON, the same for every kind of file."""
        value = {"kind": self.kind} | asdict(self)
        return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


SPACING = re.compile(r"\\[,;:! ]|\\(?:quad|qquad|left|right|displaystyle)(?![a-zA-Z])|[\s$~]")


def normalize(question: str) -> str:
    r"""Remove the differences between copies: white space, dollars, spacing commands, \dfrac for \frac."""
    text = unicodedata.normalize("NFC", question)
    return SPACING.sub("", re.sub(r"\\[dt]frac(?![a-zA-Z])", r"\\frac", text))
