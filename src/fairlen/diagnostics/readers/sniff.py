"""Which format a file has, by the names of its columns and not by its own."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fairlen.diagnostics.readers import fairlen_records, generic, lm_eval, prime_rl, trl, verl
from fairlen.diagnostics.readers.files import DAMAGED, MEND, Unreadable, describe, open_bytes, parse
from fairlen.files.limits import (
    NotJSONError,
    TooLargeError,
    bounded_memory,
    describe_excess,
    parse_json,
    read_json,
    read_lines,
)

FORMATS: tuple[Any, ...] = (fairlen_records, trl, verl, prime_rl, lm_eval, generic)
"""In the order in which they are tried."""
MAX_LINES = 100
"""Lines looked at for the first object."""
ENOUGH = 10
"""Objects whose names are taken."""


class NoRollouts(Unreadable):
    """A file that can be read but holds no rollouts."""


def columns_of(path: Path, container: str) -> set[str]:
    """Names of the columns. Raises Unreadable where there are none."""
    try:
        if container == "parquet":
            return set(pq.read_schema(path).names)
        with open_bytes(path) as file:
            if container == "csv":
                head = next(read_lines(file, path)).decode("utf-8-sig", "replace")
                return {name.strip() for name in next(csv.reader([head], delimiter=max(",\t;", key=head.count)))}
            if container == "json":
                with bounded_memory():
                    return names_of(parse_json(read_json(file)))
            return names_in_lines(read_lines(file, path), path)
    except NoRollouts:
        raise
    except NotJSONError as error:
        raise Unreadable(f"{path}: {error}; {MEND}") from None
    except (TooLargeError, MemoryError) as error:
        raise Unreadable(f"{path}: {describe_excess(error)}") from None
    except (OSError, EOFError, ValueError, RecursionError, csv.Error, pa.ArrowException) as error:
        raise Unreadable(f"{path}: {describe(error)}; {DAMAGED}") from None


def names_in_lines(lines: Iterator[bytes], path: Path) -> set[str]:
    """Names of the first objects. Raises NoRollouts with what is wrong with the first line where there is none."""
    rows: list[dict[str, Any]] = []
    reason = ""
    for number, line in enumerate(islice(lines, MAX_LINES), 1):
        row, problem = (None, "") if line.isspace() else parse(line)
        rows += [] if row is None else [row]
        reason = reason or (problem and f"line {number}: {problem}")
        if len(rows) == ENOUGH:
            break
    if reason and not rows:
        raise NoRollouts(f"{path}: no object in its first lines: {reason}")
    return set(chain.from_iterable(rows))


def names_of(value: Any) -> set[str]:
    """Names of the first objects of an array."""
    rows = [row for row in value[:ENOUGH] if isinstance(row, dict)] if isinstance(value, list) else []
    return set(chain.from_iterable(rows))


def sniff(path: Path, container: str, given: dict[str, str]) -> Any:
    """The module that reads the file.

    Raises Unreadable for a file that --columns does not fit, NoRollouts for one with other things in it.
    """
    columns = columns_of(path, container)
    if given and not fairlen_records.fits(columns):
        wrong = generic.check_given(given, columns)
        if wrong:
            raise NoRollouts(f"{path}: {wrong}")
        formats: tuple[Any, ...] = (generic,)
    else:
        formats = FORMATS
    for module in formats:
        if module.fits(columns, given) if module is generic else module.fits(columns):
            return module
    if not columns:
        raise NoRollouts(f"{path}: no object in its first lines: give one JSON object a line")
    names = ", ".join(sorted(columns)[:12])
    raise NoRollouts(
        f"{path}: no column of answers and rewards among {names}: name them: --columns response=NAME,reward=NAME"
    )
