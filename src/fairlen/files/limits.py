"""Limits on foreign files: memory to read them, lines, unpacked bytes, JSON."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import sys
import threading
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

GIB = 2**30
MAX_MEMORY = 4 * GIB  # bytes of a piece of a file while it is read
MAX_LINE = 64 * 2**20
MAX_JSON = 256 * 2**20  # bytes of a file that is one JSON value, which cannot be read in pieces
THREAD = 256 * 2**20
"""Unused address space that threads reserve for each core: in two pools (Rust's and Arrow's) a stack and an arena of malloc, 64
MiB that are 128 until they are aligned."""
UNPACKED, RATIO = GIB, 100  # bytes that any compressed file may become, and multiples of its size for a larger one
MAX_ROWS = 2 * 2**20  # rows or lines; a larger file may have one a byte
MAX_COLUMNS = 4096
MAX_DEPTH = 64  # of lists and objects within each other
STATUS = Path("/proc/self/statm")
SPECIAL_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
"""Tests of a file's mode, each with a name for the files that pass it."""


class RefusedError(ValueError):
    """Not read by intention, as larger than a limit: why, and what to do instead."""


class LimitError(RefusedError):
    """Not read because it exceeds a limit, although it may hold what is looked for."""


class NotJSONError(ValueError):
    """Not readable as JSON: why."""


LOCK = threading.Lock()
HELD: list[tuple[int, int]] = []  # earlier limits of the address space, by entered `bounded_memory`


@contextmanager
def bounded_memory(most: int = MAX_MEMORY) -> Iterator[None]:
    """Raise MemoryError where this process takes more than `most` further bytes, reservations of threads aside; Linux only.

    Nested bounds and those of several threads are one: the first to enter sets it, the last to leave takes it back.
    """
    with LOCK:
        before = HELD[0] if HELD else resource.getrlimit(resource.RLIMIT_AS)
        if not HELD and STATUS.exists():
            limit = address_space() + most + THREAD * count_threads()
            soft, hard = before
            bound = limit if soft == resource.RLIM_INFINITY else min(limit, soft)
            resource.setrlimit(resource.RLIMIT_AS, (bound, hard))
        HELD.append(before)
    try:
        yield
    finally:
        with LOCK:
            HELD.pop()
            if not HELD:
                resource.setrlimit(resource.RLIMIT_AS, before)


def address_space() -> int:
    """Bytes that this process has mapped; 0 where the system does not say."""
    return int(STATUS.read_text().split()[0]) * resource.getpagesize() if STATUS.exists() else 0


def count_threads() -> int:
    """Threads of the largest pool: one a core, unless the environment asks Rust's for more."""
    asked = os.environ.get("RAYON_NUM_THREADS", "")
    return max(os.cpu_count() or 1, int(asked) if asked.isdecimal() else 0)


@contextmanager
def bounded_seconds(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after `seconds`; in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError(f"it did not end within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop) or signal.SIG_DFL  # None where it was set from C
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        try:  # an alarm may come here too
            signal.setitimer(signal.ITIMER_REAL, 0)
        finally:
            signal.signal(signal.SIGALRM, before)


def read_lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """Yield the lines of a file that was opened at `path`. Raises RefusedError beyond the limits."""
    most, total, number, rows = max_unpacked(path), 0, 0, max_rows(path)
    while line := file.readline(MAX_LINE + 1):
        number, total = number + 1, total + len(line)
        check_rows(number, rows)
        if len(line) > MAX_LINE:
            raise LimitError(f"line {number} is longer than {MAX_LINE >> 20} MiB: write less into a row")
        if total > most:
            raise LimitError(f"it unpacks to more than {most:,} bytes: unpack it yourself")
        yield line


def max_unpacked(path: Path) -> int:
    return max(UNPACKED, RATIO * path.stat().st_size)


def max_rows(path: Path) -> int:
    return max(MAX_ROWS, path.stat().st_size)


def check_rows(number: int, most: int) -> None:
    if number > most:
        raise LimitError(f"more than {most:,} rows, beyond what its size explains: write it as several files")


def check_columns(number: int) -> None:
    if number > MAX_COLUMNS:
        raise LimitError(f"more than {MAX_COLUMNS:,} names of columns: put what differs into one list of objects")


def is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for values in inner for one in values if isinstance(one, (dict, list))]
        if not level:
            return False
    return True


def name_special(path: Path) -> str:
    """Name the kind of a path that is neither a regular file nor a folder, with the remedy.

    Args:
        path: A path, which need not exist. Links are followed.

    Returns:
        For example "a pipe: give a regular file"; empty for a regular file, a folder, and a path that does not exist.
    """
    return name_special_mode(path.stat().st_mode) if path.exists() else ""


def name_special_mode(mode: int) -> str:
    """Return the same as `name_special`, given the `st_mode` of a file."""
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return ""
    kind = next((name for is_kind, name in SPECIAL_KINDS if is_kind(mode)), "a special file")
    return f"{kind}: give a regular file"


def parse_json(text: str | bytes) -> Any:
    """Raises NotJSONError in words of ours: some of Python's are advice to programmers."""
    try:
        text = text if isinstance(text, str) else text.removeprefix(BOM_UTF8).decode()
        value = json.loads(text)
        if text.count("[") + text.count("{") > MAX_DEPTH and is_deep(value):
            raise RecursionError
        return value
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise NotJSONError(f"not UTF-8 ({f'line {line}, ' if line > 1 else ''}{error.reason})") from None
    except json.JSONDecodeError as error:
        raise NotJSONError(f"not JSON: {error}") from None
    except RecursionError:
        raise NotJSONError(f"brackets nested too deeply to be read (more than {MAX_DEPTH})") from None
    except ValueError:
        raise NotJSONError(f"a number of more than {sys.get_int_max_str_digits():,} digits") from None


def find_half(value: Any) -> str:
    """Name a lone surrogate, which no tokenizer reads; else empty."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return f"{error.object[error.start]!a} is half of a character (a lone surrogate)"
    return ""


def read_row(text: bytes) -> dict[str, Any] | str:
    """JSON as a row, or why it is none."""
    try:
        return check_row(parse_json(text), b"\\u" in text)
    except NotJSONError as error:
        return str(error)


def check_row(value: Any, escaped: bool) -> dict[str, Any] | str:
    """A JSON value as a row, or why it is none; only where something was `escaped` may there be half of a character."""
    if not isinstance(value, dict):
        return f"not an object but {type(value).__name__}"
    return (escaped and find_half(value)) or value
