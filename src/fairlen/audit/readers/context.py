"""Columns that a log does not use, as candidates for what responses must agree in: their values, and what their names tell.

Values are kept as numbers and hashes. Whether a candidate forms groups is decided in `grouping`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from fairlen.batch import Floats, Ints
from fairlen.files.formats import Chunk

DESIGN = re.compile(
    r"^(is_|use_|enable_)?("
    r"((base|policy|actor|gen(eration|erator)?|sampl(er|ing)|rollout|student|train(ed)?|opponent)_)?"
    r"(model|checkpoint|ckpt|adapter|lora|policy|weights?)(_?(name|id|path|version|step|tag|hash|iter(ation)?))?"
    r"|(data_?|dataset_?)?(split|subset)|(is_)?(val|valid|validation|train|training|test|eval|evaluation|greedy)(_set|_mode)?"
    r"|(sampling_|decoding_)?(temperature|temp|top_?p|top_?k|min_?p)"
    r"|(enable_?|use_?)?(thinking|reasoning)(_?(mode|effort|enabled|level|budget))?|no_think"
    r"|(gen(eration)?|policy|weights?|model|actor|train(ing|er)?|global|rollout|opt(imizer|imization)?|update|grad(ient)?|learner)"
    r"_?(step|iter(ation)?|version|epoch|batch|round|update|index|idx|id)s?"
    r"|steps?|iter(ation)?|epoch|version|data_?epoch|(system_?)?prompt_?(version|template|variant|style)|(run|experiment|exp)(_?(id|name))?"
    r")$",
    re.I,
)
"""Names of what is fixed before a response is sampled: a policy, a step, a split, settings of sampling."""
CONSEQUENCE = re.compile(
    r"(^|_)(finish(ed)?|stop(ped)?|ended|done|trunc(ated|ation)?|clipped|overlong|status|error|exception|failed|failure|aborted|"
    r"(num|n)_?(turns|calls|tools?|tokens|words|chars|steps|sentences)|turns|tool_?calls?|tool_?uses?|"
    r"format(ted|_ok|_reward|_score)?|parse(d|able)?|extracted|boxed|judge|judged|judgement|judgment|grade|graded|grader|verdict|"
    r"score|scores|reward|rewards|return|correct|is_correct|acc|accuracy|success|solved|resolved|matched|feedback|"
    r"length|len|tokens|words|chars|characters|usage|duration|latency|elapsed|logprobs?|log_probs?|entropy|perplexity|ppl|kl|"
    r"advantages?|confidence|repeats?|repetition|refusal|refused|pred(iction)?|answer|response|completion|output|choices?)(_|$)"
    r"|(^|_)(metrics|scores|usage|timing|logprobs)\.",
    re.I,
)
"""Names of what follows from a response."""
TRAJECTORY = re.compile(
    r"(^|[._])(traj(ectory)?|episode|rollout|session|conversation|trace)_?(u?uid|id|idx|index|key|hash)$", re.I
)
"""Names of ids that the turns of one trajectory share."""
MAX_CANDIDATES = 48
MAX_LIST = 256
"""Elements of a cell with one value for each response of a row."""
MAX_TEXT = 200
"""Characters of a text that can be a value; longer ones are prompts, responses or references."""
ENOUGH_ROWS, MOST_DISTINCT = 1000, 0.95
"""Rows of a chunk, and the share of them with different values above which no two responses share one."""
MAX_KEYS, MAX_DEPTH, LOOKED_AT = 64, 2, 32
MISSING = hash(None)
"""Key of a missing value."""


@dataclass(frozen=True)
class Choices:
    """What the user answered: candidates that form groups, and candidates that never do."""

    group_by: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class Values:
    """One candidate of a chunk: the values of its lines, one after the other."""

    key: Ints  # hash of each value; MISSING if there is none
    number: Floats  # the value as a number; empty if some are not numbers
    count: Ints  # values of each line if it has one for each response; empty if it has one for all


@dataclass(frozen=True)
class ContextChunk:
    """Candidates of the lines of one chunk."""

    file: str
    lines: Ints
    columns: dict[str, Values | None]  # None for what cannot be a candidate


@dataclass(frozen=True)
class Candidate:
    """A candidate for grouping, with a value for each response [N]."""

    name: str
    code: Ints  # dense from 0, in the order of its numbers, or of first appearance
    number: Floats  # the same as numbers, nan if they are not numbers
    is_place: bool = False  # whether it is a place in the files, and not a column

    @property
    def is_design(self) -> bool:
        return bool(DESIGN.search(self.name.rpartition(".")[2]))

    @property
    def is_consequence(self) -> bool:
        return bool(CONSEQUENCE.search(self.name)) and not self.is_design

    @property
    def is_continuous(self) -> bool:
        """Return whether values are fractions of which many differ, such as scores or seconds."""
        number = self.number[np.isfinite(self.number)]
        return bool((number != np.floor(number)).any()) and int(self.code.max(initial=0)) >= 20


def collect_context(chunk: Chunk, used: set[str]) -> ContextChunk:
    """Return the candidates of a chunk: columns, and values in objects, that `used` does not name."""
    columns: dict[str, Values | None] = {}
    for name, cells in list_cells(chunk.columns, used):
        if len(columns) >= MAX_CANDIDATES:
            break
        columns[name] = read_values(cells)
    return ContextChunk(chunk.file, np.asarray(chunk.lines, np.int64), columns)


def list_cells(
    columns: Mapping[str, Sequence[Any]], used: set[str], parent: str = "", depth: int = 0
) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield columns with their cells, of objects the values inside."""
    for key, cells in columns.items():
        name = f"{parent}{key}"
        if name in used:
            continue
        objects = [cell for cell in cells[:LOOKED_AT] if isinstance(cell, dict)]
        if not objects:
            yield name, cells
        elif depth < MAX_DEPTH:
            keys = list(dict.fromkeys(key for cell in objects for key in cell))[:MAX_KEYS]
            inner = {str(key): [cell.get(key) if isinstance(cell, dict) else None for cell in cells] for key in keys}
            yield from list_cells(inner, used, f"{name}.", depth + 1)


