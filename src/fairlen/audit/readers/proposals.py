"""Columns that may hold prompts, responses and rewards whatever their names, each proposal tried on the first rows of a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np

from fairlen.audit.readers.columns import column_at, find_correct, list_paths, read_texts
from fairlen.audit.readers.rows import Values, differs, hashes, is_mixed, numbers
from fairlen.audit.readers.verdicts import NAMES_OTHER, NAMES_WRONG, list_values, list_words, split_name
from fairlen.batch import Bools, Ints, number_keys
from fairlen.files.formats import Chunk

COUNTS = re.compile(r"tok|len|count|size|num|words|chars|ids|mask", re.I)
"""Names of numbers that may be the length of a response."""
MAX_TRIED = 12  # columns that are tried in each role
MAX_DISTINCT = 0.7  # share of rows with a value of their own up to which a column may be a prompt
MIN_MIXED = 0.1  # share of groups with a correct and an incorrect response that a proposal has to have
MAX_PROPOSALS = 2


@dataclass(frozen=True)
class ProposedColumn:
    """A column that may have a role."""

    name: str
    values: Values


def propose_columns(head: Chunk, given: dict[str, str]) -> list[str]:
    """Return flags that name the columns of a log, the likeliest first; empty if no columns lead to a verdict.

    `given` has the roles that are known, which stay as they are.
    """
    columns = {name: column_at(head, name) for name in list_paths(head)}
    flags = list[str]()
    for prompt in list_role(columns, given, "prompt", head):
        group = number_keys(hashes(prompt.values))
        for outcome in list_role(columns, given, "reward", head):
            if outcome.name == prompt.name:
                continue
            correct = find_correct(Chunk(head.file, head.lines, {"reward": outcome.values}), {"reward": "reward"})
            mixed = is_mixed(group, correct)
            if not is_enough(group, mixed):
                continue
            for response in list_role(columns, given, "response", head):
                if response.name in (prompt.name, outcome.name) or not differs(hashes(response.values), group, mixed):
                    continue
                role = "response" if read_texts(response.name, response.values) else "tokens"
                chosen = {"prompt": prompt.name, role: response.name} | {outcome_role(given): outcome.name}
                flags.append("--columns " + ",".join(f"{role}={name}" for role, name in chosen.items()))
                if len(flags) == MAX_PROPOSALS:
                    return flags
                break
    return flags


def outcome_role(given: dict[str, str]) -> str:
    return "correct" if "correct" in given and "reward" not in given else "reward"


def is_enough(group: Ints, mixed: Bools) -> bool:
    """Return whether enough groups have a correct and an incorrect response."""
    return len(np.unique(group[mixed])) >= max(1, MIN_MIXED * len(np.unique(group)))


def list_role(columns: dict[str, Values], given: dict[str, str], role: str, head: Chunk) -> Iterator[ProposedColumn]:
    """Yield the column that is known to have a role, or those that may have it, the likeliest first."""
    known = given.get(role) or (given.get("correct") if role == "reward" else None)
    if known:
        yield ProposedColumn(known, column_at(head, known, role))
        return
    free = {name: cells for name, cells in columns.items() if name not in given.values()}
    listing = {"prompt": list_prompts, "response": list_responses, "reward": list_rewards}[role]
    if role == "reward":
        scores = listing(free)
        if not scores or len(list_values(free[scores[0]])) != 2:
            yield from list_word_verdicts(free)
    for name in listing(free)[:MAX_TRIED]:
        is_reversed = role == "reward" and NAMES_WRONG.search(split_name(name))
        yield reverse_column(name, free[name]) if is_reversed else ProposedColumn(name, free[name])


def reverse_column(name: str, cells: Values) -> ProposedColumn:
    """Return a column in which a higher value is worse as the reward that its flag makes of it."""
    return ProposedColumn(f"-1*{name}", [None if np.isnan(value) else -value for value in numbers(cells)[0].tolist()])


def list_word_verdicts(columns: dict[str, Values]) -> Iterator[ProposedColumn]:
    """Yield columns of two words, each word as the one of correct responses."""
    for name, cells in columns.items():
        for word in list_words(cells):
            yield ProposedColumn(
                f"{name}={word}", [None if cell is None else float(cell.strip() == word) for cell in cells]
            )


def list_prompts(columns: dict[str, Values]) -> list[str]:
    """Return the columns whose values come back: texts first, the longest before all others."""
    sizes = dict[str, float]()
    for name, cells in columns.items():
        distinct = len(np.unique(hashes(cells)))
        if any(cell is None for cell in cells) or not 2 <= distinct <= MAX_DISTINCT * len(cells):
            continue
        texts = read_texts(name, cells)
        is_length = not texts and COUNTS.search(name) and is_count(cells)
        if not is_length:
            sizes[name] = median(map(len, texts)) if texts else 0.0
    return sorted(sizes, key=lambda name: -sizes[name])


def list_responses(columns: dict[str, Values]) -> list[str]:
    """Return the columns of texts, the longest first, then those of numbers whose name says that they count something."""
    sizes = {name: median(map(len, texts)) for name, cells in columns.items() if (texts := read_texts(name, cells))}
    counts = [name for name, cells in columns.items() if COUNTS.search(name) and name not in sizes and is_count(cells)]
    return [*sorted(sizes, key=lambda name: -sizes[name]), *counts]


def is_count(cells: Values) -> bool:
    """Return whether cells are numbers above 0, or lists of them."""
    values = [len(cell) if isinstance(cell, list) else cell for cell in cells]
    read, bad = numbers(values)
    return not bad.any() and bool(np.nanmin(read, initial=np.inf) >= 0) and len(np.unique(read)) > 2


def list_rewards(columns: dict[str, Values]) -> list[str]:
    """Return the columns of numbers: those of two values first, numbers that count something last."""
    ranks = dict[str, tuple[bool, bool]]()
    for name, cells in columns.items():
        values = list_values(cells)
        known = np.isfinite(numbers(cells)[0]) if len(values) >= 2 else np.zeros(1, np.bool_)
        if len(values) >= 2 and known.mean() > 0.5:
            ranks[name] = (bool(NAMES_OTHER.search(split_name(name))), len(values) != 2)
    return sorted(ranks, key=lambda name: ranks[name])
