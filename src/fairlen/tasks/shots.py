"""Solved examples before each problem (`--shots FILE:N`): the first problems of a file, each with a worked solution."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fairlen.files.formats import columns_of, stream
from fairlen.files.limits import bounded_seconds
from fairlen.tasks.data_row import DataRow, Program, UnusableRow
from fairlen.tasks.schemas import choose_schema
from fairlen.tasks.source import DataError, locate, read_source
from fairlen.verify.answer import FORMS, PATTERN, last_of, match_exactly

MARK = re.compile(r"\s*####[^\n]*\s*\Z")
"""The answer at the end of a solution of GSM8K."""
MAX_SECONDS = 5.0


@dataclass(frozen=True)
class Shot:
    row: DataRow
    solution: str


def read_shots(text: str, form: str = "auto") -> tuple[Shot, ...]:
    """Read the examples of FILE:N, with answers in a form. Raises ValueError."""
    place, _, number = text.rpartition(":")
    if not place or not number.isdecimal() or not int(number):
        raise ValueError(f"--shots {text}: write FILE:N, a file as --data takes it and how many of its first problems")
    try:
        shots = tuple(islice(find_shots(place, form), int(number)))
    except DataError as error:
        raise ValueError(str(error).replace("--data", "--shots", 1)) from None
    if len(shots) < int(number):
        raise ValueError(f"--shots {text}: {place} has {len(shots)} problems with answers; give at most that many")
    return shots


def find_shots(place: str, form: str) -> Iterator[Shot]:
    source = read_source(place)
    for path in locate(source)[0]:
        schema = choose_schema(place, columns_of(path))
        for raw in (raw for chunk in stream(path) for raw in chunk.rows()):
            if all(one.accepts(raw.get(one.column)) for one in source.filters):
                with suppress(UnusableRow):
                    row = schema.parse(raw)
                    if not isinstance(row.reference, Program):
                        yield Shot(row, solve(row, (raw.get("solution"), raw.get(schema.needed[1])), form))


def solve(row: DataRow, cells: tuple[Any, ...], form: str) -> str:
    """The solution of a row that has one, which ends with the answer in the form."""
    answer, letters, read = row.reference.shown, getattr(row.reference, "letters", ""), None
    given = (cell.strip() for cell in cells if isinstance(cell, str))
    solution = next((cell for cell in given if len(cell.split()) > len(answer.split()) + 1), "")
    if form in FORMS:
        read = FORMS[form].read(solution, letters)
    else:
        with suppress(TimeoutError), bounded_seconds(MAX_SECONDS):
            read = last_of(re.compile(form.removeprefix(PATTERN)), solution := solution or answer)
    if read and match_exactly(read, answer):
        return solution
    if form not in FORMS:
        raise ValueError(f"--shots: --answer {form} does not read {answer!r} in {solution[-80:]!r}; change one")
    return f"{MARK.sub('', solution)}\n{FORMS[form].written.format(answer)}".lstrip()