def read_values(cells: Sequence[Any]) -> Values | None:
    """Return the values of a column, None if they are long texts, objects or lists of such."""
    seen = [cell for cell in cells[:LOOKED_AT] if cell is not None]
    count = np.zeros(0, np.int64)
    if any(isinstance(cell, list) for cell in seen):
        if not all(isinstance(cell, list) and len(cell) <= MAX_LIST for cell in seen):
            return None
        lists = [cell if isinstance(cell, list) and len(cell) <= MAX_LIST else [None] for cell in cells]
        count = np.array([len(cell) for cell in lists], np.int64)
        cells = [value for cell in lists for value in cell]
        seen = [value for value in cells[:LOOKED_AT] if value is not None]
    if not all(isinstance(value, (str, bool, int, float)) for value in seen):
        return None
    if any(isinstance(value, str) and len(value) > MAX_TEXT for value in seen):
        return None
    number = read_numbers(cells)
    try:
        key = np.fromiter(map(hash, cells), np.int64, len(cells))
    except TypeError:  # a later cell is a list or an object
        return None
    if len(number):
        key[np.isnan(number)] = MISSING
    if len(key) >= ENOUGH_ROWS and len(np.unique(key)) > MOST_DISTINCT * len(key):
        return None
    return Values(key, number, count)


def read_numbers(cells: Sequence[Any]) -> Floats:
    """Return cells as numbers, empty if one of them is not a number."""
    try:
        return np.asarray(cells, np.float64).reshape(len(cells))
    except (TypeError, ValueError, OverflowError):
        return np.zeros(0)


