"""Reads rollouts that others wrote: one log for each argument, format, folder and choice of columns, of all steps."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from fairlen.audit.log import Log
from fairlen.audit.readers import fairlen_records
from fairlen.audit.readers.columns import check_given, choose_all, read_texts
from fairlen.audit.readers.formats import Format, by_name, describe_missing
from fairlen.audit.readers.frameworks import FRAMEWORKS, TRL
from fairlen.audit.readers.nemo import NEMO_RL
from fairlen.audit.readers.rows import Found, Meter, Options, Part, join, make_log, make_meter, read_rows
from fairlen.console import plural
from fairlen.files.databases import RUN
from fairlen.files.formats import DAMAGED, Chunk, Unreadable, columns_of, describe, natural, stream
from fairlen.files.limits import name_special

MAX_LOOKS = 100
"""Lines without an object after which a file is not looked at further."""
MAX_SNIFFED = 10
"""Rows whose names are taken."""
MAX_LOOKED_INTO, MAX_FILES = 2048, 4
"""Rows, and files of a source, by which it is chosen what columns hold."""
BY_STEP = re.compile(r"((completions_)?|(train|val)_data_step)\d+\.(jsonl|parquet)")
"""Names of files that TRL, verl and NeMo-RL write, one a step: all that are given of a folder are one log."""
GUESSED = "--columns: not in these files, so that columns were chosen by their names"
DEFAULTS = Options()


class NoRollouts(Unreadable):
    """A file that can be read but holds no rollouts."""


@dataclass(frozen=True)
class Source:
    """What came out of some files of one format and folder."""

    format: Format
    folder: str
    files: tuple[str, ...]
    log: Log
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Reading:
    """All that was found."""

    sources: tuple[Source, ...]
    unreadable: tuple[str, ...]
    """One sentence a file, with what to do."""
    skipped: tuple[str, ...]
    """Files in folders that hold no rollouts, with the reason."""

    @property
    def not_rollouts(self) -> tuple[str, ...]:
        """Return why files were skipped; one sentence about all where rollouts were found in others."""
        if not (self.sources and self.skipped):
            return self.skipped
        number = len(self.skipped)
        return (f"{number} other {plural('file', number)} without rollouts; name one to read why",)


def read(paths: list[str], options: Options = DEFAULTS) -> Reading:
    """Read every file. Raises ValueError for options that cannot be, Unreadable for paths where nothing is."""
    meter = make_meter(options.unit, options.tokenizer)
    places = find_files(paths)
    kinds = sniff_all([path for path, _ in places], options.columns)
    grouped: dict[tuple[str, ...], tuple[Format, list[Path]]] = {}
    named = {path for path, argument in places if path == Path(argument)}
    problems = [(path, kind) for path, kind in kinds.items() if isinstance(kind, Unreadable)]
    for path, argument in places:
        kind, folder = kinds[path], re.sub(r"step_\d+", "step_*", str(path.parent))
        if isinstance(kind, Format):
            numbered = kind.name != "generic" and BY_STEP.fullmatch(Path(argument).name)
            place = "" if numbered or kind is fairlen_records.FORMAT else argument
            folder, place = ("", "") if options.pool else (folder, place)
            key = (kind.name, folder, place, *kind.notes, *sorted(kind.columns))
            grouped.setdefault(key, (kind, []))[1].append(path)
    sources: list[Source] = []
    for key, (kind, files) in grouped.items():
        folder = key[1] or os.path.commonpath([path.parent for path in files])
        source, left_out = read_source(kind, folder, files, meter, options)
        if source and files[0] not in named:
            source, left_out = replace(source, notes=(*source.notes, *left_out)), []
        sources += [source] if source else []
        problems += [(files[0], Unreadable(text)) for text in left_out]
    told: dict[bool, list[str]] = {True: [], False: []}
    for path, why in problems:
        told[path in named or not (sources or isinstance(why, NoRollouts))].append(str(why))
    return Reading(tuple(sources), tuple(told[True]), tuple(text.split(" among ")[0] for text in told[False]))


def find_files(paths: list[str]) -> list[tuple[Path, str]]:
    """Return the files of the paths, each with the path it came by; folders are searched, patterns expanded.

    Raises Unreadable for a path where nothing is, or a pipe.
    """
    found: dict[Path, str] = {}
    for text in paths:
        if not text:
            raise Unreadable("an empty path: name a file, a folder or a pattern ('.' is the folder that you are in)")
        matches = [text] if Path(text).exists() else sorted(glob.glob(text, recursive=True))
        if not matches:
            raise Unreadable(f"{text}: there is no such file or folder, and no file matches it as a pattern")
        inside = [path for match in matches for path in files_of(Path(match))]
        if not inside:
            raise Unreadable(f"{Path(matches[0]).resolve()}: no file in this folder: name one with rollouts")
        for path in inside:
            if special := name_special(path):
                raise Unreadable(f"{path}: {special}")
            found[path] = text if path == Path(text) else found.get(path, text)
    return list(found.items())


def files_of(path: Path) -> list[Path]:
    """Return a file, the records of a run, or all in a folder but hidden ones and what runs and data sets have besides."""
    if not path.is_dir():
        return [path]
    path = path / "records" if is_run(path) else path
    found = (one for one in path.rglob("[!.]*") if one.is_file() and not is_run(one.parent) and not describes_rows(one))
    return sorted(found, key=lambda one: natural(str(one)))


def describes_rows(path: Path) -> bool:
    """Return whether a file is what `datasets` writes beside the rows of a data set."""
    beside = {"dataset_dict.json": "*/state.json", "state.json": "data-*.arrow", "dataset_info.json": "data-*.arrow"}
    return path.name in beside and any(path.parent.glob(beside[path.name]))


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run of fairlen's, whose own files are no rollouts."""
    return (folder / "run.json").is_file() and (folder / "records").is_dir()


