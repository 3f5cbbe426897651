"""What was added to files of rollouts since the last look, in whole steps, for a watch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from fairlen.audit.log import Log, halfway
from fairlen.audit.readers import Source, files_of, read
from fairlen.audit.readers.rows import Options
from fairlen.batch import Floats, Ints
from fairlen.files.folders import write_file
from fairlen.files.formats import Unreadable

CHUNK = 8 << 20
"""Bytes of a growing file that are read at a time; more where one step is larger."""
GROWING = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class Batch:
    """The responses of one step, [N] each, as `LengthWatch.add` takes them."""

    step: int
    prompts: Ints
    lengths: Ints
    outcomes: Floats
    truncated: Floats | None


@dataclass
class Follower:
    """Reads a file, or the files of a folder, as they grow; all that it remembers is in `places` and `bar`."""

    path: Path
    options: Options = field(default_factory=Options)
    places: dict[str, int] = field(default_factory=dict)
    """Bytes of each file that were read, by its path; -1 of one that is read whole."""
    bar: float | None = None
    """Outcome above which a response is correct where the files hold no verdicts: half of the range of the first."""
    notes: list[str] = field(default_factory=list)
    """How columns were read, and what could not be: each once."""

    def read(self, is_over: bool = False) -> Iterator[Batch]:
        """Yield the steps that are complete; of a growing file the last one only where it `is_over`.

        A step is complete where a later one has begun, in its file or in a later file.
        """
        files = files_of(self.path) if self.path.exists() else []
        for place, file in enumerate(files):
            is_last = place == len(files) - 1 and not is_over
            yield from (self.read_growing if file.suffix in GROWING else self.read_whole)(file, is_last)

    def read_whole(self, file: Path, is_last: bool) -> Iterator[Batch]:
        """Yield the steps of a file that is written at once, such as a table; one that is not yet whole is left for later."""
        if self.places.get(str(file)) == -1:
            return
        try:
            found = read([str(file)], self.options)
        except Unreadable as error:
            self.note(f"{file.name}: {error}")
            return
        if found.sources or not is_last:
            self.places[str(file)] = -1
        yield from chain.from_iterable(map(self.split, found.sources))
        for sentence in found.unreadable:
            self.note(sentence)

    def read_growing(self, file: Path, is_last: bool) -> Iterator[Batch]:
        """Yield the steps of lines that were added to a file."""
        size = CHUNK
        while True:
            start = self.places.get(str(file), 0)
            with file.open("rb") as lines:
                lines.seek(start)
                data = lines.read(size)
            is_end = len(data) < size
            data = data[: data.rfind(b"\n") + 1]
            if not data:
                if is_end:
                    return
                size *= 2
                continue
            logs = [source.log for source in self.read_lines(file, data)]
            if not logs and is_end and is_last:
                return  # more lines may tell which columns are what
            held = None
            if not is_end or is_last:  # the last step may go on
                held = max((int(log.batch.max()) for log in logs), default=None)
                if logs and all((log.batch == held).all() for log in logs):
                    if is_end:
                        return
                    size *= 2
                    continue
            line = (
                min((int(log.line[log.batch == held].min()) for log in logs), default=None)
                if held is not None
                else None
            )
            for log in logs:
                yield from self.batches(log, held)
            self.places[str(file)] = start + (len(data) if line is None else find_line(data, line))
            size = CHUNK
            if is_end:
                return

    def read_lines(self, file: Path, data: bytes) -> tuple[Source, ...]:
        """Read some lines of a file as if they were one."""
        with tempfile.TemporaryDirectory() as folder:
            part = Path(folder) / file.name
            write_file(part, data)
            try:
                found = read([str(part)], self.options)
            except Unreadable as error:
                self.note(str(error).replace(folder, str(file.parent)))
                return ()
        for sentence in found.unreadable:
            self.note(sentence.replace(folder, str(file.parent)))
        for source in found.sources:
            self.note_source(source)
        return found.sources

    def split(self, source: Source) -> Iterator[Batch]:
        self.note_source(source)
        return self.batches(source.log, None)

    def batches(self, log: Log, held: int | None) -> Iterator[Batch]:
        """Yield the steps of a log, but one."""
        table, correct = log.responses, log.correct
        if "correct" not in log.known:
            self.bar = halfway(table.outcome[table.active]) if self.bar is None else self.bar
            correct = table.outcome > self.bar
        outcome = np.where(table.active, correct.astype(np.float64), np.nan)
        for step in np.unique(log.batch).tolist():
            rows = log.batch == step
            if step != held:
                truncated = table.truncated[rows].astype(np.float64) if "truncated" in log.known else None
                yield Batch(step, table.prompt[rows], table.length[rows], outcome[rows], truncated)

    def note_source(self, source: Source) -> None:
        self.note(f"{source.format.title}; lengths in {source.log.unit}")
        for sentence in source.notes:
            self.note(sentence)
        if "truncated" not in source.log.known:
            self.note(
                "whether responses were truncated is unknown: --max-response-length N with --tokenizer FOLDER estimates it"
            )

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)


def find_line(data: bytes, number: int) -> int:
    """Return where a line begins, counted from 1."""
    place = 0
    for _ in range(number - 1):
        place = data.index(b"\n", place) + 1
    return place
