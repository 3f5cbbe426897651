"""Rows as lines of JSON, as programs leave rollouts and problems, and the one log that is read of them."""

import json
from pathlib import Path
from typing import Any

from fairlen.audit.readers import Options, Source, read


def write_lines(path: Path, *rows: dict | str) -> Path:
    """Write a line a row, texts as they are, into a folder that is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def read_one(*paths: Path | str, **options: Any) -> Source:
    """The log of some paths, all of which can be read."""
    reading = read([str(path) for path in paths], Options(**options))
    assert not reading.unreadable, reading.unreadable
    (source,) = reading.sources
    return source
