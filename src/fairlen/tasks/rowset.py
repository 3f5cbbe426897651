"""All problems of one source: read, filtered, without copies, counted, and identified by a fingerprint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from fairlen.console import plural
from fairlen.files.formats import Unreadable, columns_of, container_of, stream
from fairlen.tasks.row import Answers, Reference, Row, fingerprint
from fairlen.tasks.schemas import Raw, Schema, Unusable, choose_schema
from fairlen.tasks.source import DataError, Source, locate
from fairlen.verify.answer import match_exactly

CONTRADICTED = "copies with different answers"


@dataclass(frozen=True)
class RowSet:
    """The problems of one source."""

    name: str
    rows: tuple[Row, ...]
    source: Source
    schema: str
    revision: str
    """Commit of a hub data set; empty for files."""
    num_read: int
    """Rows of the files."""
    num_filtered: int = 0
    """Rows that the filters of the source left out."""
    num_copies: int = 0
    """Rows that repeat a problem."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Rows that cannot be used, by reason."""

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the problems."""
        return fingerprint(self.rows)

    def describe(self) -> dict[str, Any]:
        """Return for run.json what the problems are and how they came about."""
        dates = sorted(str(row.columns["contest_date"])[:10] for row in self.rows if row.columns.get("contest_date"))
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
            "dropped": self.dropped,
        } | ({"first_date": dates[0], "last_date": dates[-1]} if dates else {})

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
    """Return all that a source holds, under its name or another. Raises DataError where nothing of it can be used."""
    located, reader = locate(source), Reader(source)
    try:
        files = [find_schema(source, path, is_alone=len(located.files) == 1) for path in located.files]
        columns = list(dict.fromkeys(chain.from_iterable(columns for _, columns, _ in files)))
        for wanted in source.filters:
            if wanted.column not in columns:
                raise DataError(
                    source.text, f"no column {wanted.column!r} to filter by; there are {', '.join(columns)}"
                )
        for path, columns, schema in files:
            reader.read_file(path, columns, schema)
    except Unreadable as error:
        raise ValueError(f"--data {error}") from None
    return reader.finish(name or source.name, located.revision, [schema.name for _, _, schema in files])


def find_schema(source: Source, path: Path, is_alone: bool) -> tuple[Path, list[str], Schema]:
    """Return a file with its columns and schema; files of a folder need not have the same. Raises DataError where none fits."""
    columns = columns_of(path, container_of(path))
    inside = path.relative_to(source.place) if path.is_relative_to(source.place) else Path(path.name)
    return path, columns, choose_schema(source.text if is_alone else f"{source.text}, file {inside}", columns)


@dataclass
class Reader:
    """Gathers rows; remembers which it has seen."""

    source: Source
    num_read: int = 0
    num_filtered: int = 0
    num_copies: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    seen: set[Hashable] = field(default_factory=set)
    """Cells of rows, so that a set with a hundred copies of each problem is parsed once."""
    found: dict[str, Row] = field(default_factory=dict)
    """Rows by what copies have in common."""
    contradicted: Counter[str] = field(default_factory=Counter)
    """Copies with different answers."""

    def read_file(self, path: Path, columns: Sequence[str], schema: Schema) -> None:
        """Read the columns of a file that are of use."""
        wanted, filtered = schema.columns(columns), {one.column for one in self.source.filters}
        names = None if wanted is None else [name for name in columns if name in {*wanted, *filtered}]
        for chunk in stream(path, container_of(path), columns=names):
            self.num_read += len(chunk)
            for raw in chunk.rows():
                self.add(raw, schema)

    def add(self, raw: Raw, schema: Schema) -> None:
        """Add one row, or count why not."""
        if not all(one.accepts(raw.get(one.column)) for one in self.source.filters):
            self.num_filtered += 1
            return
        cells = freeze([raw.get(name) for name in schema.needed])
        if cells in self.seen:
            self.num_copies += 1
            return
        self.seen.add(cells)
        try:
            row = schema.read(raw)
        except Unusable as reason:
            self.dropped[str(reason)] += 1
            return
        row = replace(row, id=schema.find_id(raw), columns=schema.kept(raw))
        known = self.found.setdefault(row.key, row)
        if known is row:
            return
        if is_same(known.reference, row.reference):
            self.num_copies += 1
        else:
            self.contradicted[row.key] += 1

    def finish(self, name: str, revision: str, schemas: Iterable[str]) -> RowSet:
        """Return the set, without problems whose copies have different answers, since nobody knows which is correct."""
        if self.contradicted:
            self.dropped[CONTRADICTED] = self.contradicted.total() + len(self.contradicted)
        rows = tuple(with_ids([row for key, row in self.found.items() if key not in self.contradicted], name))
        if not rows:
            uses = {**self.dropped, "copies of other rows": self.num_copies, "filtered out": self.num_filtered}
            account = ", ".join(
                [f"{self.num_read:,} rows", *(f"{count:,} {use}" for use, count in uses.items() if count)]
            )
            raise DataError(self.source.text, f"no problem is left ({account}); check the filter, split and columns")
        counts = (self.num_read, self.num_filtered, self.num_copies, dict(self.dropped))
        return RowSet(name, rows, self.source, ", ".join(dict.fromkeys(schemas)), revision, *counts)


def freeze(value: Any) -> Hashable:
    """Return a cell as something that a set can hold."""
    if isinstance(value, list):
        return tuple([freeze(part) for part in value])
    return tuple([(name, freeze(part)) for name, part in value.items()]) if isinstance(value, dict) else value


def is_same(one: Reference, other: Reference) -> bool:
    """Return whether two copies ask for the same: 27 and 27.0 are."""
    if isinstance(one, Answers) and isinstance(other, Answers) and len(one.parts) == len(other.parts) == 1:
        return match_exactly(one.parts[0], other.parts[0]) or one == other
    return one == other


def with_ids(rows: Sequence[Row], dataset: str) -> Iterator[Row]:
    """Yield rows with ids of the form set/id: the source's own where it is unique, with a hash of the question where not."""
    counts = Counter(row.id for row in rows)
    for row in rows:
        own = row.id if counts[row.id] == 1 and row.id else "-".join(part for part in (row.id, row.mark[:12]) if part)
        yield replace(row, id=f"{dataset}/{own}", dataset=dataset)
