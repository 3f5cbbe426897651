"""Reads rollouts that others wrote: one log for each argument, format, folder and choice of columns, of all steps."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from multiprocessing import get_context
from operator import attrgetter
from pathlib import Path

import numpy as np

from fairlen.audit.log import Log
from fairlen.audit.readers import fairlen_records
from fairlen.audit.readers.assignment import assign_columns
from fairlen.audit.readers.columns import ROLES, check_given, choose_all, names_in, read_texts
from fairlen.audit.readers.context import collect_context, used_columns
from fairlen.audit.readers.formats import Format, by_name, describe_missing
from fairlen.audit.readers.frameworks import FRAMEWORKS, NEMO_RL, TRL
from fairlen.audit.readers.grouped_log import make_grouped_log
from fairlen.audit.readers.places import find_numbers, find_step
from fairlen.audit.readers.programs import PROGRAMS
from fairlen.audit.readers.rows import Found, Options, Part, join, read_rows
from fairlen.audit.readers.spent import Meter, make_meter
from fairlen.audit.readers.survey import survey_rows
from fairlen.console import plural
from fairlen.files import formats
from fairlen.files.limits import name_special
from fairlen.files.opened import MAX_SNIFFED, Opened, OtherContent, join_chunks

MAX_OPEN = 64  # files that stay open between being recognised and read; more are opened again
LARGE = 64 * 2**20  # bytes of a log, or of one of its files, below which one process is as fast
MAX_LOOKED_INTO, MAX_FILES = 2048, 4  # rows, and files of a source, by which it is chosen what columns hold
BY_STEP = re.compile(r"((completions_)?|(train|val)_data_step)\d+\.(jsonl|parquet)")
"""Names of files that TRL, verl and NeMo-RL write, one a step: all that are given of a folder are one log."""
NO_RECORDS = "a run without a recorded rollout batch, so that there are no rollouts to audit yet: go on with it by"
DESCRIBES_RESPONSE = frozenset(
    name for role in ("reward", "correct", "tokens", "turns", "finish", "advantage") for name in ROLES[role]
)
"""Names of columns that describe a response, so that they never form groups."""
DEFAULTS = Options()


@dataclass(frozen=True)
class Source:
    format: Format
    folder: str
    files: tuple[str, ...]
    log: Log
    notes: tuple[str, ...]
    has_steps: bool = True  # whether the files say in which step a response was generated
    faults: tuple[str, ...] = ()  # why files, or the ends of files, could not be read

    @property
    def title(self) -> str:
        return f"{self.files[0] if len(self.files) == 1 else self.folder}, {self.format.title}"


@dataclass(frozen=True)
class LogReading:
    sources: tuple[Source, ...]
    unreadable: tuple[str, ...]  # one sentence a file, with what to do
    skipped: tuple[str, ...]  # files in folders that hold no rollouts, with the reason
    lost: tuple[tuple[Path, str], ...] = ()  # files that are damaged or exceed a limit, with the reason

    @property
    def not_rollouts(self) -> tuple[str, ...]:
        """Return why files were skipped; one sentence about all where rollouts were found in others."""
        if not (self.sources and self.skipped):
            return self.skipped
        number = len(self.skipped)
        return (f"{number} other {plural('file', number)} without rollouts; name one to read why",)


def read(paths: list[str], options: Options = DEFAULTS) -> LogReading:
    """Read every file. Raises ValueError for options that cannot be, Unreadable for paths where nothing is."""
    meter = make_meter(options.unit, options.tokenizer)
    return read_places(find_files(paths), options, meter, {})


def read_places(
    places: Sequence[tuple[Path, str]], options: Options, meter: Meter, spans: Mapping[Path, formats.Span]
) -> LogReading:
    """Read files, or parts of them.

    Args:
        places: Files, each with the path, folder or pattern that names it, as `find_files` returns them.
        options: How to read.
        meter: Measures texts, made by `make_meter` from the options.
        spans: The part to read of some files of JSON lines; their lines are numbered from 1.
    """
    lists = lists_in(options.columns)
    opened = {path: Opened(path, lists, spans.get(path)) for path, _ in places}
    kinds = sniff_all(list(opened.values()), options.columns)
    named = {path for path, argument in places if path == Path(argument)}
    problems = [(path, kind) for path, kind in kinds.items() if isinstance(kind, formats.Unreadable)]
    rollouts = [(path, argument, kind) for path, argument in places if isinstance(kind := kinds[path], Format)]
    grouped = group_files(rollouts, opened, options.pool)
    sources: list[Source] = []
    for key, (kind, files) in grouped.items():
        folder = key[1] or os.path.commonpath([one.path.parent for one in files])
        source, left_out = read_source(kind, folder, files, meter, options)
        if source:
            source = replace(source, faults=tuple(left_out))
        if source and files[0].path not in named:
            source, left_out = replace(source, notes=(*source.notes, *left_out)), []
        sources += [source] if source else []
        problems += [(files[0].path, formats.Unreadable(text)) for text in left_out]
    told: dict[bool, list[str]] = {True: [], False: []}
    for path, why in problems:
        told[path in named or not (sources or isinstance(why, OtherContent))].append(str(why))
    lost = tuple((path, str(why)) for path, why in problems if isinstance(why, formats.Lost))
    return LogReading(tuple(sources), tuple(told[True]), tuple(told[False]), lost)


Key = tuple[str, ...]
"""What the files of one log share: the name of their format, their folder, the argument that they came by, columns."""


def group_files(
    rollouts: Sequence[tuple[Path, str, Format]], opened: dict[Path, Opened], pool: bool
) -> dict[Key, tuple[Format, list[Opened]]]:
    """Return the files of each log: of one format, argument and columns, in one folder or in folders that differ by a number."""
    shapes = find_numbers({path.parent for path, _, kind in rollouts if kind is not fairlen_records.FORMAT})
    grouped: dict[Key, tuple[Format, list[Opened]]] = {}
    for path, argument, kind in rollouts:
        folder, place = str(path.parent), argument
        if kind is fairlen_records.FORMAT or (kind.name != "generic" and BY_STEP.fullmatch(Path(argument).name)):
            place = ""
        if kind is not fairlen_records.FORMAT:
            folder = shapes[path.parent][0] if path.parent in shapes else folder
            folder, place = ("", "") if pool else (folder, place)
        key = (kind.name, folder, place, *sorted(kind.columns))
        grouped.setdefault(key, (kind, []))[1].append(opened[path])
    return grouped


def number_files(files: Sequence[Path]) -> dict[str, int]:
    """Return the number in the path of each file, if its folder, or else its name, differs from the others' in one number."""
    folders = find_numbers({path.parent for path in files})
    names = find_numbers(files)
    numbers = [folders.get(path.parent) or names.get(path) for path in files]
    steps = {str(path): found[1] for path, found in zip(files, numbers, strict=True) if found}
    if not steps and len({path.parent for path in files}) == 1 and (step := find_step(files[0])) is not None:
        return {str(path): step for path in files}
    return steps


