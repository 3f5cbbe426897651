"""Rows of somebody else's files: Parquet, JSON lines, a JSON array of objects, CSV or TSV, the last four also compressed.

Formats are recognised by their first bytes, rows are read a chunk at a time, and nothing becomes larger than `limits` allows.
Kept by hand, because no library does these three together: a bound on what a compressed file, a line or a page may become, the
number of the line that is broken, and cells as they are written (pyarrow and `datasets` guess one type for each column).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from fairlen.files.limits import (
    MAX_LINE,
    NotJSONError,
    TooLargeError,
    bounded_memory,
    describe_excess,
    find_half,
    may_hold_half,
    parse_json,
    read_json,
    read_lines,
)

CHUNK = 4096
"""Rows read at once."""
CHUNK_BYTES = 16 * 2**20
"""Of text read at once: rows with tokens in them can be large."""
PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""First bytes of compressed files."""
EMPTY = "the file is empty: there are no rows in it; write it again, or leave it out"
DAMAGED = "the file is damaged or was not finished: fetch it or write it again"
READABLE = "Parquet, JSON lines, a JSON array of objects, CSV or TSV; the last four also as .gz or .zst"

Columns = dict[str, list[Any]]
Row = dict[str, Any]
Reject = Callable[[int, str], None]
"""Called with the line of a row that cannot be read, and the reason; what it raises ends the reading."""
Candidate = tuple[int, Row | None, str, int]
"""A line's number, the row in it or None, what is wrong with it, and its size."""


class Unreadable(ValueError):
    """A file that cannot be read: why, and what to do."""


@dataclass(frozen=True)
class Chunk:
    """Some rows of one file."""

    file: str
    lines: Sequence[int]
    """Line of each row, from 1; of a table or an array its row."""
    columns: Columns

    def __len__(self) -> int:
        return len(self.lines)

    def get(self, name: str) -> list[Any]:
        """Return a column; None in every row where the file has none of that name."""
        return self.columns.get(name) or [None] * len(self)

    def rows(self) -> Iterator[Row]:
        """Yield the rows; None in columns that a row of JSON lacks."""
        return ({name: cells[place] for name, cells in self.columns.items()} for place in range(len(self)))


def container_of(path: Path) -> str:
    """Return what a file is made of, by its first bytes: parquet, jsonl, json or csv.

    Raises Unreadable for everything else. Pickles are refused, because reading one runs the code in it.
    """
    with refused(path), open_bytes(path) as file:
        start = file.read(4096)
    if start[:4] == b"PAR1":
        return "parquet"
    if start[:4] == b"PK\x03\x04" or start[:1] == b"\x80":
        raise Unreadable(
            f"{path}: a pickle (torch.save writes them): reading one runs whatever code is in it, so it is refused; "
            "load it where you trust it and write one JSON object a line"
        )
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text:
        raise Unreadable(f"{path}: {EMPTY}")
    if b"\x00" in text or (path.suffix == ".parquet" and text[:1] not in (b"{", b"[")):
        raise Unreadable(f"{path}: not a file of rows: give {READABLE}")
    if text[:1] == b"[":
        return "json"
    return "jsonl" if text[:1] == b"{" or re.search(r"\.jsonl?(\.gz|\.zst)?$", path.name) else "csv"


def columns_of(path: Path, container: str, reject: Reject | None = None, size: int = CHUNK) -> list[str]:
    """Return the names of a file's columns, of text those of its first `size` rows. Raises Unreadable where there are no rows."""
    if container == "parquet":
        with refused(path):
            return list(pq.read_schema(path).names)
    for chunk in stream(path, container, reject, size=size):
        return list(chunk.columns)
    raise Unreadable(f"{path}: {EMPTY}")


def stream(
    path: Path,
    container: str,
    reject: Reject | None = None,
    *,
    columns: Sequence[str] | None = None,
    counts: bool = False,
    size: int = CHUNK,
) -> Iterator[Chunk]:
    """Yield the rows of a file in chunks of at most `size`, with the given columns or all.

    `counts`: a table's lists of numbers are given as how many there are. Raises Unreadable where the file breaks off, exceeds a
    limit or, without `reject`, has a row that cannot be read, naming its line.
    """
    with refused(path):
        if container == "parquet":
            yield from stream_table(path, columns, counts, size)
        else:
            candidates = {"jsonl": read_objects, "json": read_array, "csv": read_cells}[container](path)
            unit = "row" if container == "json" else "line"
            yield from gather(path, candidates, reject or refuse_rows(path, unit), columns, size)


def refuse_rows(path: Path, unit: str) -> Reject:
    """Return what raises Unreadable for the first row that cannot be read."""

    def reject(line: int, reason: str) -> None:
        raise Unreadable(f"{path}, {unit} {line}: {reason}; mend or remove the {unit}")

    return reject


def gather(
    path: Path, candidates: Iterable[Candidate], reject: Reject, columns: Sequence[str] | None, size: int
) -> Iterator[Chunk]:
    """Yield chunks of the rows that can be read."""
    rows: list[Row] = []
    lines: list[int] = []
    room = CHUNK_BYTES
    for line, row, problem, length in candidates:
        if row is None:
            reject(line, problem)
            continue
        rows.append(row)
        lines.append(line)
        room -= length
        if len(rows) == size or room < 0:
            yield make_chunk(path, lines, rows, columns)
            rows, lines, room = [], [], CHUNK_BYTES
    if rows:
        yield make_chunk(path, lines, rows, columns)


