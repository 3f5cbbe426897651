"""Reads rollouts that others wrote: `read(["folder", "*.jsonl"])` finds files, tells their formats apart and makes logs of them.

One log for each format and folder; folders that differ only in their step belong together. Texts are not kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fairlen.batch import Bools, Floats, Ints, Responses, Segments
from fairlen.diagnostics.log import Log, Unit
from fairlen.diagnostics.readers import fairlen_records, generic
from fairlen.diagnostics.readers.chunk import Chunk, Found, Meter, Part
from fairlen.diagnostics.readers.fairlen_records import find_duplicates, mix
from fairlen.diagnostics.readers.files import find_files
from fairlen.diagnostics.readers.lengths import make_meter
from fairlen.diagnostics.readers.sniff import NoRollouts, sniff
from fairlen.files.formats import DAMAGED, Unreadable, container_of, describe, stream

NEAR_BUDGET = 0.98
"""Share of the budget from which on a text that was tokenised again counts as cut off: its special tokens are lost."""


@dataclass(frozen=True)
class Options:
    """How to read."""

    columns: dict[str, str] = field(default_factory=dict)
    """Role to column, for files of no known format."""
    unit: Unit | None = None
    """None: tokens where the files have them, words elsewhere."""
    tokenizer: str = ""
    """Folder with a tokenizer.json."""
    max_response_length: int = 0
    """Generation budget in tokens; 0 is unknown."""


DEFAULTS = Options()


@dataclass(frozen=True)
class Source:
    """What came out of some files of one format and folder."""

    module: Any
    folder: str
    files: tuple[str, ...]
    log: Log
    notes: tuple[str, ...]

    @property
    def title(self) -> str:
        return self.module.TITLE


@dataclass(frozen=True)
class Reading:
    """All that was found."""

    sources: tuple[Source, ...]
    unreadable: tuple[str, ...]
    """One sentence a file, with what to do."""
    skipped: tuple[str, ...]
    """Files in folders that hold no rollouts, with the reason."""


def read(paths: list[str], options: Options = DEFAULTS) -> Reading:
    """Reads every file. Raises ValueError for options that cannot be, Unreadable for paths where nothing is."""
    meter = make_meter(options.unit, options.tokenizer)
    unreadable: list[str] = []
    skipped: list[str] = []
    grouped: dict[tuple[str, str], tuple[Any, list[tuple[Path, str]]]] = {}
    for path, named in find_files(paths):
        try:
            container = container_of(path)
            module = sniff(path, container, options.columns)
        except NoRollouts as error:
            (unreadable if named else skipped).append(str(error) if named else str(error).split(" among ")[0])
        except Unreadable as error:
            (unreadable if named or path.suffix in (".parquet", ".jsonl") else skipped).append(str(error))
        else:
            key = (module.NAME, re.sub(r"step_\d+", "step_*", str(path.parent)))
            grouped.setdefault(key, (module, []))[1].append((path, container))
    sources = []
    for (_, folder), (module, files) in grouped.items():
        source = read_source(module, folder, files, meter, options, unreadable)
        if source is not None:
            sources.append(source)
    return Reading(tuple(sources), tuple(unreadable), tuple(skipped))


def read_source(
    module: Any, folder: str, files: list[tuple[Path, str]], meter: Meter, options: Options, unreadable: list[str]
) -> Source | None:
    """The log of files of one format and folder; None where no row could be read."""
    found = Found()
    names = tuple(str(path) for path, _ in files)
    try:
        if module is fairlen_records:
            if options.unit not in (None, "tokens") or options.tokenizer:
                found.note("lengths are the recorded tokens, whatever --unit and --tokenizer say")
            records, left_out = fairlen_records.read_records([path for path, _ in files])
            unreadable += left_out
            return Source(module, folder, names, records.log, notes_of(found)) if records else None
    except (ValueError, TypeError, IndexError) as error:
        unreadable.append(f"{name_files(names)}: tables that contradict each other: {describe(error)}; {DAMAGED}")
        return None
    parts: list[Part] = []
    broken: set[str] = set()
    for path, container in files:
        try:
            for chunk in stream(path, container, found.rejecting(path), counts=True):
                parts += read_chunk(module, chunk, meter, found, options)
        except Unreadable as error:
            unreadable.append(str(error))
            broken.add(str(path))
    part = join(parts)
    if not len(part):
        unreadable += explain_nothing(module, tuple(name for name in names if name not in broken), found)
        return None
    part = module.finish(part, found) if hasattr(module, "finish") else part
    return Source(
        module, folder, names, assemble(module.NAME, part, meter, found, options, len(files)), notes_of(found)
    )


def explain_nothing(module: Any, names: tuple[str, ...], found: Found) -> list[str]:
    """Why files that do not break off gave no row; nothing where all do, which is said of each."""
    if not names:
        return []
    reasons = "; ".join([f"{m.file}:{m.line}: {m.reason}" for m in found.malformed if m.file in names][:3])
    return [f"{name_files(names)}: {module.TITLE}, but not one row could be read: {reasons or 'there are no rows'}"]


def read_chunk(module: Any, chunk: Chunk, meter: Meter, found: Found, options: Options) -> list[Part]:
    """A chunk; where something in it has a shape that nobody writes, row by row, and the rows that have it are rejected."""
    before = found.mark()
    more = (options.columns,) if module is generic else ()
    try:
        return [module.read(chunk, meter, found, *more)]
    except (TypeError, AttributeError, KeyError, IndexError, ValueError, OverflowError, RecursionError) as error:
        found.restore(before)
        if len(chunk) == 1:
            found.reject(chunk, 0, f"not as {module.TITLE} are written: {describe(error)}")
            return []
    parts = []
    for row, line in enumerate(chunk.lines):
        one = Chunk(chunk.file, [line], {name: [values[row]] for name, values in chunk.columns.items()})
        parts += read_chunk(module, one, meter, found, options)
    return parts


def name_files(names: tuple[str, ...]) -> str:
    """The first of some files, and how many more there are."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def notes_of(found: Found) -> tuple[str, ...]:
    return tuple(f"{text}: {rows:,}" if rows else text for text, rows in found.notes.items())


