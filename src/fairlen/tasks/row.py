"""One problem of a data set, whatever its schema was: what is asked, and what a right response is.

No prompts, no tokens and no verification here.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Answers:
    """A mathematical answer."""

    parts: tuple[str, ...]
    """All needed, in any order; most problems have one."""
    others: tuple[str, ...] = ()
    """Further answers that are right as well, each alone."""
    tolerance: float = 0.0
    """Absolute distance up to which a number is right; 0 is exact."""

    @property
    def shown(self) -> str:
        """As it is recorded and handed to reward functions."""
        return ", ".join(self.parts)


@dataclass(frozen=True)
class Choice:
    """One option of several."""

    letter: str
    """The right one."""
    letters: str
    """All of them, such as ABCD."""

    @property
    def shown(self) -> str:
        return self.letter


@dataclass(frozen=True)
class Program:
    """Tests that a program has to pass, all of them."""

    cases: tuple[tuple[str, str], ...]
    """Input and expected output of each test; of a function, one JSON value a line and the JSON of its result."""
    packed: str = field(default="", repr=False)
    """More tests as they lie in the data set, unpacked only while they are needed: `packed_tests.unpack_tests`."""
    function: str = ""
    """The function or method of class Solution that is called; empty where a program reads stdin and writes stdout."""

    @property
    def shown(self) -> str:
        return ""


Reference = Answers | Choice | Program
KINDS = {Answers: "math", Choice: "choice", Program: "code"}


@dataclass(frozen=True)
class Row:
    """One problem."""

    id: str
    """Unique within its set, and the same in every run."""
    dataset: str
    """Name of the set."""
    question: str
    reference: Reference
    columns: dict[str, Any] = field(default_factory=dict)
    """What else the source says of it: difficulty, subject, year, contest_date, …"""
    earlier: tuple[tuple[str, str], ...] = ()
    """(role, content) of messages before the question, where the source has them."""

    @property
    def kind(self) -> str:
        """math, choice or code."""
        return KINDS[type(self.reference)]

    @cached_property
    def key(self) -> str:
        """What two copies of a problem have in common."""
        return normalize(self.question)

    @cached_property
    def mark(self) -> str:
        """A hash of the question: tells problems apart, and orders them as no file does."""
        return hashlib.sha256(self.key.encode()).hexdigest()

    def canonical(self) -> str:
        """All of it as one line of JSON, the same whatever kind of file it came from."""
        value = {"kind": self.kind} | asdict(self)
        return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


SPACING = re.compile(r"\\[,;:! ]|\\(?:quad|qquad|left|right|displaystyle)(?![a-zA-Z])|[\s$~]")


def normalize(question: str) -> str:
    """A question without what changes between copies of it: white space, dollar signs, spacing commands, \\dfrac for \\frac.

    Letters, digits and signs all stay, so that problems which differ in one of them stay different.
    """
    text = unicodedata.normalize("NFC", question)
    return SPACING.sub("", re.sub(r"\\[dt]frac(?![a-zA-Z])", r"\\frac", text))


def fingerprint(rows: Iterable[Row]) -> str:
    """sha256 of the rows in their order."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(row.canonical().encode() + b"\n")
    return digest.hexdigest()
