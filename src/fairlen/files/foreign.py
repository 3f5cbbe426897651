"""The one place that opens files which fairlen did not just write itself: regular files only, of bounded size.

A pipe blocks the reader until somebody writes to it, and a device such as /dev/zero never ends. A path from the user or from
a downloaded folder may name either. `tests/test_source.py` finds code that opens such a path in another way.
"""

from __future__ import annotations

import errno
import os
import stat
import tomllib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from fairlen.files.limits import (
    MAX_DEPTH,
    MAX_JSON,
    NotJSONError,
    RefusedError,
    bounded_seconds,
    is_deep,
    name_special_mode,
    parse_json,
    read_lines,
)

MAX_TOML = 2**20
"""Maximum size of a TOML file in bytes; fairlen has some hundred settings."""
MAX_TOML_SECONDS = 10.0
"""Time limit for parsing a TOML file: tomllib takes quadratic time for a key of many parts."""


class Unreadable(ValueError):
    """A file that cannot be read. The message names the file, the reason and the remedy."""


def open_regular_file(path: str | Path) -> BufferedReader:
    """Open a regular file for reading, without waiting for anything.

    Args:
        path: The file. Links are followed.

    Returns:
        The open file, in binary mode.

    Raises:
        Unreadable: The path names a pipe, a socket or a device.
        OSError: The path does not exist, is a folder, or may not be read.
    """
    require_regular_file(path)  # before opening: opening a device may already act on it
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        special = name_special_mode(os.fstat(descriptor).st_mode)
        if special:
            raise Unreadable(f"{path}: {special}")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def require_regular_file(path: str | Path) -> Path:
    """Check that a path names a regular file, for a library that opens the path itself.

    Args:
        path: The file. Links are followed.

    Returns:
        The path.

    Raises:
        Unreadable: The path names a pipe, a socket or a device.
        OSError: The path does not exist, or is a folder.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    special = name_special_mode(mode)
    if special:
        raise Unreadable(f"{path}: {special}")
    return Path(path)


def require_regular_files(folder: str | Path) -> None:
    """Check that a folder contains only regular files and folders, for a library that chooses files in it.

    Args:
        folder: A folder, for example of a model. Folders inside it are not searched.

    Raises:
        Unreadable: The folder contains a pipe, a socket or a device.
    """
    for entry in sorted(Path(folder).iterdir()):
        if entry.exists():
            special = name_special_mode(entry.stat().st_mode)
            if special:
                raise Unreadable(f"{entry}: {special}")


def read_file_bytes(path: str | Path, max_bytes: int = MAX_JSON) -> bytes:
    """Read a whole regular file of at most `max_bytes` bytes.

    Raises:
        Unreadable: The path is not a regular file, or the file is too large.
        OSError: The path does not exist, is a folder, or may not be read.
    """
    with open_regular_file(path) as file:
        if os.fstat(file.fileno()).st_size <= max_bytes:
            content = file.read(max_bytes + 1)
            if len(content) <= max_bytes:
                return content
    raise Unreadable(
        f"{path}: larger than {max_bytes:,} bytes, the most that is read of such a file; give a smaller file"
    )


def read_file_start(path: str | Path, max_bytes: int) -> bytes:
    """Read the first bytes of a regular file, at most `max_bytes`.

    Raises:
        Unreadable: The path is not a regular file.
        OSError: The path does not exist, is a folder, or may not be read.
    """
    with open_regular_file(path) as file:
        return file.read(max_bytes)


def read_file_text(path: str | Path, max_bytes: int = MAX_JSON) -> str:
    """Read a whole regular file as UTF-8 text.

    Raises:
        Unreadable: As `read_file_bytes`, or the file is not UTF-8.
        OSError: The path does not exist, is a folder, or may not be read.
    """
    content = read_file_bytes(path, max_bytes)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise Unreadable(f"{path}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None


def read_file_lines(path: str | Path) -> Iterator[bytes]:
    """Yield the lines of a regular file with their line ends, one in memory at a time.

    Raises:
        Unreadable: The path is not a regular file, or a line is longer than MAX_LINE.
        OSError: The path does not exist, is a folder, or may not be read.
    """
    with open_regular_file(path) as file:
        try:
            yield from read_lines(file, Path(path))
        except RefusedError as error:
            raise Unreadable(f"{path}: {error}") from None


def read_json_file(path: str | Path) -> Any:
    """Read a JSON file.

    Raises:
        Unreadable: As `read_file_bytes`, or the file is not JSON, or is nested more than MAX_DEPTH deep.
        OSError: The path does not exist, is a folder, or may not be read.
    """
    content = read_file_bytes(path)
    try:
        return parse_json(content)
    except NotJSONError as error:
        raise Unreadable(f"{path}: {error}") from None


def read_json_object(path: str | Path) -> dict[str, Any]:
    """Read a JSON file whose value is an object.

    Raises:
        Unreadable: As `read_json_file`, or the value is not an object.
        OSError: The path does not exist, is a folder, or may not be read.
    """
    value = read_json_file(path)
    if not isinstance(value, dict):
        raise Unreadable(
            f"{path}: not JSON of the expected form: an object is expected, it holds {type(value).__name__}"
        )
    return value


def read_toml_file(path: str | Path) -> dict[str, Any]:
    """Read a TOML file of settings.

    Raises:
        Unreadable: The path is not a regular file, or the file is larger than MAX_TOML, not TOML, or nested more than
            MAX_DEPTH deep.
        OSError: The path does not exist, is a folder, or may not be read.
    """
    text = read_file_text(path, MAX_TOML)
    too_deep = (
        f"{path}: tables or lists nested too deeply to be read (more than {MAX_DEPTH}); remove what is not a setting"
    )
    try:
        with bounded_seconds(MAX_TOML_SECONDS):
            value = tomllib.loads(text)
    except RecursionError:
        raise Unreadable(too_deep) from None
    except TimeoutError:
        raise Unreadable(f"{path}: parsing took more than {MAX_TOML_SECONDS:g} s; shorten its keys") from None
    except ValueError as error:  # of TOML, and of numbers with thousands of digits
        raise Unreadable(f"{path}: not TOML: {error}") from None
    if is_deep(value):
        raise Unreadable(too_deep)
    return value
