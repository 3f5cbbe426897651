"""Steps of a run whose rollouts another program writes, read as soon as they are complete."""

from __future__ import annotations

import math
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from fairlen.audit.log import Log, halfway
from fairlen.audit.readers import LogReading, Source, find_files, read_places
from fairlen.audit.readers.rows import WITHOUT_STEP, Options
from fairlen.audit.readers.spent import Meter, make_meter
from fairlen.batch import Bools, Floats, Ints, Responses
from fairlen.files.formats import Span, Unreadable, natural
from fairlen.watch.growing import (
    CountedPart,
    count_lines,
    find_line,
    find_lines,
    find_restart,
    identify,
    identify_start,
    is_growing,
)

CHUNK = 8 << 20
"""Bytes of files of lines that are read at a time; more if one step is larger."""
TABLES = 256 << 20
"""Bytes of tables, which are compressed and read as a whole, that are read at a time."""
MAX_STEP = 16 << 30
"""Bytes of a step beyond which it is not waited for."""
ABREAST = 64
"""Files that are read side by side, because the ranks of one run may write a file each."""
SETTLED = 2 * 10**9
"""Nanoseconds after which a folder's time of change tells whether a file was added: clocks of file systems are coarse."""
OLDER = 60.0
"""Seconds by which the file of a later step must be older to count as an earlier run's."""
NO_STEPS = "no column of steps, without which it is unknown what was generated together: --columns step=NAME"
UNKNOWN_LIMIT = (
    "whether responses were truncated is unknown: --max-response-length N with --tokenizer FOLDER estimates it"
)
LATE = "rows that came after their step was counted"
UNREAD = "rows that could not be read"


@dataclass(frozen=True)
class StepRows:
    """The responses of a complete step."""

    number: int
    table: Responses
    knows_limit: bool
    """Whether the files record which responses the limit truncated."""
    age: Floats | None
    """Updates since the weights that generated each response, [N]; None if not recorded."""
    question: str = ""
    """What has to be answered before an effect can be tested, such as which responses are one policy's."""


@dataclass(frozen=True)
class LateRows:
    """Responses that came after their step was counted, and are left out."""

    number: int
    tokens: float
    """Sum of their lengths."""


@dataclass(frozen=True)
class NewRun:
    """A run that begins in files that a watch has followed: what follows belongs to a new watch."""

    reason: str


Event = StepRows | LateRows | NewRun


@dataclass(frozen=True)
class Unread:
    """A part of a file that is not counted yet."""

    file: Path
    span: Span | None
    """Whole lines of a file of lines; None for a table."""
    is_end: bool
    """Whether nothing follows in the file."""


Signature = tuple[int, int, int]
"""Size, time of the last change and inode of a file: if they are equal, the file was not written."""