def sniff_all(paths: Sequence[Path], given: dict[str, str]) -> dict[Path, Format | Unreadable]:
    """Return the format of each file, or what is wrong with it; one without the columns that others were given for is guessed."""
    kinds: dict[Path, Format | Unreadable] = {}
    for path in paths:
        try:
            kinds[path] = sniff(path, given)
        except Unreadable as error:
            kinds[path] = error
    if given and any(isinstance(kind, Format) for kind in kinds.values()):
        again = sniff_all([path for path, kind in kinds.items() if isinstance(kind, NoRollouts)], {})
        found = {path: kind for path, kind in again.items() if isinstance(kind, Format)}
        kinds |= {path: replace(kind, notes=(*kind.notes, GUESSED)) for path, kind in found.items()}
    return kinds


def sniff(path: Path, given: dict[str, str]) -> Format:
    """Return the format of a file, by the names of its columns and not by its own.

    Raises Unreadable for a file that cannot be read, NoRollouts for one that `given` does not fit or with other things in it.
    """
    problems: list[str] = []

    def note(line: int, why: str) -> None:
        problems.append(f"no object in its first lines: line {line}: {why}")
        if len(problems) == MAX_LOOKS:  # whatever the rest of it is, it is not read
            raise NoRollouts(f"{path}: {problems[0]}")

    try:
        columns = set(columns_of(path, note, MAX_SNIFFED))
        formats = () if given else (fairlen_records.FORMAT, *FRAMEWORKS)
        if format := next((one for one in formats if one.fits(columns)), None):
            is_told = format in (TRL, NEMO_RL)  # other reward functions, or validation
            return replace(format, columns=frozenset(columns)) if is_told else format
        head = next(stream(path, note, size=MAX_SNIFFED), Chunk(str(path), [], {}))
    except Unreadable:
        if problems:
            raise NoRollouts(f"{path}: {problems[0]}") from None
        raise
    if given and (wrong := check_given(given, columns)):
        raise NoRollouts(f"{path}: {wrong}")
    roles = choose_all(head, given)
    free = set(head.columns) - set(roles.values())
    is_likely = "prompt" in roles and any(read_texts(name, head.get(name)) for name in free)
    if (format := by_name(roles)).fits(set(roles) | ({"response"} if is_likely else set())):
        return format
    raise NoRollouts(f"{path}: {describe_missing(roles, columns)}")