def find_files(paths: list[str]) -> list[tuple[Path, str]]:
    """Return files, each with the path, folder or pattern that it came by. Raises Unreadable where nothing is, and for a pipe."""
    found: dict[Path, str] = {}
    for text in paths:
        if not text:
            raise formats.Unreadable("an empty path: name a file, a folder or a pattern ('.' is the one you are in)")
        matches = [text] if Path(text).exists() else sorted(glob.glob(text, recursive=True))
        if not matches:
            raise formats.Unreadable(f"{text}: there is no such file or folder, and no file matches it as a pattern")
        for match in matches:
            if special := name_special(Path(match)):
                raise formats.Unreadable(f"{match}: {special}")
        inside = [path for match in matches for path in files_of(Path(match))]
        if stopped := next((match for match in map(Path, matches) if has_no_records(match)), None):
            raise formats.Unreadable(f"{stopped}: {NO_RECORDS} `fairlen train --resume --out {stopped}`")
        if not inside:
            raise formats.Unreadable(f"{Path(matches[0]).resolve()}: no file in this folder: name one with rollouts")
        named = Path(text)
        for path in inside:
            found[path] = text if path == named else found.get(path, text)
    return list(found.items())


def files_of(path: Path) -> list[Path]:
    """Return a file, the records of a run, or the files in a folder.

    Hidden files are omitted, and the files of runs and data sets that describe their rows.
    """
    if not path.is_dir():
        return [path]
    root = path / "records" if is_run(path) else path
    names: list[str] = []
    for folder, folders, _ in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if is_run(Path(folder)):
            continue
        with os.scandir(folder) as entries:
            shown = [entry for entry in entries if not entry.name.startswith(".")]
        regular = [entry.path for entry in shown if entry.is_file()]
        names += [name for name in regular if not describes_rows(name)]
    return [Path(name) for name in sorted(names, key=formats.natural)]