@dataclass
class Follower:
    """Follows a file, the files of a folder or those of a pattern while they are written."""

    path: Path
    options: Options = field(default_factory=Options)
    files: dict[str, CountedPart] = field(default_factory=dict)
    """How much of each file is counted, by path."""
    earlier: dict[str, list[int]] = field(default_factory=dict)
    """Identity of each table that an earlier run wrote; it is skipped until it changes."""
    starts: dict[str, int] = field(default_factory=dict)
    """Byte at which this run begins in files of lines that an earlier run began."""
    last: int = -1
    """Newest step that was returned."""
    key: int = 0
    """Checksum of the rows of that step."""
    unit: str = ""
    """Unit of the lengths of the first rows, which all others must have."""
    rewards: dict[str, int] = field(default_factory=dict)
    """Number of responses per reward, to three digits, if the files hold no verdicts."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Rows that are not counted, by reason; 0 if their number is unknown."""

    def __post_init__(self) -> None:
        self.files = {
            name: one if isinstance(one, CountedPart) else CountedPart(**one) for name, one in self.files.items()
        }
        self.notes: list[str] = []
        self._meter: Meter | None = None
        self._names: dict[Path, str] = {}
        self._folders: dict[str, int] = {}
        self._seen: dict[Path, Signature] = {}
        self._settled: dict[Path, Signature] = {}
        self._barren: dict[Path, tuple[Signature, int]] = {}
        self._waiting: dict[Path, Signature] = {}
        self._lost: dict[Path, str] = {}
        self._growing: dict[tuple[Path, int], bool] = {}
        self._cuts: dict[Path, tuple[int, str]] = {}
        self._is_over = False

    # What is written to disk and taken up again.

    def state(self) -> dict[str, Any]:
        """Return the fields from which another follower continues, for JSON."""
        names = ("earlier", "starts", "last", "key", "unit", "rewards", "skipped")
        counted = {name: asdict(one) for name, one in self.files.items()}
        return {"files": counted} | {name: getattr(self, name) for name in names}

    # Looking at files.

    def read(self, is_over: bool = False) -> Iterator[Event]:
        """Yield the steps that are complete, in order.

        A step is complete when a later one has begun, or at the end.

        Args:
            is_over: Whether the run has ended, so that the newest step is complete too.

        Raises:
            ValueError: If the files hold rollouts of several formats or folders, or change their unit of length.
        """
        self._names = self.list_files()
        signatures = {file: signature for file in self._names if (signature := stat(file))}
        is_changed = signatures != self._seen
        if not is_over and not is_changed:
            return
        is_first, self._seen, self._is_over = not self._seen, signatures, is_over
        try:
            if is_first:
                self.skip_older_tables()
            self.find_replaced_files()
            yield from self.read_all(is_over)
        except FileNotFoundError:  # removed or renamed since it was listed: the next look lists again
            self._seen = {}
        if is_over:
            for sentence in self._lost.values():
                self.skip(sentence)

    def read_all(self, is_over: bool) -> Iterator[Event]:
        """Yield the complete steps of all files as they are now."""
        most = CHUNK
        while True:
            parts, is_all = self.choose_parts(most)
            is_end = is_all and all(part.is_end for part in parts)
            run_ends = is_end and (is_over or bool(self._cuts))
            has_progress = False
            if parts:
                has_progress = yield from self.read_parts(parts, run_ends)
            if has_progress:
                continue
            if is_end and self._cuts:
                yield self.begin_run()
                most = CHUNK
            elif is_end:
                return
            elif most > MAX_STEP:
                self.skip(f"a step of more than {MAX_STEP >> 30} GiB")
                return
            else:
                most *= 2

    def list_files(self) -> dict[Path, str]:
        """Return the files that exist now, each with the path, folder or pattern that names it.

        Listing 100,000 files takes seconds, so a listing is kept while no folder in it changes.
        """
        if self._folders and self._folders == read_times(self._folders):
            return self._names
        folders = {folder: 0 for folder, _, _ in os.walk(self.path)}
        times = read_times(folders)
        is_settled = time.time_ns() - max(times.values(), default=0) > SETTLED
        self._folders = times if is_settled else {}
        try:
            return dict(find_files([str(self.path)]))
        except (Unreadable, FileNotFoundError):
            return {}

    def find_replaced_files(self) -> None:
        """Find files of lines whose counted part has changed: another run has written them."""
        for file in self._seen:
            counted = self.files.get(str(file))
            if counted is None or not counted.place or not counted.edges:
                continue
            is_same = self._seen[file][0] >= counted.place and identify(file, counted.place) == counted.edges
            if not is_same:
                counted.place, counted.edges, counted.beyond = 0, [], 0
                self._cuts[file] = 0, f"{file} was written again"

    def skip_older_tables(self) -> None:
        """At the first look of a watch, skip tables of later steps that are older than those of earlier steps.

        A second run in the folder of a longer one has replaced only the first of its tables.
        """
        if self.files or self.earlier:
            return
        tables = [file for file in self._seen if not self.grows(file)]
        newest = 0.0
        for file in sorted(tables, key=lambda file: natural(str(file))):
            size, nanoseconds, _ = self._seen[file]
            seconds = nanoseconds / 1e9
            newest = max(newest, seconds)
            if newest - seconds > OLDER:
                self.earlier[str(file)] = identify(file, size)
        if self.earlier:
            first = next(iter(self.earlier))
            number = len(self.earlier)
            self.skip(
                f"{number:,} files such as {first} are older than files of earlier steps, so they "
                "count as an earlier run's; to count them, name one run's files by a pattern"
            )

    def grows(self, file: Path) -> bool:
        """Return whether a program appends lines to a file; all others are tables."""
        size, _, inode = self._seen[file]
        if (file, inode) not in self._growing:
            kind = is_growing(file)
            if not size:
                return kind
            self._growing[file, inode] = kind
        return self._growing[file, inode]

    def choose_parts(self, most: int) -> tuple[list[Unread], bool]:
        """Return parts that are not counted, of about `most` bytes, and whether those are all."""
        unread = [file for file in self._seen if self.has_more(file)]
        growing = [file for file in unread if self.grows(file)]
        share = max(most // max(min(len(growing), ABREAST), 1), 1)
        parts, is_all = list[Unread](), len(growing) <= ABREAST
        for file in growing[:ABREAST]:
            part = self.find_part(file, share)
            if part is not None:
                parts.append(part)
        room = max(TABLES, most)
        for file in unread:
            if self.grows(file):
                continue
            if room <= 0:
                is_all = False
                break
            room -= self._seen[file][0]
            parts.append(Unread(file, None, True))
        return parts, is_all

    def has_more(self, file: Path) -> bool:
        """Return whether a file may hold rows that are not counted."""
        signature, name = self._seen[file], str(file)
        is_waiting = self._waiting.get(file) == signature and not self._is_over
        if self._settled.get(file) == signature or is_waiting or self.is_barren(file):
            return False
        if name in self.earlier:
            if self.earlier[name] == identify(file, signature[0]):
                self._settled[file] = signature
                return False
            del self.earlier[name]
        counted = self.files.get(name)
        if counted is None:
            return True
        if self.grows(file):
            return min(signature[0], self.cut_of(file)) > counted.place
        is_counted = bool(counted.edges) and counted.edges == identify(file, signature[0])
        if is_counted:
            self._settled[file] = signature
        return not is_counted and self.cut_of(file) > 0

    def is_barren(self, file: Path) -> bool:
        """Return whether a file had no rollouts when it was last read, and begins as it did then."""
        if file not in self._barren:
            return False
        signature, start = self._barren[file]
        is_same = signature == self._seen[file]
        if not is_same and self.grows(file):
            is_same = start == identify_start(file)
        if is_same:
            self._barren[file] = self._seen[file], start
        else:
            del self._barren[file]
        return is_same

    def cut_of(self, file: Path) -> float:
        """Return the byte at which another run begins in a file."""
        return self._cuts[file][0] if file in self._cuts else math.inf

    def find_part(self, file: Path, most: int) -> Unread | None:
        """Return the whole lines of a file that are not counted; None if there are none yet."""
        counted = self.files.get(str(file), CountedPart())
        lines = find_lines(file, counted.place, most)
        (start, stop), is_end = lines.span, lines.is_end
        if lines.fault:
            self.skip(f"{file}: {lines.fault}")
        if stop >= self.cut_of(file):
            stop, is_end = int(self.cut_of(file)), True
        if stop > start:
            return Unread(file, (start, stop), is_end)
        if lines.fault:
            self.set_barren(file)
        return None

    def set_barren(self, file: Path) -> None:
        """Skip a file until its first bytes change."""
        self._barren[file] = self._seen[file], identify_start(file)

    # Reading parts.

    def read_parts(self, parts: list[Unread], run_ends: bool) -> Iterator[Event]:
        """Yield the complete steps of some parts, and move beyond them. Returns whether anything changed."""
        source = self.read_source(parts, run_ends)
        log = source.log if source else None
        rows_of = find_rows(source) if source else {}
        empty = [part for part in parts if str(part.file) not in rows_of]
        waiting = self.find_unfinished(source, parts) if source and not run_ends else []
        for part in waiting:
            self._waiting[part.file] = self._seen[part.file]
        if waiting:
            return True
        has_progress = self.set_empty(empty)
        if log is None:
            return has_progress
        full = [part for part in parts if str(part.file) in rows_of]
        returning = {}
        for part in full:
            rows = rows_of[str(part.file)]
            returning[part.file] = self.find_returning(part, log, rows, run_ends)
        if any(returning[part.file] is None for part in full):
            return True  # another run begins in one of the files: read again up to there
        before = self.last
        held = math.inf if run_ends else max(find_held(log, full, rows_of), before + 1)
        late = [self.find_late(part, log, rows_of, returning) for part in full]
        yield from self.split(log, held)
        for part in full:
            rows = rows_of[str(part.file)]
            has_progress |= self.move(part, log, rows, held, returning[part.file])
        late_rows = np.concatenate(late)
        if len(late_rows):
            self.skip(LATE, len(late_rows))
            yield LateRows(len(late_rows), float(log.responses.length[late_rows].sum()))
        self.count_unread(source, full)
        return has_progress or self.last > before

    def read_source(self, parts: Sequence[Unread], run_ends: bool) -> Source | None:
        """Read parts, and note how. Raises ValueError for rollouts of several kinds."""
        if self._meter is None:
            self._meter = make_meter(self.options.unit, self.options.tokenizer)
        places = [(part.file, self._names[part.file]) for part in parts]
        spans = {part.file: part.span for part in parts if part.span}
        try:
            reading = read_places(places, self.options, self._meter, spans)
        except Unreadable as error:
            reading = LogReading((), (str(error),), ())
        for part in parts:
            self._lost.pop(part.file, None)
        self._lost |= dict(reading.lost)
        has_rollouts = bool(self.unit or reading.sources)
        if run_ends or not has_rollouts:
            self.note(*reading.unreadable)
        if not has_rollouts:
            self.note(*reading.skipped)
        for source in reading.sources:
            self.note_source(source, run_ends)
        sources = [source for source in reading.sources if source.has_steps]
        if len(sources) > 1:
            kinds = "; ".join(f"{one.format.title} in {one.folder}" for one in sources)
            raise ValueError(f"{self.path}: rollouts of {len(sources)} kinds ({kinds}): name one folder, or a pattern")
        return sources[0] if sources else None

    def note_source(self, source: Source, run_ends: bool) -> None:
        """Note how rollouts are read, and which are not counted."""
        log = source.log
        notes = [f"{source.format.title}; lengths in {log.unit}", *source.notes]
        if log.grouping:
            notes.append(log.grouping)
        if log.malformed:
            row = log.malformed[0]
            notes.append(f"{UNREAD} are skipped, such as {row.file}: {row.reason}")
        if "truncated" not in log.known:
            notes.append(UNKNOWN_LIMIT)
        if not source.has_steps:
            notes.append(NO_STEPS)
            if run_ends:
                self.skip("rollouts without a step", len(log))
        if any(note.startswith(WITHOUT_STEP) for note in source.notes):
            self.skipped.setdefault("rows without a step", 0)
        if run_ends:
            for sentence in source.faults:
                self.skip(sentence)
        self.note(*notes)

    def find_unfinished(self, source: Source, parts: Sequence[Unread]) -> list[Unread]:
        """Return tables that end too early: a program may still be writing them."""
        tables = [part for part in parts if part.span is None]
        return [part for part in tables if any(fault.startswith(str(part.file)) for fault in source.faults)]

    def set_empty(self, parts: Sequence[Unread]) -> bool:
        """Skip parts without rollouts until their files change. Returns whether there are any."""
        for part in parts:
            counted = self.files.get(str(part.file))
            if counted and part.span:  # damaged lines of a file that holds rollouts
                self.skip(UNREAD, count_lines(part.file, part.span))
                counted.place = part.span[1]
                counted.edges = identify(part.file, counted.place)
            else:
                self.set_barren(part.file)
        return bool(parts)

    def check_unit(self, log: Log) -> None:
        """Raise ValueError if lengths have another unit than those before."""
        self.unit = self.unit or log.unit
        if log.unit != self.unit:
            raise ValueError(f"{self.path}: lengths in {self.unit}, then in {log.unit}: give --unit or --tokenizer")

    def find_returning(self, part: Unread, log: Log, rows: Ints, run_ends: bool) -> int | None:
        """Return the position of the first row of a part from which earlier steps come again.

        It is the number of rows if none does. None: those rows are another run's, which begins there.
        """
        counted = self.files.get(str(part.file), CountedPart())
        steps = log.batch[rows]
        if part.span is None:
            again = find_changed_step(counted, log, rows)
            if again is None:
                return len(rows)
            self._cuts[part.file] = 0, f"{part.file} was written again (step {again:,})"
            return None
        known = {int(step): number for step, (number, _) in counted.steps.items()}
        restart = find_restart(steps, known)
        if restart is None:
            return len(rows)
        if restart.is_new_run:
            place = find_line(part.file, part.span, int(log.line[rows][restart.row]))
            step = int(steps[restart.row])
            self._cuts[part.file] = place, f"{part.file} goes back to step {step:,}"
            return None
        return len(rows) if run_ends else restart.row

    def find_late(
        self,
        part: Unread,
        log: Log,
        rows_of: Mapping[str, Ints],
        returning: Mapping[Path, int | None],
    ) -> Ints:
        """Return the rows of a part that belong to a step which was counted without them."""
        rows = rows_of[str(part.file)][: returning[part.file]]
        earlier = rows[log.batch[rows] <= self.last]
        counted = self.files.get(str(part.file), CountedPart())
        if part.span is not None:
            return earlier[counted.beyond :]  # the first ones were counted before
        late = [np.zeros(0, np.int64)]
        for step in np.unique(log.batch[earlier]).tolist():
            number, _ = counted.steps.get(str(step), (0, 0))
            late.append(earlier[log.batch[earlier] == step][number:])
        return np.concatenate(late)

    def move(self, part: Unread, log: Log, rows: Ints, held: float, returning: int) -> bool:
        """Move beyond the rows of a part that are counted. Returns whether there are any."""
        steps, name = log.batch[rows], str(part.file)
        counted = self.files.setdefault(name, CountedPart())
        is_held = (steps >= held) | (np.arange(len(steps)) >= returning)
        if part.span is None:
            return self.move_beyond_table(part, counted, log, rows, is_held)
        first = int(is_held.argmax()) if is_held.any() else len(steps)
        place = part.span[1]
        if first < len(steps):
            place = find_line(part.file, part.span, int(log.line[rows][first]))
        for step, number in zip(*np.unique(steps[:first], return_counts=True), strict=True):
            before = counted.steps.get(str(step), [0, 0])[0]
            counted.steps[str(step)] = [before + int(number), 0]
        has_moved = place > counted.place
        counted.place, counted.edges = place, identify(part.file, place)
        counted.beyond = int((~is_held[first:]).sum())
        return has_moved

    def move_beyond_table(self, part: Unread, counted: CountedPart, log: Log, rows: Ints, is_held: Bools) -> bool:
        """Keep which rows of a table are counted."""
        before = dict(counted.steps)
        for step in np.unique(log.batch[rows][~is_held]).tolist():
            own = rows[(log.batch[rows] == step) & ~is_held]
            counted.steps[str(step)] = [len(own), checksum(log, own)]
        if is_held.any():
            return counted.steps != before
        counted.edges = identify(part.file, self._seen[part.file][0])
        self._settled[part.file] = self._seen[part.file]
        return True

    def count_unread(self, source: Source | None, parts: Sequence[Unread]) -> None:
        """Count the malformed rows of parts that are counted."""
        if source is None:
            return
        for part in parts:
            lines = [row.line for row in source.log.malformed if row.file == str(part.file)]
            if part.span is not None:
                place = self.files[str(part.file)].place
                if place < part.span[1]:
                    number = count_lines(part.file, (part.span[0], place))
                    lines = [line for line in lines if line <= number]
            elif self._settled.get(part.file) != self._seen[part.file]:
                lines = []
            if lines:
                self.skip(UNREAD, len(lines))

    def split(self, log: Log, held: float) -> Iterator[StepRows]:
        """Yield the steps of a log before the one that is held, without EqLen's forks."""
        is_whole = (self.last < log.batch) & (log.batch < held)
        if not is_whole.any():
            return
        self.check_unit(log)
        correct = self.find_correct(log, is_whole)
        table = replace(log.responses, prompt=log.strata, correct=correct)
        for step in np.unique(log.batch[is_whole]).tolist():
            self.last = step
            rows = (log.batch == step) & (table.round == 0)
            key = checksum(log, np.flatnonzero(rows))
            # TRL logs its buffer of completions again while it trains on it
            if log.format == "trl" and key == self.key:
                self.note("rows of steps that repeat the step before are counted once")
                continue
            self.key = key
            age = log.columns["age"][rows] if "age" in log.columns else None
            number = int(log.step[rows][0])
            yield StepRows(number, table.take(rows), "truncated" in log.known, age, list_open_questions(log))

    def find_correct(self, log: Log, is_whole: Bools) -> Bools:
        """Return which responses are correct, [R]: by verdict, else by half of the range of all rewards so far."""
        if "correct" in log.known:
            return log.correct
        table = log.responses
        new = Counter(f"{reward:.3g}" for reward in table.outcome[table.active & is_whole].tolist())
        self.rewards = new + Counter(self.rewards)
        # some 100,000 represent all of them, the rare ones too
        divisor = 1 + self.rewards.total() // 10**5
        numbers = [-(-number // divisor) for number in self.rewards.values()]
        bar = halfway(np.repeat([*map(float, self.rewards)], numbers))
        self.note(f"correct is a reward above about {bar:.1g}, half of their range so far")
        return table.outcome > bar

    # Another run in the same files.

    def begin_run(self) -> NewRun:
        """Forget the steps of the run that ended, and begin where the new one does."""
        reasons = [reason for _, reason in self._cuts.values()]
        for file in self._seen:
            name = str(file)
            counted = self.files.pop(name, None)
            if not self.grows(file):
                self._settled.pop(file, None)
                if file not in self._cuts and counted is not None:
                    self.earlier[name] = identify(file, self._seen[file][0])
                continue
            place = counted.place if counted else 0
            if file in self._cuts:
                place = self._cuts[file][0]
            self.starts[name] = place
            self.files[name] = CountedPart(place, identify(file, place) if place else [])
        self._cuts = {}
        self.last, self.key, self.unit, self.rewards = -1, 0, "", {}
        return NewRun(reasons[0])

    def list_run(self) -> tuple[list[tuple[Path, str]], dict[Path, Span]]:
        """Return the files of this run, as `read_places` takes them, and the parts of those that an earlier run began."""
        places, spans = [], {}
        for file, name in self.list_files().items():
            if str(file) in self.earlier:
                continue
            places.append((file, name))
            start = self.starts.get(str(file), 0)
            if start:
                spans[file] = (start, file.stat().st_size)
        return places, spans

    # What a user is told.

    def note(self, *sentences: str) -> None:
        """Note sentences once, without numbers of rows at their ends, which change with every look."""
        for sentence in sentences:
            text = re.sub(r": [\d,]+$", "", sentence)
            if text not in self.notes:
                self.notes.append(text)

    def skip(self, reason: str, rows: int = 0) -> None:
        """Count rows that are not counted, so that the watch cannot end as an all-clear."""
        self.skipped[reason] = self.skipped.get(reason, 0) + rows


def list_open_questions(log: Log) -> str:
    """Return what has to be answered before an effect can be tested, with the flags; empty if nothing is open."""
    open_questions = [log.question, log.obstacle, *map(str, log.questions)]
    return "; ".join(filter(None, open_questions))


def read_times(folders: Iterable[str]) -> dict[str, int]:
    """Return the time of the last change of each folder in nanoseconds; 0 for one that has disappeared."""
    times = {}
    for folder in folders:
        try:
            times[folder] = os.stat(folder).st_mtime_ns
        except OSError:
            times[folder] = 0
    return times


def stat(file: Path) -> Signature | None:
    """Return a file's signature; None if it has disappeared."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


def find_rows(source: Source) -> dict[str, Ints]:
    """Return the rows of each file of a source in the order of its lines, [N]; files without rows are omitted."""
    rows_of = {}
    for place, name in enumerate(source.files):
        rows = np.flatnonzero(source.log.file == place)
        if len(rows):
            rows_of[name] = rows[np.argsort(source.log.line[rows], kind="stable")]
    return rows_of


def find_held(log: Log, parts: Sequence[Unread], rows_of: Mapping[str, Ints]) -> float:
    """Return the first step that may not be complete."""
    held = log.batch.max()
    for part in parts:
        if not part.is_end:
            held = min(held, log.batch[rows_of[str(part.file)]].max())
    return held


def checksum(log: Log, rows: Ints) -> int:
    """Return a checksum of the prompts, lengths and outcomes of some responses."""
    table = log.responses
    columns = (log.problem[rows], table.length[rows], table.outcome[rows])
    return crc32(np.column_stack(columns).tobytes())


def find_changed_step(counted: CountedPart, log: Log, rows: Ints) -> int | None:
    """Return a counted step whose rows in a table are no longer those that were counted; None if all are."""
    for step, (number, before) in counted.steps.items():
        own = rows[log.batch[rows] == int(step)][:number]
        if len(own) < number or checksum(log, own) != before:
            return int(step)
    return None
