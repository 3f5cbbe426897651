"""Files of problems: which files of a folder belong to a configuration and split, and their rows, a piece at a time.

Scripts are never run: a data set that needs one is refused with what to do.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from itertools import chain, islice
from pathlib import Path, PurePosixPath
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

Raw = dict[str, Any]
PIECE = 4096
"""Rows read at a time."""
HEAD_BYTES = 4096
"""Of a JSON file, in which an array has begun."""
HEAD = 64
"""Rows of a JSON file that its columns are taken from."""
FORMATS = (".parquet", ".jsonl", ".json", ".csv")
"""In order of preference where a folder has the same data twice."""
NOT_DATA = {"dataset_infos.json", "dataset_info.json", "state.json", "config.json", "package.json"}
SPLITS = ("train", "validation", "valid", "dev", "test")


def format_of(name: str) -> str:
    """The ending of a data file, without .gz or .zst; empty where it is none."""
    path = PurePosixPath(name)
    if path.suffix in (".gz", ".zst"):
        path = path.with_suffix("")
        return path.suffix if path.suffix in FORMATS[1:] else ""
    return path.suffix if path.suffix in FORMATS else ""


def is_data_file(name: str) -> bool:
    """Whether a file by its name can hold problems."""
    path = PurePosixPath(name)
    hidden = any(part.startswith((".", "_")) for part in path.parts)
    return bool(format_of(name)) and path.name not in NOT_DATA and not hidden


def choose_files(place: str, names: Sequence[str], card: dict[str, Any], config: str, split: str) -> list[str]:
    """The files of a configuration and split, by the card's `configs` where it has them, else by folders and names.

    Raises ValueError listing what there is where the choice is not clear.
    """
    data = sorted((name for name in names if is_data_file(name)), key=natural)
    numbered = [name for name in data if re.fullmatch(r"test\d*\.jsonl(\.gz|\.zst)?", name)]
    if len(numbered) > 1:
        return choose_release(place, numbered, config)
    listed = card.get("configs") or []
    if listed:
        return choose_listed(place, data, listed, config, split)
    if config:
        chosen = [n for n in data if config in PurePosixPath(n).parts[:-1] or is_named(n, config)]
        data = chosen or refuse(place, "configuration", config, sorted({n.split("/")[0] for n in data}))
    if not data:
        scripts = [name for name in names if name.endswith(".py")]
        why = f"; it has a loading script ({scripts[0]}), which is never run" if scripts else ""
        raise ValueError(
            f"--data {place}: no Parquet, JSON or CSV files there{why}; give a copy in one of these formats"
        )
    best = next(suffix for suffix in FORMATS if any(format_of(name) == suffix for name in data))
    return choose_split(place, [name for name in data if format_of(name) == best], split)


def choose_split(place: str, names: list[str], split: str) -> list[str]:
    """Files by the split in their names or folders; all of them where no name has one."""
    found = {known: [n for n in names if is_named(n, known)] for known in dict.fromkeys((*SPLITS, split)) if known}
    found = {known: some for known, some in found.items() if some}
    if split:
        return found.get(split) or refuse(place, "split", split, sorted(found) or names)
    if len(found) > 1:
        raise ValueError(f"--data {place}: it has the splits {', '.join(sorted(found))}; add :SPLIT")
    return next(iter(found.values()), names)


def choose_release(place: str, names: list[str], config: str) -> list[str]:
    """LiveCodeBench: release_v5 is test.jsonl to test5.jsonl, v5 is test5.jsonl alone, v3_v5 the third to the fifth."""
    bounds = re.fullmatch(r"(release_)?v(\d+)(?:_v(\d+))?", config)
    if not bounds or (bounds[1] and bounds[3]):
        raise ValueError(
            f"--data {place}: it is published in {len(names)} parts; name a release after the id: "
            f"{place}/release_v{len(names)} is all of them, {place}/v{len(names)} the newest alone"
        )
    first = 1 if bounds[1] else int(bounds[2])
    last = int(bounds[3] or bounds[2])
    if not 1 <= first <= last <= len(names):
        raise ValueError(f"--data {place}: configuration {config!r}: there are v1 to v{len(names)}")
    return names[first - 1 : last]


def choose_listed(place: str, data: list[str], listed: list[Raw], config: str, split: str) -> list[str]:
    """By the card of a hub data set."""
    by_name = {str(entry.get("config_name", "default")): entry for entry in listed}
    defaults = [name for name, entry in by_name.items() if entry.get("default")]
    names = list(by_name)
    chosen = config or (names[0] if len(names) == 1 else "default" if "default" in names else "".join(defaults[:1]))
    if chosen not in by_name:
        refuse(place, "configuration", config, names)
    files = by_name[chosen].get("data_files") or []
    entries = [{"split": "train", "path": files}] if isinstance(files, str) else files
    entries = [{"split": "train", "path": entry} if isinstance(entry, str) else entry for entry in entries]
    splits = {str(entry.get("split", "train")): as_list(entry.get("path")) for entry in entries}
    if not splits:
        return choose_split(place, [name for name in data if chosen in PurePosixPath(name).parts] or data, split)
    if not split and len(splits) > 1:
        raise ValueError(f"--data {place}: it has the splits {', '.join(sorted(splits))}; add :SPLIT")
    patterns = splits.get(split or next(iter(splits))) or refuse(place, "split", split, sorted(splits))
    matched = [name for name in data if any(fnmatch(name, pattern.removeprefix("./")) for pattern in patterns)]
    return matched or refuse(place, "split", split or next(iter(splits)), patterns)


def refuse(place: str, what: str, name: str, known: Sequence[str]) -> list[str]:
    """Raises ValueError for a configuration or split that is not there."""
    shown = f"no {what} {name!r} there" if name else f"it has several {what}s"
    raise ValueError(f"--data {place}: {shown}; give one of {', '.join(known[:20])}")


def is_named(name: str, part: str) -> bool:
    """Whether a name or a folder of it is that word: train in data/train-00000-of-00002.parquet."""
    return re.search(rf"(^|[/_.-]){re.escape(part)}([/_.-]|$)", name) is not None


def as_list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


def natural(name: str) -> tuple[list[Any], str]:
    """Sorts test2.jsonl after test.jsonl and before test10.jsonl."""
    stem = name.partition(".")[0]
    return [(1, int(part)) if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", stem)], name


def find_columns(path: Path) -> list[str]:
    """The columns of a file; of JSON those of its first rows."""
    try:
        if format_of(path.name) == ".parquet":
            return list(pq.read_schema(path).names)
        head = list(islice(stream_objects(path), HEAD))
    except (TooLargeError, MemoryError, OSError, pa.ArrowException, UnicodeError) as error:
        raise unreadable(path, error) from None
    if not head:
        raise ValueError(f"--data {path}: the file is empty: there are no rows in it; write it again, or leave it out")
    return list(dict.fromkeys(chain.from_iterable(head)))


def stream_rows(path: Path, columns: Sequence[str] | None, told_by: Sequence[str]) -> Iterator[tuple[int, list[Raw]]]:
    """Rows of a file in pieces, with the given columns or all: how many there were, and those that are no copies.

    `told_by` are the columns by which copies are known. Only Parquet is searched for them, where it saves making the rows.
    Raises ValueError naming the file and line that is broken.
    """
    seen: set[Any] = set()
    try:
        if format_of(path.name) == ".parquet":
            with pq.ParquetFile(path, memory_map=True) as file:
                pieces = file.iter_batches(PIECE, columns=None if columns is None else list(columns))
                while found := next_piece(pieces, told_by, seen):
                    yield found
        else:
            objects = stream_objects(path)
            while piece := list(islice(objects, PIECE)):
                yield len(piece), [pick(row, columns) for row in piece]
    except (TooLargeError, MemoryError, OSError, pa.ArrowException, UnicodeError) as error:
        raise unreadable(path, error) from None


def next_piece(
    pieces: Iterator[pa.RecordBatch], told_by: Sequence[str], seen: set[Any]
) -> tuple[int, list[Raw]] | None:
    """How many rows there are next, and those that are no copies: a kilobyte of a table can be written to become gigabytes."""
    with bounded_memory():
        piece = next(pieces, None)
        return None if piece is None else (piece.num_rows, piece.take(find_new(piece, told_by, seen)).to_pylist())


def find_new(piece: pa.RecordBatch, told_by: Sequence[str], seen: set[Any]) -> pa.Array:
    """Positions of the rows that were not seen before; all of them where that cannot be told without making the rows."""
    flat = [flatten(piece.column(name)) for name in told_by if name in piece.schema.names]
    if not flat or not all(flat):
        return pa.array(range(piece.num_rows), pa.int64())
    new = []
    for position, cells in enumerate(zip(*chain.from_iterable(flat), strict=True)):
        if cells not in seen:
            seen.add(cells)
            new.append(position)
    return pa.array(new, pa.int64())


def flatten(column: Any) -> list[list[Any]]:
    """A column as columns of plain values: structs field by field, lists of one value as it. Empty where that cannot be."""
    if column.null_count == 0 and pa.types.is_struct(column.type):
        fields = [flatten(field) for field in column.flatten()]
        return list(chain.from_iterable(fields)) if all(fields) else []
    if column.null_count == 0 and pa.types.is_list(column.type):
        return flatten(column.flatten()) if set(column.value_lengths().unique().to_pylist()) == {1} else []
    return [] if pa.types.is_nested(column.type) else [column.to_pylist()]


def pick(row: Raw, columns: Sequence[str] | None) -> Raw:
    return row if columns is None else {name: row[name] for name in columns if name in row}


def unreadable(path: Path, error: Exception) -> ValueError:
    if isinstance(error, (TooLargeError, MemoryError)):
        return ValueError(f"--data {path}: {describe_excess(error)}")
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    return ValueError(f"--data {path}: {reason}; the file is damaged or not what its name says: fetch or write it anew")


def stream_objects(path: Path) -> Iterator[Raw]:
    """The objects of a JSON lines, JSON array or CSV file."""
    with pa.input_stream(str(path), compression="detect") as stream, io.BufferedReader(stream) as file:
        if format_of(path.name) == ".csv":
            yield from read_cells(path, decoded(path, read_lines(file, path)))
            return
        start = file.peek(HEAD_BYTES)[:HEAD_BYTES].removeprefix(codecs.BOM_UTF8).lstrip()
        if start.startswith(b"["):
            yield from read_array(path, file)
        else:
            yield from read_rows(path, decoded(path, read_lines(file, path)))


def decoded(path: Path, lines: Iterator[bytes]) -> Iterator[str]:
    """The lines as text. Raises ValueError naming the first that is none."""
    for number, line in enumerate(lines, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"--data {path}, line {number}: not UTF-8 ({error.reason}); mend or remove it") from None


def read_cells(path: Path, text: Iterator[str]) -> Iterator[Raw]:
    """The rows of a CSV file below its line of names; empty cells are None."""
    csv.field_size_limit(MAX_LINE)
    rows = csv.DictReader(text, strict=True)
    try:
        for row in rows:
            if None in row:
                raise ValueError(f"--data {path}, line {rows.line_num}: more cells than columns; mend or remove it")
            yield {name: value or None for name, value in row.items()}
    except csv.Error as error:
        raise unreadable(path, error) from None


def read_array(path: Path, file: IO[bytes]) -> list[Raw]:
    """The objects of one JSON array."""
    try:
        with bounded_memory():
            rows = parse_json(read_json(file))
    except NotJSONError as error:
        raise ValueError(f"--data {path}: {error}; mend the array or write one JSON object a line") from None
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"--data {path}: expected an array of objects")
    for number, row in enumerate(rows, 1):
        check_text(row, f"--data {path}, row {number}")
    return rows


def read_rows(path: Path, lines: Iterator[str]) -> Iterator[Raw]:
    """One object a line."""
    for number, line in enumerate(lines, 1):
        if line.isspace():
            continue
        try:
            row = parse_json(line)
        except NotJSONError as error:
            raise ValueError(f"--data {path}, line {number}: {error}; mend or remove the line") from None
        if not isinstance(row, dict):
            raise ValueError(f"--data {path}, line {number}: expected an object, found {type(row).__name__}")
        check_text(row, f"--data {path}, line {number}", may_hold_half(line))
        yield row


def check_text(row: Raw, where: str, doubtful: bool = True) -> None:
    """Raise ValueError for half of a character."""
    if doubtful and (half := find_half(row)):
        raise ValueError(f"{where}: {half}; mend or remove the row")