def has_no_records(folder: Path) -> bool:
    records = folder / "records"
    is_train = (folder / "run.json").is_file() and (folder / "metrics.jsonl").exists()
    return is_train and not any(records.glob("*.parquet"))


def describes_rows(name: str) -> bool:
    """Return whether a file is one that `datasets` writes next to the rows of a data set."""
    folder, _, last = name.rpartition("/")
    neighbours = {
        "dataset_dict.json": "*/state.json",
        "state.json": "data-*.arrow",
        "dataset_info.json": "data-*.arrow",
    }
    return last in neighbours and any(Path(folder or ".").glob(neighbours[last]))


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run of fairlen's, whose own files are no rollouts."""
    return (folder / "run.json").is_file() and (folder / "records").is_dir()


def lists_in(given: dict[str, str]) -> frozenset[str]:
    """Return the columns of a table whose lists of numbers may be read in a role, as masks and rewards; of ids the number is."""
    named = {*chain.from_iterable(ROLES.values()), *chain.from_iterable(map(names_in, given.values()))}
    return frozenset(name for name in named if not name.endswith("ids"))


def sniff_all(files: Sequence[Opened], given: dict[str, str]) -> dict[Path, Format | formats.Unreadable]:
    """Return the format of each file, or what is wrong with it."""
    kinds: dict[Path, Format | formats.Unreadable] = {}
    for place, file in enumerate(files):
        try:
            kind = sniff(file, given)
        except formats.Unreadable as error:
            kind = error
        kinds[file.path] = kind
        if place >= MAX_OPEN or kind is fairlen_records.FORMAT or isinstance(kind, formats.Unreadable):
            file.close()
    return kinds


def sniff(file: Opened, given: dict[str, str]) -> Format:
    """Return the format of a file, by the names of its columns and not by its own.

    Raises Unreadable for a file that cannot be read, OtherContent for one that `given` does not fit or with other things in it.
    """
    path = file.path
    try:
        head = file.look(MAX_SNIFFED)
    except formats.Unreadable:
        if not file.rejected:
            raise
        head = formats.Chunk(str(path), [], {})
    if not len(head) and file.rejected:
        raise OtherContent(f"{path}: {file.no_object}")
    columns = set(head.columns or formats.columns_of(path, lambda line, why: None))
    known = () if given else (fairlen_records.FORMAT, *FRAMEWORKS, *PROGRAMS)
    if format := next((one for one in known if one.fits(columns)), None):
        is_told = format in (TRL, NEMO_RL)  # other reward functions, or validation
        return replace(format, columns=frozenset(columns)) if is_told else format
    if not len(head):
        raise OtherContent(f"{path}: {formats.EMPTY}")
    if given and (wrong := check_given(given, columns)):
        raise OtherContent(f"{path}: {wrong}")
    roles = choose_all(head, given)
    free = set(head.columns) - set(roles.values())
    is_likely = "prompt" in roles and any(read_texts(name, head.get(name)) for name in free)
    if (format := by_name(roles)).fits(set(roles) | ({"response"} if is_likely else set())):
        return format
    if not given and (assigned := assign_columns(file.look(MAX_LOOKED_INTO), roles)):
        return by_name(assigned, assigned=assigned)
    raise OtherContent(f"{path}: {describe_missing(roles, file.look(MAX_LOOKED_INTO), given)}")


