"""Files of rows that are opened once, though their first rows are looked at before all are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fairlen.files.formats import WHOLE, Chunk, Reject, Span, Turn, Unreadable, stream

MAX_LOOKS = 100  # lines without an object after which a file is not looked at further
MAX_SNIFFED = 10  # rows whose names are taken


class OtherContent(Unreadable):
    """A file that can be read but holds something else."""


class Opened:
    """A file that is opened once: its first rows, by which its format is known, are kept until all are read."""

    def __init__(self, path: Path, lists: frozenset[str], span: Span | None = None) -> None:
        self.path, self.lists, self.span = path, lists, span
        self.close()

    def close(self, turn: Turn = WHOLE) -> None:
        """Begin anew, with all rows or those of a turn."""
        self.heads: list[Chunk] = []
        self.rejected: list[tuple[int, str]] = []
        self.error: Unreadable | None = None
        self.sink: Reject = self.reject_first
        self.rest = stream(
            self.path, lambda line, why: self.sink(line, why),
            counts=True, lists=self.lists, first=MAX_SNIFFED, turn=turn, span=self.span,
        )  # fmt: skip

    def reject_first(self, line: int, why: str) -> None:
        """Keep what is wrong with a line. Raises OtherContent for a file that is something else, whatever the rest of it is."""
        self.rejected.append((line, why))
        if not self.heads and len(self.rejected) == MAX_LOOKS:
            raise OtherContent(f"{self.path}: {self.no_object}")

    @property
    def no_object(self) -> str:
        line, why = self.rejected[0]
        return f"no object in its first lines: line {line}: {why}"

    def look(self, size: int) -> Chunk:
        """Return the first rows, at most `size`. Raises Unreadable where the file breaks off in them."""
        try:
            while sum(map(len, self.heads)) < size and (chunk := next(self.rest, None)):
                self.heads.append(chunk)
        except Unreadable as error:
            self.error = error
            if not self.heads:
                raise
        head = join_chunks(self.heads)
        return Chunk(head.file, head.lines[:size], {name: cells[:size] for name, cells in head.columns.items()})

    def chunks(self, reject: Reject, turn: Turn) -> Iterator[Chunk]:
        """Yield all rows, or those of a turn, once. Raises Unreadable where the file breaks off."""
        if turn != WHOLE:
            self.close(turn)
            self.sink = reject
        elif not self.error:
            self.look(MAX_SNIFFED + 1)
        for line, why in self.rejected:
            reject(line, why)
        self.sink, heads, self.heads = reject, self.heads, []
        if heads:
            yield join_chunks(heads)
        if self.error:
            raise self.error
        yield from self.rest


def join_chunks(chunks: Sequence[Chunk]) -> Chunk:
    """Return the rows of some chunks as one; None where one lacks a column."""
    names = dict.fromkeys(name for chunk in chunks for name in chunk.columns)
    columns = {name: [cell for chunk in chunks for cell in chunk.get(name)] for name in names}
    return Chunk(chunks[0].file if chunks else "", [line for chunk in chunks for line in chunk.lines], columns)
