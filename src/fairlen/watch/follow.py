"""What was added to files of rollouts since the last look, in whole steps, for a watch."""

from __future__ import annotations

import math
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from fairlen.audit.log import Log, halfway
from fairlen.audit.readers import LogReading, Source, find_files, read
from fairlen.audit.readers.rows import Options
from fairlen.batch import Floats, Ints, Responses
from fairlen.files.folders import write_file
from fairlen.files.formats import Unreadable
from fairlen.files.limits import read_row

CHUNK = 8 << 20  # bytes that are read at a time; more where one step is larger, and where one table is
ABREAST = 64  # files that are read side by side, as several writers of one run have one each
QUIET = 30.0  # seconds without a change after which the newest step counts as complete
GROWING, HEAD = (".jsonl", ".ndjson"), 4096
NO_STEPS = "no column of steps, without which nothing says what was generated together: name it (--columns step=NAME)"
UNKNOWN = "whether responses were truncated is unknown: --max-response-length N with --tokenizer FOLDER estimates it"
Step = tuple[int, Responses, bool, Floats | None]
"""A step's number, its responses, whether it is known which the limit ended, and their ages in updates where those are known."""


class Unread(NamedTuple):
    """The unread part of a file: whole lines, nothing of one that is written at once; and whether nothing comes after it."""

    file: Path
    data: bytes
    is_end: bool