def look_into(files: Sequence[Opened]) -> formats.Chunk:
    """Return the first rows of some of the files. Raises Unreadable where none of those can be read."""
    chosen = [files[len(files) * place // MAX_FILES] for place in range(MAX_FILES)] if len(files) > MAX_FILES else files
    heads: list[formats.Chunk] = []
    problems: list[formats.Unreadable] = []
    for file in chosen:
        try:
            heads.append(file.look(MAX_LOOKED_INTO // len(chosen)))
        except formats.Unreadable as error:
            problems.append(error)
    if problems and not heads:
        raise problems[0]
    head = join_chunks(heads)
    return formats.Chunk(str(chosen[0].path), range(1, 1 + len(head)), head.columns)


def read_source(
    format: Format, folder: str, opened: list[Opened], meter: Meter, options: Options
) -> tuple[Source | None, list[str]]:
    """Return the log of files of one format and folder, None where no row could be read; and what was left out."""
    files = [one.path for one in opened]
    found = Found(notes=Counter(dict.fromkeys(format.notes, 0)), files={str(one): n for n, one in enumerate(files)})
    if format is fairlen_records.FORMAT:
        if options.unit not in (None, "tokens") or options.tokenizer:
            found.note("lengths are the recorded tokens, whatever --unit and --tokenizer say")
        try:
            log, left_out = fairlen_records.read_records(files)
        except (ValueError, TypeError, IndexError) as error:
            log, why = None, f"tables that contradict each other: {formats.describe(error)}; {formats.DAMAGED}"
            left_out = [f"{name_files(files)}: {why}"]
    else:
        try:
            head = look_into(opened)
        except formats.Unreadable as error:
            return None, [str(error)]
        try:
            format = format.settle(format, head, options)
            found.notes = Counter(dict.fromkeys(format.notes, 0))
            for caveat in format.caveats:
                found.caution(caveat)
            found.chosen["meanings"], found.chosen["reward"] = options.meanings, format.reward
            found.chosen["beside"], found.chosen["counts"] = format.beside, format.counts
            found.chosen["steps"] = number_files(files)
            survey_head(format, head, found)
            log, left_out = read_foreign(format, opened, meter, found, options)
            format = replace(format, remedy=format.remedy | found.lacks, forms=found.forms)
        except formats.Unreadable as error:
            log, left_out = None, [f"{name_files(files)}: {error}"]
    has_steps = found.has_steps or format is fairlen_records.FORMAT
    source = Source(format, folder, tuple(found.files), log, found.sentences(), has_steps) if log else None
    return source, list(left_out)


def survey_head(format: Format, head: formats.Chunk, found: Found) -> None:
    """Decide by the first rows of a log what `rows.read_rows` has to know of all."""
    first = Found(files=dict(found.files), chosen=dict(found.chosen))
    try:
        survey_rows(format.read(head, first), found)
    except (TypeError, AttributeError, KeyError, IndexError, ValueError, OverflowError, RecursionError):
        return  # rows of an unexpected shape are rejected one by one when all are read


def read_foreign(
    format: Format, opened: list[Opened], meter: Meter, found: Found, options: Options
) -> tuple[Log | None, list[str]]:
    """Return the log of files of another program; None, and why, where no row has a reward or a verdict."""
    files = [one.path for one in opened]
    for one in (one for one in opened if options.processes > 1 and is_shared(one)):
        read_chunk(format, one.look(MAX_SNIFFED), meter, Found(chosen=found.chosen))  # decides for all who share it
    rows = read_files(lambda place, turn: read_file(format, opened[place], turn, meter, found), opened, options)
    for one in rows:
        found.add(one.found)
    parts = [part for one in rows for part in one.parts]
    whole = [str(path) for path, one in zip(files, rows, strict=True) if not one.fault]
    left_out = [one.fault for one in rows if one.fault]
    if not all(part.dropped.all() for part in parts):
        return make_grouped_log(format.name, format.finish(join(parts), found), meter, found, options), left_out
    if whole:
        lost = [f"{m.file}:{m.line}: {m.reason}" for m in found.malformed if m.file in whole]
        lost += [
            f"{files[part.file[0]]}:{part.line[0]}: {'an empty or failed response' if part.fault[0] else 'no reward'}"
            for part in parts
            if len(part)
        ]
        reasons = "; ".join(lost[:3]) or "there are no rows"
        left_out.append(f"{name_files(whole)}: {format.title}, but not one row could be read: {reasons}")
    return None, left_out


@dataclass(frozen=True)
class FileRows:
    """What one file holds, until it breaks off."""

    parts: list[Part]
    found: Found
    fault: str


Reading = Callable[[int, formats.Turn], FileRows]  # from the place of a file


def read_files(read: Reading, opened: Sequence[Opened], options: Options) -> list[FileRows]:
    """Return what each file holds; where they are large, forks of this process read them, one a core."""
    sizes = [one.path.stat().st_size if one.path.exists() else 0 for one in opened]
    if options.processes > 1 and sum(sizes) >= LARGE and not options.tokenizer:  # which has threads of its own
        turns = [options.processes if is_shared(one) else 1 for one in opened]
        shares = [(place, (turn, number)) for place, number in enumerate(turns) for turn in range(number)]
        pool = ProcessPoolExecutor(options.processes, get_context("fork"), initializer=_reads.append, initargs=(read,))
        try:
            found = pool.map(read_in_fork, shares)
            return [merge([*islice(found, number)]) for number in turns]
        except BrokenProcessPool:  # the system ended a fork, as where memory runs out: one process needs less
            for one in opened:
                one.close()
        finally:
            pool.shutdown(cancel_futures=True)
    return [read(place, formats.WHOLE) for place in range(len(opened))]


def is_shared(file: Opened) -> bool:
    """Return whether several processes read a file, each the chunks of its turn."""
    return file.path.stat().st_size >= LARGE and formats.container_of(file.path) in ("jsonl", "parquet")


def merge(turns: list[FileRows]) -> FileRows:
    """Return the rows of a file in their order, from all of its turns."""
    if len(turns) == 1:
        return turns[0]
    first, *others = turns
    for one in others:
        first.found.add(one.found)
    first.found.malformed.sort(key=attrgetter("line"))
    if parts := [part for one in turns for part in one.parts]:
        rows = join(parts)
        parts = [rows.take(np.argsort(rows.line, kind="stable"))]
    return FileRows(parts, first.found, next((one.fault for one in turns if one.fault), ""))


def read_in_fork(share: tuple[int, formats.Turn]) -> FileRows:
    return _reads[-1](*share)


_reads: list[Reading] = []  # in a fork, what it does


def read_file(format: Format, file: Opened, turn: formats.Turn, meter: Meter, found: Found) -> FileRows:
    """Return the rows of a file of another program, those of a turn, and what was found in them alone."""
    parts, own = list[Part](), Found(files=found.files, chosen=found.chosen)
    chosen = [
        name for role, name in format.roles.items() if role not in ("reasoning", "age", "scale")
    ]  # may be a setting
    used = used_columns(chosen, DESCRIBES_RESPONSE)
    try:
        for chunk in file.chunks(partial(own.reject, str(file.path)), turn):
            own.context.append(collect_context(chunk, used))
            parts += read_chunk(format, chunk, meter, own)
    except formats.Unreadable as error:
        return FileRows(parts, own, str(error))
    return FileRows(parts, own, "")


def read_chunk(format: Format, chunk: formats.Chunk, meter: Meter, found: Found) -> list[Part]:
    """Return a chunk's rows; where one has an unexpected shape, row by row, and rows that have it are rejected."""
    rejected, notes = len(found.malformed), found.notes.copy()
    try:
        return [read_rows(format.read(chunk, found), meter, found)]
    except (TypeError, AttributeError, KeyError, IndexError, ValueError, OverflowError, RecursionError) as error:
        del found.malformed[rejected:]
        found.notes = notes
        if len(chunk) == 1:
            found.reject(chunk.file, chunk.lines[0], f"not as {format.title} are written: {formats.describe(error)}")
            return []
    rows = ({name: [values[row]] for name, values in chunk.columns.items()} for row in range(len(chunk)))
    single = [formats.Chunk(chunk.file, [line], row) for line, row in zip(chunk.lines, rows, strict=True)]
    return [part for one in single for part in read_chunk(format, one, meter, found)]


def name_files(files: Sequence[Path | str]) -> str:
    return str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
