"""Rows of foreign files: bounded memory, the number of a broken line, cells as they are written.

No library does these three together: pyarrow and `datasets` also guess one type for each column.
"""

from __future__ import annotations

import csv
import io
import os
import re
import struct
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import IO, Any, cast
from zipfile import BadZipFile

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from fairlen.files import archives, limits
from fairlen.files.foreign import Unreadable, open_regular_file, require_regular_file
from fairlen.files.limits import NotJSONError, RefusedError, bounded_memory, check_row, parse_json

CHUNK = 4096  # rows read at once
CHUNK_BYTES = 16 * 2**20  # of text read at once: rows with tokens can be large
EMPTY = "the file is empty: there are no rows in it; write it again, or leave it out"
DAMAGED = "the file is damaged or was not finished: fetch it or write it again"
DAMAGES = (
    OSError, EOFError, ValueError, RuntimeError, csv.Error, BadZipFile, zlib.error, struct.error, pa.ArrowException
)  # fmt: skip
READABLE = (
    "Parquet, Arrow, JSON lines, JSON with one list of objects, CSV or TSV, the last four also as .gz or .zst, torch.save of "
    "plain data, or a log of Inspect"
)
PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""First bytes of compressed files that are unpacked, whatever their name."""
Row = dict[str, Any]
Reject = Callable[[int, str], None]
"""Called with line and reason of an unreadable row; an exception of it ends the reading."""
Candidate = tuple[int, Row | str, int]  # a line's number, its row or fault, and its size
Turn = tuple[int, int]  # of so many that share a file, chunk by chunk, which one
WHOLE = (0, 1)
Span = tuple[int, int]
"""A part of a file of JSON lines: its first byte, and the byte after its last one."""


class Lost(Unreadable):
    """A file that is damaged or exceeds a limit, so that rows that it may hold are missing."""


@dataclass(frozen=True)
class Chunk:
    file: str
    lines: Sequence[int]  # from 1; of a table or an array its rows
    columns: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(self.lines)

    def get(self, name: str) -> list[Any]:
        return self.columns.get(name) or [None] * len(self)

    def rows(self) -> Iterator[Row]:
        """Rows, with None in columns that a row of JSON lacks."""
        return ({name: cells[place] for name, cells in self.columns.items()} for place in range(len(self)))


def container_of(path: Path) -> str:
    """Tell, by first bytes, parquet, arrow, jsonl, json, csv, pickle or log. Raises Unreadable for all else."""
    with refused(path), open_bytes(path) as file:
        start = file.peek(4096)
        is_one = start[:1] == b"{" and is_one_object(file)
    if foreign := archives.name_foreign(start):
        raise Unreadable(f"{path}: {foreign}")
    if start.startswith((b"PAR1", b"ARROW1", b"PK\x03\x04")) and is_packed(path):
        raise Unreadable(f"{path}: compressed once more than its format does: unpack it first")
    if start[:4] == b"PAR1":
        return "parquet"
    if start.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "arrow"
    if start[:4] == b"PK\x03\x04":
        with refused(path):
            return archives.kind_of(path)
    if start[:1] == b"\x80":
        raise Unreadable(f"{path}: a pickle, but not in an archive as torch.save writes it: {archives.REMEDY}")
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text:
        raise Unreadable(f"{path}: {EMPTY}")
    if b"\x00" in text or (path.suffix == ".parquet" and text[:1] not in (b"{", b"[")):
        raise Unreadable(f"{path}: not a file of rows: give {READABLE}")
    lines = re.search(r"\.(json|jsonl)(\.gz|\.zst)?$", path.name)
    if text[:1] == b"[" or (is_one and (not lines or lines[1] == "json")):
        return "json"
    return "jsonl" if text[:1] == b"{" or lines else "csv"


def is_one_object(file: IO[bytes]) -> bool:
    """Whether a text that begins with { is one JSON object, not one a line: by the end of its first line."""
    first = file.readline(limits.MAX_LINE).rstrip()
    return first[-1:] in (b"[", b"{", b",") or not file.read(4096).strip()


def columns_of(path: Path, reject: Reject | None = None) -> list[str]:
    """Names of columns, of text those of its first CHUNK rows. Raises Unreadable for no rows."""
    if container_of(path) == "parquet":
        with refused(path):
            return list(pq.read_schema(require_regular_file(path)).names)
    for chunk in stream(path, reject):
        return list(chunk.columns)
    raise Unreadable(f"{path}: {EMPTY}")


def stream(
    path: Path,
    reject: Reject | None = None,
    *,
    columns: Sequence[str] | None = None,
    counts: bool = False,
    lists: Collection[str] = (),
    size: int = CHUNK,
    first: int = 0,
    turn: Turn = WHOLE,
    span: Span | None = None,
) -> Iterator[Chunk]:
    """Yield the rows of a file in chunks of at most `size`, the first one of `first`, with the given columns or all.

    `counts`: a table's lists of numbers become their lengths, except in columns of `lists`. `turn`: only the rows of one of
    several readers, who together yield all of a file of JSON lines or Parquet. `span`: only this
    part of a file of JSON lines, whose lines are numbered from 1. Raises Unreadable where the file breaks off,
    exceeds a limit or, without `reject`, has an unreadable row, with its line.
    """
    container = container_of(path)
    unit = "line" if container in ("jsonl", "csv") else "row"

    def refuse(line: int, reason: str) -> None:
        raise Unreadable(f"{path}, {unit} {line}: {reason}; mend or remove the {unit}")

    with refused(path):
        if container not in ("parquet", "arrow"):
            is_lines = container == "jsonl"
            candidates = read_objects(path, turn, span) if is_lines else READERS[container](path)
            yield from gather(path, candidates, reject or refuse, columns, (first or size, size))
            return
        regular = require_regular_file(path)
        with (
            pq.ParquetFile(regular, memory_map=True) if container == "parquet" else pa.memory_map(str(regular)) as file
        ):
            keep = None if columns is None else list(columns)
            if container == "parquet":
                limits.check_rows(file.metadata.num_rows, limits.max_rows(path))
                limits.check_columns(len(file.schema_arrow.names))
            batches = file.iter_batches(size, columns=keep) if container == "parquet" else slices(file, keep, size)
            batches = split_first(batches, first)
            yield from stream_batches(path, batches, lambda name: counts and name not in lists, turn)


def gather(
    path: Path, candidates: Iterable[Candidate], reject: Reject, columns: Sequence[str] | None, sizes: tuple[int, int]
) -> Iterator[Chunk]:
    size, others = sizes
    rows: list[Row] = []
    lines: list[int] = []
    room = CHUNK_BYTES
    for line, row, length in candidates:
        if isinstance(row, str):
            reject(line, row)
            continue
        rows.append(row)
        lines.append(line)
        room -= length
        if len(rows) == size or room < 0:
            yield make_chunk(path, lines, rows, columns)
            rows, lines, room, size = [], [], CHUNK_BYTES, others
    if rows:
        yield make_chunk(path, lines, rows, columns)


def make_chunk(path: Path, lines: list[int], rows: list[Row], columns: Sequence[str] | None) -> Chunk:
    names = dict.fromkeys(chain.from_iterable(rows)) if columns is None else columns
    limits.check_columns(len(names))
    return Chunk(str(path), lines, {name: [row.get(name) for row in rows] for name in names})


def slices(file: pa.MemoryMappedFile, columns: list[str] | None, size: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of an Arrow file or stream; batches are validated, as a wrong offset would be read beyond the file."""
    is_stream = file.read(6) != b"ARROW1"
    file.seek(0)
    reader = ipc.open_stream(file) if is_stream else ipc.open_file(file)
    for batch in reader if is_stream else map(reader.get_batch, range(reader.num_record_batches)):
        batch.validate(full=True)
        kept = batch if columns is None else batch.select(columns)
        yield from (kept.slice(first, size) for first in range(0, len(kept), size))


def split_first(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Yield batches, the first rows, `size` above 0, as one of their own."""
    if (batch := next(batches, None)) is not None:
        yield from (batch.slice(0, size), batch.slice(size)) if 0 < size < len(batch) else (batch,)
        yield from batches


def stream_batches(
    path: Path, batches: Iterator[pa.RecordBatch], counts: Callable[[str], bool], turn: Turn
) -> Iterator[Chunk]:
    """Yield a table's rows, those of a turn, with bounds: a kilobyte of one can become gigabytes."""
    first, most = 1, limits.max_rows(path)
    for number in count():
        with bounded_memory():
            if (batch := next(batches, None)) is None:
                return
            limits.check_rows(first - 1 + batch.num_rows, most)
            is_own = number % turn[1] == turn[0]
            pairs = zip(batch.schema.names, batch.columns, strict=True) if is_own else ()
            cells = {name: convert(column, counts(name)) for name, column in pairs}
        if is_own:
            yield Chunk(str(path), range(first, first + batch.num_rows), cells)
        first += batch.num_rows


def convert(column: Any, counts: bool) -> list[Any]:
    kind = column.type
    if counts and (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_primitive(kind.value_type):
        return column.value_lengths().to_pylist()
    return column.to_pylist()


class PartOfFile(io.RawIOBase):
    """The bytes of a file within a span, read as if they were the whole file."""

    def __init__(self, path: Path, span: Span) -> None:
        self.file = open_regular_file(path)
        self.left = span[1] - span[0]
        self.file.seek(span[0])

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.file.read(min(len(buffer), self.left))
        buffer[: len(data)] = data
        self.left -= len(data)
        return len(data)

    def close(self) -> None:
        self.file.close()
        super().close()


def read_objects(path: Path, turn: Turn = WHOLE, span: Span | None = None) -> Iterator[Candidate]:
    opened = io.BufferedReader(PartOfFile(path, span)) if span else open_bytes(path)
    with opened as file:
        for number, line in enumerate(limits.read_lines(file, path), 1):
            if number // CHUNK % turn[1] == turn[0] and not line.isspace():
                yield number, limits.read_row(line), len(line)


def read_array(path: Path) -> Iterator[Candidate]:
    """Yield the objects of one JSON array, or those in an object."""
    with open_bytes(path) as file, bounded_memory():
        text = file.read(limits.MAX_JSON + 1)
        if len(text) > limits.MAX_JSON:
            raise limits.LimitError(f"a JSON value of more than {limits.MAX_JSON >> 20} MiB: write one object a line")
        values, escaped = parse_json(text), b"\\u" in text
    del text
    yield from read_values(values, escaped)


def read_values(value: Any, escaped: bool) -> Iterator[Candidate]:
    """Yield objects of a list, rows of a table, or of the list that is named so or the only one in an object, else that as a row.

    Values beside such a list come with each of its rows, as `header`.
    """
    header = {}
    if is_table(value):
        names = [str(name) for name in value["columns"]]
        value = [dict(zip(names, row, strict=True)) if len(row) == len(names) else row for row in value["data"]]
    if isinstance(value, dict):
        inner = [name for name, one in value.items() if is_rows(one)]
        name = next((one for one in ("samples", "simulations") if one in inner), inner[0] if len(inner) == 1 else "")
        if name:
            header = {"header": {key: one for key, one in value.items() if not isinstance(one, (list, dict))}}
        value = value[name] if name else [value]
    if not isinstance(value, list):
        raise RefusedError("neither a list of objects nor an object with one: write one JSON object a line")
    for number, one in enumerate(value, 1):
        row = check_row(one, escaped)
        yield number, row if isinstance(row, str) else header | row, 0


def is_table(value: Any) -> bool:
    """Whether it is a table as W&B and pandas write it: names of columns, and rows as lists of cells."""
    names, rows = (value.get(name) for name in ("columns", "data")) if isinstance(value, dict) else (None, None)
    return isinstance(names, list) and isinstance(rows, list) and all(isinstance(row, list) for row in rows)


def is_rows(value: Any) -> bool:
    """Whether it is a list of objects, but not of messages."""
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) and "role" not in v for v in value)


def read_cells(path: Path) -> Iterator[Candidate]:
    """Yield rows below a line of names, by the separator that the names have most of; empty cells are None."""
    csv.field_size_limit(limits.MAX_LINE)
    with open_bytes(path) as file:
        lines = limits.read_lines(file, path)
        head = next(lines, b"").decode("utf-8-sig", "replace")
        # bytes that are not UTF-8 become what no text has, and their row is found by it
        text = chain([head], (line.decode("utf-8", "surrogateescape") for line in lines))
        rows = csv.reader(text, delimiter=max(",\t;", key=head.count), strict=True)
        try:
            names = [name.strip() for name in next(rows)]
        except csv.Error as error:
            raise RefusedError(f"its first line does not name the columns of a table: {error}") from None
        limits.check_columns(len(names))
        while True:
            try:
                if (cells := next(rows, None)) is None:
                    return
            except csv.Error as error:
                yield rows.line_num, str(error), 0
                continue
            if len(cells) not in (0, len(names)):
                yield rows.line_num, f"{len(cells)} cells for {len(names)} columns", 0
            elif limits.find_half(cells):
                yield rows.line_num, "not UTF-8", 0
            elif cells:
                row = {name: cell or None for name, cell in zip(names, cells, strict=True)}
                yield rows.line_num, row, sum(map(len, cells))


READERS: dict[str, Callable[[Path], Iterator[Candidate]]] = {
    "jsonl": read_objects, "json": read_array, "csv": read_cells, "log": archives.read_log,
    "pickle": lambda path: read_values(archives.read_pickle(path), True),
}  # fmt: skip


def is_packed(path: Path) -> str:
    with open_regular_file(path) as file:
        start = file.read(4)
    return next((name for magic, name in PACKED.items() if start.startswith(magic)), "")


def open_bytes(path: Path) -> io.BufferedReader:
    kind = is_packed(path) or "detect"
    source = pa.input_stream(str(require_regular_file(path)), compression=kind)
    return io.BufferedReader(cast(io.RawIOBase, source))


@contextmanager
def refused(path: Path) -> Iterator[None]:
    """Turn any error of reading into an Unreadable that names the file."""
    try:
        yield
    except Unreadable:
        raise
    except limits.LimitError as error:
        raise Lost(f"{path}: {error}") from None
    except RefusedError as error:
        raise Unreadable(f"{path}: {error}") from None
    except MemoryError:
        size = f"more than {limits.MAX_MEMORY >> 30} GiB of memory"
        raise Lost(f"{path}: some of its rows take {size}: leave its largest columns out of it") from None
    except NotJSONError as error:
        raise Unreadable(f"{path}: {error}; mend the array or write one JSON object a line") from None
    except DAMAGES as error:
        remedy = "" if isinstance(error, OSError) and error.errno else f"; {DAMAGED}"
        raise Lost(f"{path}: {describe(error)}{remedy}") from None


def describe(error: Exception) -> str:
    text = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key: test.jsonl, test2.jsonl, test10.jsonl."""
    return [(1, int(p), "") if p.isdecimal() else (0, 0, p) for p in re.split(r"(\d+|\.|/)", name)]
