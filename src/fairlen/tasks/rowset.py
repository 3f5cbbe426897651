"""All problems of one source: read, filtered, without copies, counted, and identified by a fingerprint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fairlen.console import plural
from fairlen.files.formats import Unreadable, columns_of, container_of, stream
from fairlen.tasks.row import Answers, Reference, Row, fingerprint
from fairlen.tasks.schemas import Raw, Schema, Unusable, choose_schema
from fairlen.tasks.source import Source, locate
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
        """For run.json: what the problems are and how they came about."""
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
        """In one line, for people."""
        num_problems, num_copies = len(self.rows), self.num_copies
        parts = [
            f"{num_problems:,} {plural('problem', num_problems)} in {self.num_read:,} {plural('row', self.num_read)}"
        ]
        if self.num_filtered:
            parts.append(f"{self.num_filtered:,} filtered out")
        if num_copies:
            parts.append(f"{num_copies:,} {plural('copy', num_copies, 'copies')} left out")
        parts += [f"{count:,} dropped: {reason}" for reason, count in self.dropped.items()]
        return f"{self.name}: " + ", ".join(parts)


def read_rows(source: Source, name: str = "") -> RowSet:
    """Everything that a source holds, under the source's name or another. Raises ValueError where nothing of it can be used."""
    name = name or source.name
    located, reader = locate(source), Reader(source)
    try:
        files = [SchemaFile.of(source, path, len(located.files) == 1) for path in located.files]
        check_filters(source, list(dict.fromkeys(column for file in files for column in file.columns)))
        for file in files:
            reader.take(file)
    except Unreadable as error:
        raise ValueError(f"--data {error}") from None
    rows = tuple(with_ids(reader.rows(), name))
    if not rows:
        raise ValueError(
            f"--data {source.text}: no problem is left ({reader.account()}); check the filter, split and columns"
        )
    return RowSet(
        name,
        rows,
        source,
        ", ".join(dict.fromkeys(file.schema.name for file in files)),
        located.revision,
        reader.num_read,
        reader.num_filtered,
        reader.num_copies,
        dict(reader.dropped),
    )


@dataclass(frozen=True)
class SchemaFile:
    """One file of a source: those of a folder need not have the same columns."""

    path: Path
    container: str
    columns: list[str]
    schema: Schema

    @classmethod
    def of(cls, source: Source, path: Path, is_alone: bool) -> SchemaFile:
        """By the file's own columns. Raises ValueError naming the file where no schema has them."""
        container = container_of(path)
        columns = columns_of(path, container)
        inside = path.relative_to(source.place) if path.is_relative_to(source.place) else Path(path.name)
        return cls(
            path,
            container,
            columns,
            choose_schema(source.text if is_alone else f"{source.text}, file {inside}", columns),
        )


def check_filters(source: Source, columns: list[str]) -> None:
    """Raises ValueError for a filter of a column that is not there."""
    for wanted in source.filters:
        if wanted.column not in columns:
            raise ValueError(
                f"--data {source.text}: no column {wanted.column!r} to filter by; there are {', '.join(columns)}"
            )


@dataclass
class Reader:
    """Gathers rows; remembers which it has seen."""

    source: Source
    num_read: int = 0
    num_filtered: int = 0
    num_copies: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    seen: set[Hashable] = field(default_factory=set)
    """Raw rows, so that a set with a hundred copies of each problem is parsed once."""
    found: dict[str, Row] = field(default_factory=dict)
    """By what copies have in common."""
    contradicted: dict[str, int] = field(default_factory=dict)

    def take(self, file: SchemaFile) -> None:
        """Reads one file."""
        filters = [one.column for one in self.source.filters]
        wanted = file.schema.columns(file.columns)
        names = None if wanted is None else [name for name in file.columns if name in {*wanted, *filters}]
        for chunk in stream(file.path, file.container, columns=names):
            self.num_read += len(chunk)
            for raw in chunk.rows():
                self.add(raw, file.schema)

    def add(self, raw: Raw, schema: Schema) -> None:
        """One row."""
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
            self.contradicted[row.key] = self.contradicted.get(row.key, 1) + 1

    def rows(self) -> list[Row]:
        """In their order; without problems whose copies have different answers, since nobody knows which is right."""
        if self.contradicted:
            self.dropped[CONTRADICTED] = sum(self.contradicted.values())
        return [row for key, row in self.found.items() if key not in self.contradicted]

    def account(self) -> str:
        """What became of the rows, for people: numbers that add up to all of them where no problem is left."""
        uses = {**self.dropped, "copies of other rows": self.num_copies, "filtered out": self.num_filtered}
        return ", ".join([f"{self.num_read:,} rows", *(f"{count:,} {use}" for use, count in uses.items() if count)])


def freeze(value: Any) -> Hashable:
    """A cell as something that a set can hold."""
    if isinstance(value, list):
        return tuple([freeze(part) for part in value])
    return tuple([(name, freeze(part)) for name, part in value.items()]) if isinstance(value, dict) else value


def is_same(one: Reference, other: Reference) -> bool:
    """Whether two copies ask for the same: 27 and 27.0 are."""
    if isinstance(one, Answers) and isinstance(other, Answers) and len(one.parts) == len(other.parts) == 1:
        return match_exactly(one.parts[0], other.parts[0]) or one == other
    return one == other


def with_ids(rows: Iterable[Row], dataset: str) -> Iterator[Row]:
    """Rows with ids of the form set/id: the source's own where it is unique, with a hash of the question where not."""
    rows = list(rows)
    counts = Counter(row.id for row in rows)
    for row in rows:
        own = row.id if counts[row.id] == 1 and row.id else "-".join(part for part in (row.id, row.mark[:12]) if part)
        yield replace(row, id=f"{dataset}/{own}", dataset=dataset)
