"""Files, whatever format their rows have: which there are, what they are made of, and their rows in chunks."""

from __future__ import annotations

import csv
import glob
import gzip
import zlib
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from fairlen.diagnostics.readers.chunk import CHUNK, Chunk, Columns, Found
from fairlen.files.limits import (
    MAX_LINE,
    NotJSONError,
    TooLargeError,
    bounded_memory,
    describe_excess,
    find_half,
    may_hold_half,
    name_special,
    parse_json,
    read_json,
    read_lines,
)

CHUNK_BYTES = 16 * 2**20
"""Of JSON read at once: rows with tokens in them can be large."""
DAMAGED = "the file is damaged or was not finished: write it again"
MEND = "mend the array or write one JSON object a line"
READABLE = "Parquet, JSON lines, a JSON array of objects, CSV or TSV; the last four also gzipped"


class Unreadable(ValueError):
    """A file that could not be read: why, and what to do."""


def find_files(paths: list[str]) -> list[tuple[Path, bool]]:
    """Files of the paths, and whether each was named itself; folders are searched, patterns expanded. In order of path.

    Raises Unreadable for a path where nothing is, or a pipe.
    """
    found: dict[Path, bool] = {}
    for text in paths:
        if not text:
            raise Unreadable("an empty path: name a file, a folder or a pattern ('.' is the folder that you are in)")
        matches = (
            [Path(text)] if Path(text).exists() else [Path(match) for match in sorted(glob.glob(text, recursive=True))]
        )
        if not matches:
            raise Unreadable(f"{text}: there is no such file or folder, and no file matches it as a pattern")
        inside = [(path, match) for match in matches for path in (files_of(match) if match.is_dir() else [match])]
        if not inside:
            raise Unreadable(f"{matches[0].resolve()}: no file in this folder: name one with rollouts")
        for path, match in inside:
            if special := name_special(path):
                raise Unreadable(f"{path}: {special}")
            found[path] = path == match or found.get(path, False)
    return list(found.items())


def files_of(folder: Path) -> list[Path]:
    """All files within a folder but hidden ones."""
    return [p for p in sorted(folder.rglob("*"), key=natural) if p.is_file() and not p.name.startswith(".")]


def natural(path: Path) -> list[tuple[int, str]]:
    """Sorts 2.jsonl before 10.jsonl."""
    return [
        (int(part), "") if part.isdigit() else (-1, part) for name in path.parts for part in (name.split(".")[0], name)
    ]


def open_bytes(path: Path) -> IO[bytes]:
    """The bytes of a file, unzipped where it is gzipped."""
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if zipped else path.open("rb")  # type: ignore[return-value]


def container_of(path: Path) -> str:
    """What a file is made of, by its first bytes: parquet, jsonl, json or csv.

    Raises Unreadable for everything else. Pickles are refused, because reading one runs the code in it.
    """
    try:
        with open_bytes(path) as file:
            start = file.read(4096)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Unreadable(f"{path}: {describe(error)}; {DAMAGED}") from None
    except OSError as error:
        raise Unreadable(f"{path}: {describe(error)}") from None
    if start[:4] == b"PAR1":
        return "parquet"
    if start[:4] == b"PK\x03\x04" or start[:1] == b"\x80":
        raise Unreadable(
            f"{path}: a pickle (torch.save writes them): reading one runs whatever code is in it, so it is refused; "
            "load it where you trust it and write one JSON object a line"
        )
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text:
        raise Unreadable(f"{path}: the file is empty")
    if b"\x00" in text:
        raise Unreadable(f"{path}: not a file of rows: give {READABLE}")
    if text[:1] == b"{" or (text[:1] != b"[" and path.name.removesuffix(".gz").endswith((".json", ".jsonl"))):
        return "jsonl"
    return "json" if text[:1] == b"[" else "csv"