def align_context(chunks: Sequence[ContextChunk], file: Ints, line: Ints, files: Mapping[str, int]) -> list[Candidate]:
    """Return the candidates of responses that vary among them.

    Args:
        chunks: the candidates of all lines.
        file: position of the file of each response [R].
        line: number of the line of each response [R].
        files: position of each file.
    """
    names = dict.fromkeys(name for chunk in chunks for name in chunk.columns)
    names = [name for name in names if all(chunk.columns.get(name, 1) is not None for chunk in chunks)]
    if not names or not len(line):
        return []
    lines = np.concatenate([chunk.lines for chunk in chunks])
    of_file = np.concatenate([np.full(len(chunk.lines), files.get(chunk.file, -1), np.int64) for chunk in chunks])
    scale = int(max(line.max(), lines.max())) + 1
    keys, wanted = of_file * scale + lines, file * scale + line
    row = find_rows(keys, wanted)
    if not np.array_equal(keys[row], wanted):
        return []  # the reader gives lines other numbers
    place, per_line = place_in_line(wanted)
    found = list[Candidate]()
    for name in names:
        values = join_values(name, chunks)
        index = row
        if len(values.key) != len(keys) or (values.count != 1).any():
            count = values.count[row]
            is_single = count == 1
            if not (is_single | (count == per_line)).all():
                continue
            start = np.cumsum(values.count) - values.count
            index = start[row] + np.where(is_single, 0, place)
        if (candidate := make_candidate(name, values.key[index], values.number[index])) is not None:
            found.append(candidate)
    return found


def find_rows(keys: Ints, wanted: Ints) -> Ints:
    """Return the position of each wanted key among keys that are all different, any position if it is not there."""
    if np.array_equal(keys, wanted):
        return np.arange(len(keys))
    order = np.argsort(keys, kind="stable")
    return order[np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)]


def place_in_line(wanted: Ints) -> tuple[Ints, Ints]:
    """Return the place of each response among those of its line, and how many there are."""
    if (np.diff(wanted) > 0).all():
        return np.zeros(len(wanted), np.int64), np.ones(len(wanted), np.int64)
    _, group, count = np.unique(wanted, return_inverse=True, return_counts=True)
    order = np.argsort(group, kind="stable")
    place = np.empty(len(wanted), np.int64)
    place[order] = np.arange(len(wanted)) - (np.cumsum(count) - count)[group[order]]
    return place, count[group]


def join_values(name: str, chunks: Sequence[ContextChunk]) -> Values:
    """Return the values of a column in all chunks; missing in a chunk without it."""
    keys, numbers, counts = list[Ints](), list[Floats](), list[Ints]()
    for chunk in chunks:
        values, size = chunk.columns.get(name), len(chunk.lines)
        key = values.key if values else np.full(size, MISSING, np.int64)
        keys.append(key)
        numbers.append(values.number if values and len(values.number) == len(key) else np.full(len(key), np.nan))
        counts.append(values.count if values and len(values.count) else np.ones(size, np.int64))
    return Values(np.concatenate(keys), np.concatenate(numbers), np.concatenate(counts))


def make_candidate(name: str, key: Ints, number: Floats) -> Candidate | None:
    """Return a candidate, None if its values do not vary or never repeat."""
    values, first, code = np.unique(key, return_index=True, return_inverse=True)
    if len(values) < 2 or len(values) > 0.9 * len(key):
        return None
    of_value = number[first]
    is_numeric = bool(np.isfinite(of_value[values != MISSING]).all())
    rank = np.argsort(np.argsort(of_value if is_numeric else first, kind="stable"), kind="stable")
    return Candidate(name, rank[code], number if is_numeric else np.full(len(key), np.nan))


def list_places(file: Ints, names: Sequence[str]) -> Iterator[Candidate]:
    """Yield the file and the folder of each response as candidates, if there are several."""
    folders = [str(PurePath(name).parent) for name in names]
    numbered = {folder: place for place, folder in enumerate(dict.fromkeys(folders))}
    folder = np.array([numbered[name] for name in folders], np.int64)[file] if len(names) else file
    for name, code in (("file", file), ("folder", folder)):
        if len(np.unique(code)) > 1:
            yield Candidate(name, np.unique(code, return_inverse=True)[1], np.full(len(code), np.nan), is_place=True)


def used_columns(roles: Iterable[str], names: Iterable[str]) -> set[str]:
    """Return the names of columns that have a role, of a sum each, and further names."""
    used = set(names)
    for text in roles:
        used |= {part.rpartition("*")[2] for part in re.split("[>=]", text)[0].split("+")}
    return used