@dataclass
class Follower:
    """Reads a file, a folder's files or those of a pattern as they grow."""

    path: Path
    options: Options = field(default_factory=Options)
    places: dict[str, int] = field(default_factory=dict)  # bytes of each file that were read, by its path
    heads: dict[str, int] = field(default_factory=dict)  # checksum of the first HEAD of them, which tells another file
    last: int = -1  # the newest step that was handed on
    key: int = 0  # of the rows of that step
    unit: str = ""  # of the lengths of the first rows, and of all
    rewards: dict[str, int] = field(default_factory=dict)
    """How many responses so far had each, in three digits, where the files hold no verdicts: half of their range is the bar."""
    notes: list[str] = field(default_factory=list)  # how columns were read, and what could not be: each once
    seen: dict[Path, int] = field(default_factory=dict)  # bytes of each file at the last look
    changed: float = 0.0  # when those last differed, in seconds
    barren: dict[Path, int] = field(default_factory=dict)  # bytes of files in which no rollouts were found

    def read(self, is_over: bool = False) -> Iterator[Step]:
        """Yield complete steps for `LengthWatch.look`, in order: those before the newest one, and that too at the end.

        Raises ValueError for rollouts of several folders or formats, as no file says which of those are one run's.
        """
        sizes, size, now = self.sizes(), CHUNK, time.monotonic()
        if sizes != self.seen:
            self.seen, self.changed = sizes, now
        elif not is_over and now - self.changed < QUIET:
            return
        is_over |= now - self.changed >= QUIET
        while parts := list(self.cut(sizes, size)):
            before, is_all = {**self.places}, sum(map(self.has_more, sizes, sizes.values())) == len(parts)
            yield from self.read_parts(parts, is_over and is_all)
            if self.places == before:
                if is_all and all(part.is_end for part in parts):
                    return
                size *= 2

    def sizes(self) -> dict[Path, int]:
        """Return the files that are there now with their bytes; none before the run writes."""
        try:
            return {file: file.stat().st_size for file, _ in find_files([str(self.path)])}
        except (Unreadable, FileNotFoundError):
            return {}

    def has_more(self, file: Path, size: int) -> bool:
        return self.places.get(str(file), 0) != size and self.barren.get(file) != size

    def cut(self, sizes: Mapping[Path, int], size: int) -> Iterator[Unread]:
        """Yield unread parts of the first files that have one, of about `size` bytes together, but at least one."""
        files, left = [file for file, number in sizes.items() if self.has_more(file, number)], size
        share = size // max(min(len(files), ABREAST), 1)
        for file in files:
            if left <= 0:
                return
            if file.suffix not in GROWING:
                left -= sizes[file]
                yield Unread(file, b"", True)
                continue
            place = self.places.get(str(file), 0)
            with file.open("rb") as lines:
                if place > sizes[file] or crc32(lines.read(min(place, HEAD))) != self.heads.get(str(file), 0):
                    raise ValueError(f"{file}: written anew since the last look: watch it anew, by another --state")
                lines.seek(place)
                data = lines.read(share)
            left -= len(data)
            tail = data[data.rfind(b"\n") + 1 :]  # whole, where it can be read
            yield Unread(file, data if isinstance(read_row(tail), dict) else data.removesuffix(tail), len(data) < share)

    def read_parts(self, parts: list[Unread], is_over: bool) -> Iterator[Step]:
        """Yield the steps of parts that nothing can be added to, and move beyond them."""
        sources = self.read_copies(parts, is_over)
        if len(sources) > 1:
            names = "; ".join(f"{one.format.title} in {one.folder}" for one in sources)
            raise ValueError(f"{self.path}: rollouts of {len(sources)} kinds ({names}): name one folder, or a pattern")
        log, files = (sources[0].log, sources[0].files) if sources else (None, ())
        rows = {name: log.file == place for place, name in enumerate(files)} if log else {}
        full = [part for part in parts if str(part.file) in rows and rows[str(part.file)].any()]
        self.barren |= {part.file: self.seen[part.file] for part in parts if part.is_end and part not in full}
        if not log:
            return
        self.unit = self.unit or log.unit
        if log.unit != self.unit:
            raise ValueError(f"{self.path}: lengths in {self.unit}, then in {log.unit}: give --unit or --tokenizer")
        held = min([log.batch[rows[str(part.file)]].max() for part in full if not part.is_end], default=math.inf)
        held = held if is_over else min(held, log.batch.max())
        newest = [log.batch[rows[str(part.file)]].max() for part in full if self.places.get(str(part.file))]
        if min([log.batch.max(), *newest]) <= self.last:
            self.note(f"rows came after their step was counted, at the latest {self.last}, and are left out")
        yield from self.split(log, held)
        for part in full:
            self.move(part, log.line[rows[str(part.file)] & (log.batch >= held)])

    def read_copies(self, parts: list[Unread], is_over: bool) -> list[Source]:
        """Read parts as if they were the files, and note how."""
        root = Path(os.path.commonpath([part.file.parent for part in parts]))
        with tempfile.TemporaryDirectory() as folder:
            for part in parts:
                copy = Path(folder) / part.file.relative_to(root)
                copy.parent.mkdir(parents=True, exist_ok=True)
                if part.file.suffix in GROWING:
                    write_file(copy, part.data)
                else:
                    copy.symlink_to(part.file.resolve())
            try:
                found = read([folder], self.options)
            except Unreadable as error:
                found = LogReading((), (), (str(error),))
        notes = [*found.unreadable, *([] if found.sources else found.skipped)] if is_over else []
        for one in found.sources:
            notes += [f"{one.format.title}; lengths in {one.log.unit}", *one.notes]
            lost = one.log.malformed[:1]
            notes += [f"rows that could not be read are left out, such as {row.file}: {row.reason}" for row in lost]
            notes += [UNKNOWN] * ("truncated" not in one.log.known) + [NO_STEPS] * (not one.has_steps)
        self.note(*(note.replace(folder, str(root)) for note in notes))
        kept = [one for one in found.sources if one.has_steps]
        places = [[str(root / Path(name).relative_to(folder)) for name in (one.folder, *one.files)] for one in kept]
        named = zip(kept, places, strict=True)
        return [replace(one, folder=place, files=tuple(files)) for one, (place, *files) in named]

    def move(self, part: Unread, held: Ints) -> None:
        """Move beyond a part, up to the first of the lines that are held."""
        if part.file.suffix in GROWING:
            place, data = self.places.get(str(part.file), 0), part.data
            lines = data.split(b"\n", int(held.min()) - 1) if len(held) else [b""]
            self.places[str(part.file)] = end = place + len(data) - len(lines[-1])
            with part.file.open("rb") as file:
                self.heads[str(part.file)] = crc32(file.read(min(end, HEAD)))
        elif not len(held):
            self.places[str(part.file)] = self.seen[part.file]

    def split(self, log: Log, held: float) -> Iterator[Step]:
        """Yield the steps of a log before one that is held; EqLen's forks are left out."""
        table, correct, whole = log.responses, log.correct, (self.last < log.batch) & (log.batch < held)
        if "correct" not in log.known:
            new = Counter(f"{one:.3g}" for one in table.outcome[table.active & whole].tolist())
            self.rewards = new + Counter(self.rewards)
            some = [-(-number // (1 + self.rewards.total() // 10**5)) for number in self.rewards.values()]
            bar = halfway(np.repeat([*map(float, self.rewards)], some))  # some 100,000 stand for all, the rare ones too
            self.note(f"correct is a reward above about {bar:.1g}, half of their range so far")  # told as it changes
            correct = table.outcome > bar
        table = replace(table, prompt=log.strata, correct=correct)
        for step in np.unique(log.batch[whole]).tolist():
            self.last, rows = step, (log.batch == step) & (table.round == 0)
            key = crc32(np.column_stack([log.problem, table.length, table.outcome])[rows].tobytes())
            if log.format == "trl" and key == self.key:  # its buffer again, as in readers.frameworks.drop_repeats
                self.note("rows of steps that repeat the step before are counted once")
                continue
            self.key = key
            age = log.columns["age"][rows] if "age" in log.columns else None
            yield step, table.take(rows), "truncated" in log.known, age

    def state(self) -> dict[str, Any]:
        """Return the fields that are needed to go on."""
        return {name: getattr(self, name) for name in ("places", "heads", "last", "key", "unit", "rewards")}

    def note(self, *sentences: str) -> None:
        """Note sentences, without numbers of rows at their ends, which change with every look."""
        found = dict.fromkeys(re.sub(r": [\d,]+$", "", one) for one in sentences)
        self.notes += [one for one in found if one not in self.notes]
