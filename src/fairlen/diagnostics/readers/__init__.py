"""Reads rollouts that others wrote: one log for each format and folder, of all steps."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fairlen.diagnostics.log import Log
from fairlen.diagnostics.readers import fairlen_records
from fairlen.diagnostics.readers.formats import Format, by_name, check_given
from fairlen.diagnostics.readers.frameworks import FRAMEWORKS
from fairlen.diagnostics.readers.rows import Found, Meter, Options, Rows, join, make_log, make_meter, read_rows
from fairlen.files.formats import DAMAGED, Chunk, Unreadable, columns_of, describe, natural, stream
from fairlen.files.limits import name_special

MAX_LOOKS = 100
"""Lines without an object after which a file is not looked at further."""
MAX_SNIFFED = 10
"""Rows whose names are taken."""
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

    @property
    def title(self) -> str:
        return self.format.title


@dataclass(frozen=True)
class Reading:
    """All that was found."""

    sources: tuple[Source, ...]
    unreadable: tuple[str, ...]
    """One sentence a file, with what to do."""
    skipped: tuple[str, ...]
    """Files in folders that hold no rollouts, with the reason."""


def read(paths: list[str], options: Options = DEFAULTS) -> Reading:
    """Read every file. Raises ValueError for options that cannot be, Unreadable for paths where nothing is."""
    meter = make_meter(options.unit, options.tokenizer)
    formats = (fairlen_records.FORMAT, *(() if options.columns else FRAMEWORKS), by_name(options.columns))
    unreadable: list[str] = []
    skipped: list[str] = []
    grouped: dict[tuple[str, str], tuple[Format, list[Path]]] = {}
    for path, named in find_files(paths):
        try:
            format = sniff(path, formats, options.columns)
        except NoRollouts as error:
            (unreadable if named else skipped).append(str(error) if named else str(error).split(" among ")[0])
        except Unreadable as error:
            (unreadable if named or path.suffix in (".parquet", ".jsonl") else skipped).append(str(error))
        else:
            key = (format.name, re.sub(r"step_\d+", "step_*", str(path.parent)))
            grouped.setdefault(key, (format, []))[1].append(path)
    found = [read_source(f, folder, files, meter, options, unreadable) for (_, folder), (f, files) in grouped.items()]
    return Reading(tuple(source for source in found if source is not None), tuple(unreadable), tuple(skipped))


def find_files(paths: list[str]) -> list[tuple[Path, bool]]:
    """Return the files of the paths, and whether each was named itself; folders are searched, patterns expanded.

    Raises Unreadable for a path where nothing is, or a pipe.
    """
    found: dict[Path, bool] = {}
    for text in paths:
        if not text:
            raise Unreadable("an empty path: name a file, a folder or a pattern ('.' is the folder that you are in)")
        matches = [text] if Path(text).exists() else sorted(glob.glob(text, recursive=True))
        if not matches:
            raise Unreadable(f"{text}: there is no such file or folder, and no file matches it as a pattern")
        inside = [(path, Path(match)) for match in matches for path in files_of(Path(match))]
        if not inside:
            raise Unreadable(f"{Path(matches[0]).resolve()}: no file in this folder: name one with rollouts")
        for path, match in inside:
            if special := name_special(path):
                raise Unreadable(f"{path}: {special}")
            found[path] = path == match or found.get(path, False)
    return list(found.items())


def files_of(path: Path) -> list[Path]:
    """Return a file, or all files within a folder but hidden ones; of a run of fairlen's its records alone."""
    if not path.is_dir():
        return [path]
    found = (one for one in path.rglob("[!.]*") if one.is_file() and not is_run(one.parent))
    return sorted(found, key=lambda one: natural(str(one)))


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run of fairlen's, whose own files are no rollouts."""
    return (folder / "run.json").is_file() and (folder / "records").is_dir()


def sniff(path: Path, formats: tuple[Format, ...], given: dict[str, str]) -> Format:
    """Return the format of a file, by the names of its columns and not by its own.

    Raises Unreadable for a file that --columns does not fit, NoRollouts for one with other things in it.
    """
    problems: list[str] = []

    def note(line: int, why: str) -> None:
        problems.append(f"no object in its first lines: line {line}: {why}")
        if len(problems) == MAX_LOOKS:  # whatever the rest of it is, it is not read
            raise NoRollouts(f"{path}: {problems[0]}")

    try:
        columns = set(columns_of(path, note, MAX_SNIFFED))
    except Unreadable:
        if problems:
            raise NoRollouts(f"{path}: {problems[0]}") from None
        raise
    if given and (wrong := check_given(given, columns)):
        raise NoRollouts(f"{path}: {wrong}")
    if format := next((one for one in formats if one.fits(columns)), None):
        return format
    names = ", ".join(sorted(columns)[:12])
    raise NoRollouts(
        f"{path}: no column of responses and rewards among {names}: name them: --columns response=NAME,reward=NAME"
    )


def read_source(
    format: Format, folder: str, files: list[Path], meter: Meter, options: Options, unreadable: list[str]
) -> Source | None:
    """Return the log of files of one format and folder; None where no row could be read."""
    found = Found(files={str(path): number for number, path in enumerate(files)})
    if format is fairlen_records.FORMAT:
        if options.unit not in (None, "tokens") or options.tokenizer:
            found.note("lengths are the recorded tokens, whatever --unit and --tokenizer say")
        log = read_own(files, unreadable)
    else:
        log = read_foreign(format, files, meter, found, options, unreadable)
    return Source(format, folder, tuple(map(str, files)), log, found.sentences()) if log else None


def read_own(files: list[Path], unreadable: list[str]) -> Log | None:
    """Return the log of fairlen's own records."""
    try:
        records, left_out = fairlen_records.read_records(files)
    except (ValueError, TypeError, IndexError) as error:
        unreadable.append(f"{name_files(files)}: tables that contradict each other: {describe(error)}; {DAMAGED}")
        return None
    unreadable += left_out
    return records.log if records else None


def read_foreign(
    format: Format, files: list[Path], meter: Meter, found: Found, options: Options, unreadable: list[str]
) -> Log | None:
    """Return the log of files of another program; None, and a sentence, where there is no row."""
    parts: list[Rows] = []
    whole: list[str] = []
    for path in files:
        try:
            for chunk in stream(path, partial(found.reject, str(path)), counts=True):
                parts += read_chunk(format, chunk, meter, found)
            whole.append(str(path))
        except Unreadable as error:
            unreadable.append(str(error))
    if any(len(part) for part, _ in parts):
        return make_log(format.name, format.finish(join(parts), found), meter, found, options, len(files))
    if whole:
        reasons = "; ".join([f"{m.file}:{m.line}: {m.reason}" for m in found.malformed if m.file in whole][:3])
        reasons = reasons or "there are no rows"
        unreadable.append(f"{name_files(whole)}: {format.title}, but not one row could be read: {reasons}")
    return None


def read_chunk(format: Format, chunk: Chunk, meter: Meter, found: Found) -> list[Rows]:
    """Return a chunk's rows; where one has a shape that nobody writes, row by row, and rows that have it are rejected."""
    rejected, notes = len(found.malformed), found.notes.copy()
    try:
        return [read_rows(format.read(chunk, found), meter, found)]
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
