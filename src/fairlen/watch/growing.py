"""Single files of rollouts while a program writes them: identity, whole lines, and steps that begin again."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from zlib import crc32

import numpy as np

from fairlen.batch import Ints
from fairlen.files.foreign import open_regular_file
from fairlen.files.formats import PACKED, Span
from fairlen.files.limits import MAX_LINE, read_row

GROWING = (".jsonl", ".ndjson")
EDGE = 4096
"""Bytes at both ends of a part by which the part is recognised again."""
START = 1 << 16
"""Bytes at the start of a file by which a file without rollouts is recognised again."""
BLOCK = 1 << 20
"""Bytes that are read at a time while line ends are counted."""


@dataclass
class CountedPart:
    """How much of a file the watch has counted."""

    place: int = 0
    """Bytes before the first line that is not counted; 0 for a table, which is read as a whole."""
    edges: list[int] = field(default_factory=list)
    """Identity of the counted part, as `identify` returns it; empty if nothing is counted."""
    beyond: int = 0
    """Rows after `place` that are counted already, because they belong to an earlier step."""
    steps: dict[str, list[int]] = field(default_factory=dict)
    """Number of rows and their checksum for each counted step; the checksum is 0 in a file of lines."""


def is_growing(path: Path) -> bool:
    """Return whether a file has one JSON object per line, so that a program can append to it."""
    if path.suffix not in GROWING:
        return False
    with open_regular_file(path) as file:
        start = file.read(64)
    is_packed = any(start.startswith(magic) for magic in PACKED)
    is_array = start.lstrip()[:1] == b"["
    return not is_packed and not is_array


def identify(path: Path, stop: int) -> list[int]:
    """Return the size of the part of a file before `stop`, and checksums of its first and last EDGE bytes."""
    with open_regular_file(path) as file:
        first = file.read(min(stop, EDGE))
        file.seek(max(stop - EDGE, 0))
        last = file.read(stop - file.tell())
    return [stop, crc32(first), crc32(last)]


def identify_start(path: Path) -> int:
    """Return a checksum of the first START bytes of a file, or of all bytes of a smaller one."""
    with open_regular_file(path) as file:
        return crc32(file.read(START))


@dataclass(frozen=True)
class Lines:
    """Whole lines of a file."""

    span: Span
    """First byte, and the byte after the last line; they are equal if there is no whole line."""
    is_end: bool
    """Whether nothing can be read after them."""
    fault: str = ""
    """Why nothing can be read after them, although the file goes on."""


def find_lines(path: Path, start: int, most: int) -> Lines:
    """Find the whole lines after a place.

    A last line without its line end counts as whole if it is a JSON object.

    Args:
        path: File of JSON lines.
        start: Byte at which the first line begins.
        most: Bytes to look at; a longer line is still found, up to MAX_LINE.
    """
    stop = start
    with open_regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(start)
        while file.tell() < size and (file.tell() - start < most or stop == start):
            before = file.tell()
            block = file.read(min(BLOCK, size - before))
            if not block:
                break
            end = block.rfind(b"\n") + 1
            stop = before + end if end else stop
            if file.tell() - stop > MAX_LINE:
                fault = f"a line of more than {MAX_LINE >> 20} MiB after byte {stop:,}"
                return Lines((start, stop), True, fault)
        is_end = file.tell() >= size
        file.seek(stop)
        last = file.read(size - stop) if is_end else b""
    if last.rstrip().endswith(b"}") and isinstance(read_row(last), dict):
        stop += len(last)
    return Lines((start, stop), is_end)


def find_line(path: Path, span: Span, number: int) -> int:
    """Return the byte at which a line of a span begins; `number` counts from 1."""
    place, to_skip = span[0], number - 1
    with open_regular_file(path) as file:
        file.seek(place)
        while to_skip > 0:
            block = file.read(min(BLOCK, span[1] - file.tell()))
            if not block:
                return span[1]
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
            if len(ends) >= to_skip:
                return place + int(ends[to_skip - 1]) + 1
            to_skip -= len(ends)
            place += len(block)
    return place


def count_lines(path: Path, span: Span) -> int:
    """Return the number of lines that end within a span."""
    number = 0
    with open_regular_file(path) as file:
        file.seek(span[0])
        while block := file.read(min(BLOCK, span[1] - file.tell())):
            number += block.count(b"\n")
    return number


@dataclass(frozen=True)
class Restart:
    """A place in a file at which its steps go back."""

    row: int
    """Position of the first row of an earlier step."""
    is_new_run: bool
    """Whether whole steps come again. If not, rows of earlier steps may still follow."""


def find_restart(steps: Ints, counted: Mapping[int, int]) -> Restart | None:
    """Find the row from which a file holds another run.

    A program that appends a second run to the file of the first one writes whole steps again. Single responses that end
    late belong to a recent step, which they complete. So a step that comes again is taken for a new run if it then has a
    quarter more rows than the file's steps usually have, and at least half of such a step came again; or if two steps
    come again in their order, each with a quarter of its usual rows more than usual.

    Args:
        steps: Step of each row in the order of the file, [N], after the part that was counted.
        counted: Rows of each step in the counted part.

    Returns:
        The restart, or None if the file ends with rows of its newest step.
    """
    rows = dict(counted)
    newest = max(rows, default=-1)
    first_back, back = 0, dict[int, int]()
    for step, start, stop in split_runs(steps):
        if step >= newest:
            for late, number in back.items():
                rows[late] += number
            back = {}
            newest = step
            rows[step] = rows.get(step, 0) + stop - start
            continue
        if not back:
            first_back = start
        back[step] = back.get(step, 0) + stop - start
        rows.setdefault(step, 0)
        if comes_again(back, rows, newest):
            return Restart(first_back, True)
    return Restart(first_back, False) if back else None


def comes_again(back: Mapping[int, int], rows: Mapping[int, int], newest: int) -> bool:
    """Return whether rows of earlier steps are a new run's.

    Args:
        back: Number of those rows by step, in the order in which they came.
        rows: Number of rows of each step before them.
        newest: Newest step before them, which may not be complete.
    """
    others = [number for step, number in rows.items() if step != newest and step not in back]
    usual, factor = (median(others), 1.25) if others else (max(rows.values()), 1.75)
    is_whole = [2 * more >= usual and rows[step] + more > factor * usual for step, more in back.items()]
    is_more = [4 * more >= usual and rows[step] + more > 1.1 * usual for step, more in back.items()]
    climbs = len(back) > 1 and list(back) == sorted(back)
    return any(is_whole) or (climbs and sum(is_more) > 1)


def split_runs(steps: Ints) -> Sequence[tuple[int, int, int]]:
    """Return step, first row and the row after the last one of each run of rows with one step."""
    if not len(steps):
        return []
    starts = np.flatnonzero(np.diff(steps, prepend=steps[0] - 1))
    stops = [*starts[1:].tolist(), len(steps)]
    return [(int(steps[start]), start, stop) for start, stop in zip(starts.tolist(), stops, strict=True)]