def make_chunk(path: Path, lines: list[int], rows: list[Row], columns: Sequence[str] | None) -> Chunk:
    """Return rows as a chunk; None where one lacks a name."""
    names = dict.fromkeys(chain.from_iterable(rows)) if columns is None else columns
    return Chunk(str(path), lines, {name: [row.get(name) for row in rows] for name in names})


def stream_table(path: Path, columns: Sequence[str] | None, counts: bool, size: int) -> Iterator[Chunk]:
    """Yield the rows of a Parquet file. A kilobyte of one can be written to become gigabytes."""
    with pq.ParquetFile(path, memory_map=True) as file:
        batches, first = file.iter_batches(size, columns=None if columns is None else list(columns)), 1
        while True:
            with bounded_memory():
                if (batch := next(batches, None)) is None:
                    return
                cells = {n: convert(c, counts) for n, c in zip(batch.schema.names, batch.columns, strict=True)}
            yield Chunk(str(path), range(first, first + batch.num_rows), cells)
            first += batch.num_rows


def convert(column: Any, counts: bool) -> list[Any]:
    """Return a column as Python values; with `counts`, lists of numbers as their lengths."""
    kind = column.type
    if counts and (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_primitive(kind.value_type):
        return column.value_lengths().to_pylist()
    return column.to_pylist()


def read_objects(path: Path) -> Iterator[Candidate]:
    """Yield the objects of JSON lines."""
    with open_bytes(path) as file:
        for number, line in enumerate(read_lines(file, path), 1):
            if line.isspace():
                continue
            try:
                yield number, *check_object(parse_json(line), may_hold_half(line)), len(line)
            except NotJSONError as error:
                yield number, None, str(error), 0


def read_array(path: Path) -> Iterator[Candidate]:
    """Yield the objects of one JSON array."""
    with open_bytes(path) as file, bounded_memory():
        text = read_json(file)
        values, doubtful = parse_json(text), may_hold_half(text)
    del text
    for number, value in enumerate(values, 1):
        yield number, *check_object(value, doubtful), 0


def check_object(value: Any, doubtful: bool) -> tuple[Row | None, str]:
    """Return a JSON value as a row, or None and why it is none."""
    problem = f"not an object but {type(value).__name__}" if not isinstance(value, dict) else ""
    problem = problem or (find_half(value) if doubtful else "")
    return (None, problem) if problem else (value, "")


def read_cells(path: Path) -> Iterator[Candidate]:
    """Yield rows of text below a line of names, separated by what the names have most of; empty cells are None."""
    csv.field_size_limit(MAX_LINE)
    with open_bytes(path) as file:
        text = map(decode, count(), read_lines(file, path))
        head = next(text, "")
        rows = csv.reader(chain([head], text), delimiter=max(",\t;", key=head.count), strict=True)
        names = [name.strip() for name in next(rows)]
        while True:
            try:
                cells = next(rows, None)
            except csv.Error as error:
                yield rows.line_num, None, str(error), 0
                continue
            if cells is None:
                return
            if problem := check_cells(cells, len(names)):
                yield rows.line_num, None, problem, 0
            elif cells:
                row = {name: cell or None for name, cell in zip(names, cells, strict=True)}
                yield rows.line_num, row, "", sum(map(len, cells))


def decode(number: int, line: bytes) -> str:
    """Return a line as text; in rows, bytes that are not UTF-8 stay as what `check_cells` finds."""
    return line.decode("utf-8", "surrogateescape") if number else line.decode("utf-8-sig", "replace")


def check_cells(cells: list[str], columns: int) -> str:
    """Return why cells are no row; empty where they are one, or an empty line."""
    if cells and len(cells) != columns:
        return f"{len(cells)} cells for {columns} columns"
    try:
        "".join(cells).encode()
    except UnicodeEncodeError:
        return "not UTF-8"
    return ""


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file to read its bytes, unpacked where it is compressed."""
    with path.open("rb") as file:
        start = file.read(4)
    kind = next((name for magic, name in PACKED.items() if start.startswith(magic)), None)
    return path.open("rb") if kind is None else io.BufferedReader(pa.input_stream(str(path), compression=kind))  # type: ignore[return-value,arg-type]


@contextmanager
def refused(path: Path) -> Iterator[None]:
    """Within, whatever reading raises is an Unreadable that names the file."""
    try:
        yield
    except Unreadable:
        raise
    except (TooLargeError, MemoryError) as error:
        raise Unreadable(f"{path}: {describe_excess(error)}") from None
    except NotJSONError as error:
        raise Unreadable(f"{path}: {error}; mend the array or write one JSON object a line") from None
    except (OSError, EOFError, ValueError, RecursionError, csv.Error, pa.ArrowException) as error:
        remedy = "" if isinstance(error, OSError) and error.errno else f"; {DAMAGED}"
        raise Unreadable(f"{path}: {describe(error)}{remedy}") from None


def describe(error: Exception) -> str:
    """Return an operating system's or library's error in one line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts test2.jsonl after test.jsonl and before test10.jsonl."""
    return [(1, int(p), "") if p.isdecimal() else (0, 0, p) for p in re.split(r"(\d+|\.|/)", name)]
