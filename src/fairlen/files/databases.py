"""Rollouts in the SQLite databases of trackio: tables that were logged as metrics, and traces."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fairlen.files import limits
from fairlen.files.limits import RefusedError, TooLargeError, bounded_memory, check_row, parse_json

MAGIC = b"SQLite format 3\x00"
RUN = "trackio.run"  # column with a row's run where there are several, whose responses are not of one policy
METRICS = "SELECT run_name, step, metrics FROM metrics"
TRACES = "SELECT run_name, step, key, messages, metadata FROM traces"
Row = dict[str, Any]


def read_database(path: Path) -> Iterator[tuple[int, Row | str, int]]:
    """Yield number, row and size of what was logged: tables, else traces; of several names those of the first.

    The file is read as it is, without lock or journal, and nothing that its schema defines is run.
    """
    total, number, first, most = 0, 0, "", limits.max_unpacked(path)
    try:
        with closing(open_database(path)) as database:
            (runs,) = database.execute("SELECT count(DISTINCT run_name) FROM metrics").fetchone()
            for query, kind in ((METRICS, "trackio.table"), (TRACES, ""), (METRICS, "trackio.trace")):
                for run, step, *cells in database.execute(query) if query == METRICS or has(database, "traces") else ():
                    total += (size := sum(len(cell) for cell in cells if isinstance(cell, str | bytes)))
                    if total > most:
                        raise TooLargeError(f"its values are more than {most:,} bytes: leave some out")
                    with bounded_memory():
                        rows = [(name, row) for name, value in values_of(cells) for row in rows_of(value, kind)]
                    for name, row in rows:
                        number, first = number + 1, first or name
                        if name != first:
                            row = f"logged as {name!r:.40}, and what is logged as {first!r:.40} is read"
                        known = {"step": step} | ({RUN: str(run)} if runs > 1 else {})
                        yield number, row if isinstance(row, str) else known | row, size // len(rows)
                if number:
                    return
    except sqlite3.Error as error:
        raise ValueError(str(error)) from None


def open_database(path: Path) -> sqlite3.Connection:
    """Open read-only. Raises RefusedError for another program's database, or one with a part still in its journal."""
    for journal in (path.with_name(f"{path.name}-{end}") for end in ("wal", "journal")):
        if journal.is_file() and journal.stat().st_size:
            remedy = "end the program that writes it, or use sqlite3's .backup"
            raise RefusedError(f"a part of it is still in {journal.name}: {remedy}")
    database = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits.MAX_LINE)
    database.execute("PRAGMA trusted_schema = OFF")
    if not has(database, "metrics"):
        database.close()
        raise RefusedError("an SQLite database, but not of trackio: write its table of rollouts as CSV")
    return database


def has(database: sqlite3.Connection, table: str) -> bool:
    """Whether there is a table of that name which is no view and no program."""
    plain = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ? AND sql NOT LIKE 'CREATE VIRTUAL%'"
    return database.execute(plain, (table,)).fetchone() is not None


def values_of(cells: list[Any]) -> list[tuple[str, Any]]:
    if len(cells) > 1:
        return [(str(cells[0]), {"_type": "", "messages": parse_json(cells[1]), "metadata": parse_json(cells[2])})]
    metrics = parse_json(cells[0])
    return list(metrics.items()) if isinstance(metrics, dict) else []


def rows_of(value: Any, kind: str) -> list[Row | str]:
    """Rows of a logged value of that kind: of a table, a trace with its metadata, or a list of these."""
    if isinstance(value, list):
        return [row for one in value if isinstance(one, dict) for row in rows_of(one, kind)]
    if not isinstance(value, dict) or value.get("_type") != kind:
        return []
    table, known = value.get("_value"), value.get("metadata")
    if isinstance(table, list):
        return [check_row(row, True) for row in table]
    return [check_row((known if isinstance(known, dict) else {}) | {"messages": value.get("messages")}, True)]
