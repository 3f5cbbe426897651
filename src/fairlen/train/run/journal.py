"""Lines appended to files of a run, and other writing that a run can do without: a full disk is said once, and training goes on.

A line is there whole or not at all, so that what is written after space was made can be read.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fairlen.console import warn
from fairlen.files.folders import open_to_append


@dataclass
class Journal:
    """Remembers what could not be written, by name of the file or folder."""

    lost: Counter[str] = field(default_factory=Counter)
    failing: set[str] = field(default_factory=set)

    def append(self, path: Path, line: str) -> None:
        """One line at the end of a file."""
        with self.attempt(path), open_to_append(path) as file:
            size, rest = os.fstat(file.fileno()).st_size, memoryview(f"{line}\n".encode())
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(size)
                raise

    @contextlib.contextmanager
    def attempt(self, path: Path) -> Iterator[None]:
        """Within, something is written to `path` that may be missing."""
        try:
            yield
        except OSError as error:
            self.lost[path.name] += 1
            if path.name not in self.failing:
                self.failing.add(path.name)
                warn(f"{path}: {error.strerror or error}; training goes on, and what cannot be written is left out")
            return
        if path.name in self.failing:
            self.failing.remove(path.name)
            warn(f"{path}: written again; left out until now: {self.lost[path.name]}")

    def close(self) -> None:
        """Says what was lost in all."""
        for name, count in self.lost.items():
            warn(f"{name}: {count} entries could not be written and are missing")
