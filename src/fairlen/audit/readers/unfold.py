"""Lines that hold many responses, as rows of one response each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fairlen.audit.readers.messages import has_role
from fairlen.audit.readers.rows import Found, is_number
from fairlen.files.formats import Chunk, Row

LISTED = ("response", "reward", "correct", "finish", "tokens", "turns", "advantage")
"""Columns whose lists have one element for each response to the row's prompt."""
SHARED = ("prompt", "step", "group", "age", "scale")
"""Columns that may have one element for each response, or one value for all of them."""


def is_chat(cell: Any) -> bool:
    """Return whether a cell is the messages of one conversation."""
    return isinstance(cell, list) and bool(cell) and all(has_role(item) for item in cell)


def unfold_row(row: Row, file: str, line: int, found: Found) -> Iterator[Row]:
    """Yield a row for each response of a row whose rewards or verdicts are lists, or lists of lists."""
    lists = {role: row[role] for role in LISTED if isinstance(row.get(role), list) and not is_chat(row[role])}
    graded = lists.keys() & {"reward", "correct"}
    if not graded:
        yield row
        return
    if is_chat(row.get("response")):
        yield row | {role: add_parts(row[role]) for role in graded}
        return
    if row.get("response") is not None:
        lists.setdefault("response", [row["response"]])
    sizes = {role: len(values) for role, values in sorted(lists.items())}
    if len(set(sizes.values())) > 1 or 0 in sizes.values():
        return found.reject(file, line, "lists of " + ", ".join(f"{size} for {role}" for role, size in sizes.items()))
    number = len(lists[min(graded)])
    lists |= {role: row[role] for role in SHARED if is_listed(row.get(role), number)}
    of_all = row | {"tokens": None}  # a number of the whole row says nothing about one response
    for values in zip(*lists.values(), strict=True):
        yield from unfold_row(
            of_all | dict(zip(lists, values, strict=True)), file, line, found
        )  # a list for each prompt


def is_listed(cell: Any, number: int) -> bool:
    """Return whether a cell has one element for each of a number of responses."""
    return isinstance(cell, list) and len(cell) == number and not is_chat(cell)


def add_parts(values: list[Any]) -> Any:
    """Return the sum of the rewards of one conversation's turns; None if there is none."""
    known = [value for value in values if value is not None]
    return sum(known) if known and all(is_number(value) for value in known) else None


def unfold_head(head: Chunk, graded: Sequence[Sequence[Any]], responses: Sequence[Any]) -> Chunk:
    """Return the first rows of a log with a row for each response; `graded` are its columns of rewards and verdicts."""
    sizes = [next((len(cell) for cell in cells if isinstance(cell, list)), 0) for cells in zip(*graded, strict=True)]
    sizes = [0 if is_chat(response) else size for size, response in zip(sizes, responses, strict=True)]
    if not any(sizes):
        return head
    places = [(row, place) for row, size in enumerate(sizes) for place in range(max(size, 1))]
    columns = {
        name: [
            cells[row][place] if sizes[row] and is_listed(cells[row], sizes[row]) else cells[row]
            for row, place in places
        ]
        for name, cells in head.columns.items()
    }
    return Chunk(head.file, range(1, len(places) + 1), columns)
