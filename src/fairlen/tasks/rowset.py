"""All problems of one source: read, filtered, without copies, counted, and identified by a fingerprint."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fairlen.console import plural
from fairlen.files.formats import Unreadable, columns_of, stream
from fairlen.tasks.row import Answers, Reference, Row, fingerprint
from fairlen.tasks.schemas import Schema, Unusable, choose_schema
from fairlen.tasks.source import DataError, Source, locate
from fairlen.verify.answer import match_exactly

Part = tuple[Path, list[str], Schema]
"""A file, the columns that it has, and its schema; files of a folder need not have the same."""


@dataclass
class RowSet:
    """The problems of one source."""

    name: str
    source: Source
    schema: str
    revision: str = ""
    """Commit of a hub data set; empty for files."""
    rows: tuple[Row, ...] = ()
    num_read: int = 0
    """Rows of the files."""
    num_filtered: int = 0
    """Rows that the filters of the source left out."""
    num_copies: int = 0
    """Rows that repeat a problem."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows that cannot be used, by reason."""

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the problems."""
        return fingerprint(self.rows)

    def describe(self) -> dict[str, Any]:
        """Return for run.json what the problems are and how they came about."""
        return {
            "name": self.name,
            "source": self.source.text,
            "schema": self.schema,
            "revision": self.revision,
            "fingerprint": self.fingerprint,
            "problems": len(self.rows),
            "rows": self.num_read,
            "filtered": self.num_filtered,
            "copies": self.num_copies,
            "dropped": dict(self.dropped),
        }

    @property
    def line(self) -> str:
        """The counts in one line."""
        size, num_read, copies = len(self.rows), self.num_read, self.num_copies
        counts = {
            f"{plural('problem', size)} in {num_read:,} {plural('row', num_read)}": size,
            "filtered out": self.num_filtered,
            f"{plural('copy', copies, 'copies')} left out": copies,
        } | {f"dropped: {reason}": count for reason, count in self.dropped.items()}
        return f"{self.name}: " + ", ".join(f"{count:,} {use}" for use, count in counts.items() if count)


def read_rows(source: Source, name: str = "") -> RowSet:
    """Return all that a source holds, under its own name or another. Raises DataError where nothing of it can be used.

    Problems whose copies have different answers are left out, since nobody knows which is correct.
    """
    files, revision = locate(source)
    try:
        parts = [find_schema(source, path, is_alone=len(files) == 1) for path in files]
        check_filters(source, parts)
        schemas = ", ".join(dict.fromkeys(schema.name for _, _, schema in parts))
        found = RowSet(name or source.name, source, schemas, revision)
        rows: dict[str, Row] = {}
        contradicted: Counter[str] = Counter()
        for row in select(found, parts):
            known = rows.setdefault(row.key, row)
            if known is not row and is_same(known.reference, row.reference):
                found.num_copies += 1
            elif known is not row:
                contradicted[row.key] += 1
    except Unreadable as error:
        raise ValueError(f"--data {error}") from None
    if contradicted:
        found.dropped["copies with different answers"] = contradicted.total() + len(contradicted)
    found.rows = with_ids([row for key, row in rows.items() if key not in contradicted], found.name)
    if not found.rows:
        uses = {**found.dropped, "copies of other rows": found.num_copies, "filtered out": found.num_filtered}
        account = [f"{found.num_read:,} rows", *(f"{count:,} {use}" for use, count in uses.items() if count)]
        what = f"no problem is left ({', '.join(account)}); check the filter, split and columns"
        raise DataError(source.text, what)
    return found


def find_schema(source: Source, path: Path, is_alone: bool) -> Part:
    """Return a file with its columns and schema. Raises DataError where none fits."""
    columns = columns_of(path)
    inside = path.relative_to(source.place) if path.is_relative_to(source.place) else path.name
    return path, columns, choose_schema(source.text if is_alone else f"{source.text}, file {inside}", columns)


def check_filters(source: Source, parts: list[Part]) -> None:
    """Raise DataError for a column to filter by that no file has."""
    columns = dict.fromkeys(name for _, names, _ in parts for name in names)
    for wanted in source.filters:
        if wanted.column not in columns:
            raise DataError(source.text, f"no column {wanted.column!r} to filter by; there are {', '.join(columns)}")


def select(found: RowSet, parts: list[Part]) -> Iterator[Row]:
    """Yield the rows that can be used, and count the others; rows of the same cells are read once, of a hundred copies."""
    seen: set[bytes] = set()
    filters = found.source.filters
    for path, columns, schema in parts:
        wanted = schema.columns([*columns], [one.column for one in filters])
        for raw in (raw for chunk in stream(path, columns=wanted) for raw in chunk.rows()):
            found.num_read += 1
            if not all(one.accepts(raw.get(one.column)) for one in filters):
                found.num_filtered += 1
                continue
            cells = hashlib.sha256(repr([raw.get(name) for name in schema.needed]).encode()).digest()
            if cells in seen:
                found.num_copies += 1
                continue
            seen.add(cells)
            try:
                yield schema.parse(raw)
            except Unusable as reason:
                found.dropped[str(reason)] += 1


def is_same(one: Reference, other: Reference) -> bool:
    """Return whether two copies ask for the same: 27 and 27.0 are."""
    if isinstance(one, Answers) and isinstance(other, Answers) and len(one.parts) == len(other.parts) == 1:
        return match_exactly(one.parts[0], other.parts[0]) or one == other
    return one == other


def with_ids(rows: list[Row], dataset: str) -> tuple[Row, ...]:
    """Return rows with ids of the form set/id: the source's own where it is unique, with a hash of the question where not."""
    counts = Counter(row.id for row in rows)
    own = [[row.id] if row.id and counts[row.id] == 1 else [row.id, row.mark[:12]] for row in rows]
    ids = ["-".join(filter(None, parts)) for parts in own]
    return tuple(replace(row, id=f"{dataset}/{one}", dataset=dataset) for row, one in zip(rows, ids, strict=True))