def look_into(format: Format, files: Sequence[Path]) -> Chunk:
    """Return the first rows of some of the files. Raises Unreadable where none of those can be read."""
    chosen = [files[len(files) * place // MAX_FILES] for place in range(MAX_FILES)] if len(files) > MAX_FILES else files
    heads: list[Chunk] = []
    problems: list[Unreadable] = []
    for path in chosen:
        try:
            size = MAX_LOOKED_INTO // len(chosen)
            heads += islice(stream(path, lambda line, why: None, counts=True, lists=format.lists, size=size), 1)
        except Unreadable as error:
            problems.append(error)
    if problems and not heads:
        raise problems[0]
    names = dict.fromkeys(name for head in heads for name in head.columns)
    columns = {name: [cell for head in heads for cell in head.get(name)] for name in names}
    return Chunk(str(chosen[0]), range(1, 1 + sum(map(len, heads))), columns)


def read_source(
    format: Format, folder: str, files: list[Path], meter: Meter, options: Options
) -> tuple[Source | None, list[str]]:
    """Return the log of files of one format and folder, None where no row could be read; and what was left out."""
    found = Found(notes=Counter(dict.fromkeys(format.notes, 0)), files={str(one): n for n, one in enumerate(files)})
    if format is fairlen_records.FORMAT:
        if options.unit not in (None, "tokens") or options.tokenizer:
            found.note("lengths are the recorded tokens, whatever --unit and --tokenizer say")
        try:
            records, left_out = fairlen_records.read_records(files)
            log = records.log if records else None
        except (ValueError, TypeError, IndexError) as error:
            log, why = None, f"tables that contradict each other: {describe(error)}; {DAMAGED}"
            left_out = [f"{name_files(files)}: {why}"]
    else:
        options = replace(options, columns={}) if GUESSED in format.notes else options
        try:
            head = look_into(format, files)
        except Unreadable as error:
            return None, [str(error)]
        try:
            format = format.settle(format, head, options)
            found.notes = Counter(dict.fromkeys(format.notes, 0))
            log, left_out = read_foreign(format, files, meter, found, options)
        except Unreadable as error:
            log, left_out = None, [f"{name_files(files)}: {error}"]
    return Source(format, folder, tuple(found.files), log, found.sentences()) if log else None, list(left_out)


def read_foreign(
    format: Format, files: list[Path], meter: Meter, found: Found, options: Options
) -> tuple[Log | None, list[str]]:
    """Return the log of files of another program; None, and why, where no row has a reward or a verdict."""
    parts: list[Part] = []
    whole: list[str] = []
    left_out: list[str] = []
    for path in files:
        try:
            for chunk in stream(path, partial(found.reject, str(path)), counts=True, lists=format.lists):
                parts += read_chunk(format, chunk, meter, found)
            whole.append(str(path))
        except Unreadable as error:
            left_out.append(str(error))
    if not all(part.dropped.all() for part in parts):
        return make_log(format.name, format.finish(join(parts), found), meter, found, options, len(files)), left_out
    if whole:
        lost = [f"{m.file}:{m.line}: {m.reason}" for m in found.malformed if m.file in whole]
        lost += [f"{files[part.file[0]]}:{part.line[0]}: no reward" for part in parts if len(part)]
        reasons = "; ".join(lost[:3]) or "there are no rows"
        left_out.append(f"{name_files(whole)}: {format.title}, but not one row could be read: {reasons}")
    return None, left_out


def read_chunk(format: Format, chunk: Chunk, meter: Meter, found: Found) -> list[Part]:
    """Return a chunk's rows; where one has a shape that nobody writes, row by row, and rows that have it are rejected."""
    rejected, notes = len(found.malformed), found.notes.copy()
    try:
        read = format.read(chunk, found)
        if RUN in chunk.columns and len(read) == len(chunk):
            read.columns["prompt"] = [list(pair) for pair in zip(chunk.get(RUN), read.get("prompt"), strict=True)]
            found.notes["responses of different runs are not compared with each other"] = 0
        return [read_rows(read, meter, found)]
    except (TypeError, AttributeError, KeyError, IndexError, ValueError, OverflowError, RecursionError) as error:
        del found.malformed[rejected:]
        found.notes = notes
        if len(chunk) == 1:
            found.reject(chunk.file, chunk.lines[0], f"not as {format.title} are written: {describe(error)}")
            return []
    rows = ({name: [values[row]] for name, values in chunk.columns.items()} for row in range(len(chunk)))
    single = [Chunk(chunk.file, [line], row) for line, row in zip(chunk.lines, rows, strict=True)]
    return [part for one in single for part in read_chunk(format, one, meter, found)]


def name_files(files: Sequence[Path | str]) -> str:
    """Return the first of some files, and how many more there are."""
    return str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