def describe(error: Exception) -> str:
    """An operating system's or library's error in one line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__


def stream(path: Path, container: str, found: Found) -> Iterator[Chunk]:
    """The rows of a file in chunks. Raises Unreadable where the file breaks off."""
    streams = {"parquet": stream_parquet, "jsonl": stream_jsonl, "json": stream_json, "csv": stream_csv}
    try:
        yield from streams[container](path, found)
    except Unreadable:
        raise
    except (TooLargeError, MemoryError) as error:
        raise Unreadable(f"{path}: {describe_excess(error)}") from None
    except NotJSONError as error:
        raise Unreadable(f"{path}: {error}; {MEND}") from None
    except (OSError, EOFError, pa.ArrowException, csv.Error, ValueError, RecursionError) as error:
        raise Unreadable(f"{path}: {describe(error)}; {DAMAGED}") from None


def stream_parquet(path: Path, found: Found) -> Iterator[Chunk]:
    """Batches of a table. Lists of numbers are given as how many there are."""
    with pq.ParquetFile(path, memory_map=True) as file:
        batches, first = file.iter_batches(CHUNK), 1
        while columns := next_columns(batches):
            size = len(next(iter(columns.values())))
            yield Chunk(str(path), range(first, first + size), columns)
            first += size


def next_columns(batches: Iterator[Any]) -> Columns:
    """The next rows of a table, none at its end: a kilobyte of it can be written to become gigabytes."""
    with bounded_memory():
        batch = next(batches, None)
        if batch is None:
            return {}
        return {name: plain(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def plain(column: Any) -> list[Any]:
    """A column as Python values, lists of numbers as their lengths."""
    kind = column.type
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_primitive(kind.value_type):
        return column.value_lengths().to_pylist()
    return column.to_pylist()


def stream_jsonl(path: Path, found: Found) -> Iterator[Chunk]:
    """Objects, one a line; lines that are not one are rejected."""
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    size = 0
    with open_bytes(path) as file:
        for number, line in enumerate(read_lines(file, path), 1):
            if line.isspace():
                continue
            row, problem = parse(line)
            if row is None:
                found.reject(Chunk(str(path), [number], {}), 0, problem)
                continue
            rows.append(row)
            lines.append(number)
            size += len(line)
            if len(rows) == CHUNK or size > CHUNK_BYTES:
                yield Chunk(str(path), lines, to_columns(rows))
                rows, lines, size = [], [], 0
    if rows:
        yield Chunk(str(path), lines, to_columns(rows))


def parse(line: bytes) -> tuple[dict[str, Any] | None, str]:
    """The object in a line, or what is wrong with it."""
    try:
        row = parse_json(line)
    except NotJSONError as error:
        return None, str(error)
    problem = problem_of(row, may_hold_half(line))
    return (None, problem) if problem else (row, "")


def problem_of(row: Any, may_hold_half: bool) -> str:
    """Why a value is no row; empty where it is one."""
    if not isinstance(row, dict):
        return f"not an object but {type(row).__name__}"
    return find_half(row) if may_hold_half else ""


def to_columns(rows: list[dict[str, Any]]) -> Columns:
    """Objects as columns; None where one lacks a name."""
    names = dict.fromkeys(chain.from_iterable(rows))
    return {name: [row.get(name) for row in rows] for name in names}


def stream_json(path: Path, found: Found) -> Iterator[Chunk]:
    """The objects of one JSON array; "line" is the place in it."""
    with open_bytes(path) as file, bounded_memory():
        text = read_json(file)
        rows, doubtful = parse_json(text), may_hold_half(text)
        del text
    for start in range(0, len(rows), CHUNK):
        some = list(enumerate(rows[start : start + CHUNK], start + 1))
        problems = {number: problem for number, row in some if (problem := problem_of(row, doubtful))}
        for number, problem in problems.items():
            found.reject(Chunk(str(path), [number], {}), 0, problem)
        objects = [(number, row) for number, row in some if number not in problems]
        if objects:
            yield Chunk(str(path), [number for number, _ in objects], to_columns([row for _, row in objects]))


def stream_csv(path: Path, found: Found) -> Iterator[Chunk]:
    """Rows of text below a line of names; the separator is the one that the names have most of."""
    csv.field_size_limit(MAX_LINE)
    with open_bytes(path) as file:
        text = map(decode, count(), read_lines(file, path))
        head = next(text, "")
        separator = max(",\t;", key=head.count)
        rows = csv.reader(chain([head], text), delimiter=separator)
        names = [name.strip() for name in next(rows)]
        cells: list[list[str]] = []
        lines: list[int] = []
        for row in rows:
            if not row:
                continue
            if reason := problem_of_cells(row, len(names)):
                found.reject(Chunk(str(path), [rows.line_num], {}), 0, reason)
                continue
            cells.append(row)
            lines.append(rows.line_num)
            if len(cells) == CHUNK:
                yield table_of(path, names, cells, lines)
                cells, lines = [], []
        if cells:
            yield table_of(path, names, cells, lines)


def decode(number: int, line: bytes) -> str:
    """A line as text; in rows, bytes that are not UTF-8 stay as what `problem_of_cells` finds."""
    return line.decode("utf-8", "surrogateescape") if number else line.decode("utf-8-sig", "replace")


def problem_of_cells(cells: list[str], columns: int) -> str:
    """Why cells are no row; empty where they are one."""
    if len(cells) != columns:
        return f"{len(cells)} cells for {columns} columns"
    return "" if all(map(is_text, cells)) else "not UTF-8"


def is_text(cell: str) -> bool:
    try:
        return cell.isascii() or bool(cell.encode())
    except UnicodeEncodeError:
        return False


def table_of(path: Path, names: list[str], cells: list[list[str]], lines: list[int]) -> Chunk:
    """Rows of cells as a chunk; empty cells are None."""
    columns = {
        name: [cell or None for cell in column] for name, column in zip(names, zip(*cells, strict=True), strict=True)
    }
    return Chunk(str(path), lines, columns)