def join(parts: list[Part]) -> Part:
    """All rows; a further column that some parts lack is nan there."""
    if not parts:
        none, ints = np.zeros(0), np.zeros(0, np.int64)
        return Part(ints, ints, ints, ints, ints, none, none, none, none, {})
    names = dict.fromkeys(name for part in parts for name in part.extra)
    extra = {n: np.concatenate([p.extra.get(n, np.full(len(p), np.nan)) for p in parts]) for n in names}
    columns = [name for name in vars(parts[0]) if name != "extra"]
    return Part(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in columns}, extra=extra)


def assemble(name: str, part: Part, meter: Meter, found: Found, options: Options, num_files: int) -> Log:
    """A log of rows."""
    size = len(part)
    length, unit = choose_lengths(part, meter, found, options)
    truncated, told = find_truncated(part, length, unit, found, options)
    ungraded = int(np.isnan(part.correct).sum())
    correct, advantage = ungraded == 0, not np.isnan(part.advantage).any()
    if 0 < ungraded < size:
        found.note("rows without a verdict, so that right is an outcome in the upper half of their range", ungraded)
    prompt = number_prompts(part)
    max_response_length = max(options.max_response_length if unit == "tokens" else 0, int(length.max()))
    active, zeros = np.ones(size, np.bool_), np.zeros(size, np.int64)
    responses = Responses(
        prompt,
        length,
        part.outcome,
        np.where(correct, part.correct, 0.0) > 0.5,
        truncated,
        active,
        zeros,
        zeros,
        max_response_length,
    )
    segments = Segments(
        np.arange(size), length, prompt, active, np.ones(size), np.zeros(size, np.bool_), zeros, max_response_length
    )
    columns = part.extra | {"reward": part.outcome}
    if (part.text != 0).any():
        columns["duplicate"] = find_duplicates(prompt, part.text)
    known = {"reward": True, "correct": correct, "truncated": told, "advantage": advantage}
    return Log(
        name, unit, responses, part.step, segments, advantage=part.advantage if advantage else None,
        known=frozenset(word for word, is_known in known.items() if is_known), columns=columns,
        malformed=tuple(found.malformed), num_files=num_files,
    )  # fmt: skip


def choose_lengths(part: Part, meter: Meter, found: Found, options: Options) -> tuple[Ints, Unit]:
    """Tokens where every row has them and nothing else was asked for, else what the meter measured."""
    has = part.tokens > 0
    if has.all() and options.unit in (None, "tokens") and not options.tokenizer:
        return part.tokens, "tokens"
    if options.unit == "tokens" and meter.unit != "tokens":
        raise ValueError("--unit tokens: the files do not hold tokens of every answer; add --tokenizer FOLDER")
    if has.any() and not has.all():
        found.note("rows without a number of tokens, so that all are measured by their text", int((~has).sum()))
    no_text = int((has & (part.text == 0)).sum())
    if no_text and not has.all():
        found.note("rows with tokens but no text count as length 1", no_text)
    if len(part) > 1 and part.measured.max() == 1:
        found.note("every answer is one word: --unit characters or --tokenizer FOLDER tells them apart")
    if meter.unit == "tokens":
        found.note("lengths are tokens of the text; EOS and special tokens that the files lost are not counted")
    return part.measured, meter.unit


def find_truncated(part: Part, length: Ints, unit: Unit, found: Found, options: Options) -> tuple[Bools, bool]:
    """Which answers were cut off, and whether that is known: as the files say, else by the budget."""
    if not np.isnan(part.truncated).any():
        return part.truncated > 0.5, True
    if options.max_response_length and unit == "tokens":
        exact = length is part.tokens
        least = options.max_response_length if exact else NEAR_BUDGET * options.max_response_length
        found.note(f"cut off: answers of at least {least:g} tokens" + ("" if exact else ", an estimate"))
        return length >= least, True
    return np.zeros(len(part), np.bool_), False


def number_prompts(part: Part) -> Ints:
    """Prompts of one step that are equal, numbered in the order in which they come first."""
    key: Floats | Ints = mix(part.step, part.prompt)
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.reshape(len(part))]
