"""What a format is, what readers of formats share, and the one of any table with columns of usual names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fairlen.diagnostics.readers.rows import Found, Rows, Values, numbers
from fairlen.files.formats import Chunk, Row, make_chunk
from fairlen.methods.describe import suggest

USUAL: dict[str, tuple[str, ...]] = {
    role: tuple(names.split())
    for role, names in {
        "prompt": "prompt question query problem instruction input prompt_id problem_id group group_id uid",
        "response": "response completion output generation generated_text model_output text prediction answer",
        "reward": "reward score outcome rewards reward_score total_reward return",
        "correct": "correct is_correct acc accuracy passed success exact_match verified",
        "step": "step global_step rollout_batch iteration training_step",
        "tokens": "num_tokens n_tokens completion_tokens response_length completion_length output_tokens num_output_tokens "
        "response_tokens completion_ids response_ids output_ids length",
        "finish": "finish_reason finish stop_reason truncated is_truncated",
        "advantage": "advantage advantages",
    }.items()
}
"""What fairlen wants, and the names that are taken for it, the surest first."""
TRUNCATED = {"length", "max_tokens", "max_length", "truncated", "true", "1", "1.0"}
"""Finish reasons that mean truncated."""


@dataclass(frozen=True)
class Format:
    """One format."""

    name: str
    title: str
    max_response_length: str
    """What its users call the limit."""
    fits: Callable[[set[str]], bool]
    """Whether a file with columns of these names is of it."""
    read: Callable[[Chunk, Found], Chunk]
    """Gives a chunk with columns named by rows.ROLES."""
    remedy: dict[str, str] = field(default_factory=dict)
    """What its files lack."""
    finish: Callable[[Rows, Found], Rows] = lambda rows, found: rows


def has_all(*names: str) -> Callable[[set[str]], bool]:
    """Return whether all columns of one of some sets are there, each a text of names."""
    sets = [set(one.split()) for one in names]
    return lambda columns: any(columns >= one for one in sets)


def rename(chunk: Chunk, names: dict[str, str], **special: Values) -> Chunk:
    """Return a chunk whose columns are named by role; others keep their names."""
    taken = set(names.values())
    others = {name: values for name, values in chunk.columns.items() if name not in taken}
    roles = {role: chunk.columns[name] for role, name in names.items() if name in chunk.columns}
    return Chunk(chunk.file, chunk.lines, others | roles | special)


def expand(chunk: Chunk, found: Found, read: Callable[[Row, str, int, Found], Iterator[Row]]) -> Chunk:
    """Return a chunk of the rows that are inside each row."""
    outer = zip(chunk.lines, chunk.rows(), strict=True)
    pairs = [(line, row) for line, whole in outer for row in read(whole, chunk.file, line, found)]
    return make_chunk(Path(chunk.file), [line for line, _ in pairs], [row for _, row in pairs], None)


def inside(value: Any, *names: str) -> Any:
    """Return a value inside objects; None where there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def add_up(columns: list[np.ndarray], size: int) -> Values:
    """Return the sums of columns, each where it is there; None where none is."""
    table = np.stack(columns) if columns else np.full((1, size), np.nan)
    return [None if np.isnan(column).all() else float(np.nansum(column)) for column in table.T]


def choose(columns: set[str], given: dict[str, str]) -> dict[str, str]:
    """Return which column is what: as given, else the first usual name that is there and not taken."""
    chosen = dict(given)
    for role, names in USUAL.items():
        free = (name for name in names if name in columns and name not in chosen.values())
        if role not in chosen and (name := next(free, None)):
            chosen[role] = name
    return chosen


def check_given(given: dict[str, str], columns: set[str]) -> str:
    """Return what is wrong with --columns for this file; empty where nothing is."""
    for role, names in given.items():
        for name in names.split("+"):
            if name.split(".")[0] not in columns:
                return f"--columns {role}={names}: no column {name!r}: {suggest(name, sorted(columns))}"
    return ""


def read_by_name(chunk: Chunk, found: Found, given: dict[str, str]) -> Chunk:
    """Return rows by the roles of their columns, which the first chunk decides."""
    chosen = found.chosen.setdefault("roles", choose(set(chunk.columns), given))
    found.notes["columns: " + ", ".join(f"{role} = `{name}`" for role, name in chosen.items())] = 0
    roles = {role: column_at(chunk, name) for role, name in chosen.items()}
    if "prompt" not in roles:
        found.notes["no prompt column: every response is a group of its own; name it: --columns prompt=NAME"] = 0
        roles["prompt"] = [(chunk.file, line) for line in chunk.lines]
    if "finish" in roles:
        words = (None if value is None else str(value).strip().lower() for value in roles.pop("finish"))
        roles["truncated"] = [None if word is None else word in TRUNCATED for word in words]
    if "tokens" in roles:
        roles["tokens"] = [count_of(value) for value in roles["tokens"]]
    taken = {part for name in chosen.values() for part in name.split("+")}
    others = {name: values for name, values in chunk.columns.items() if name not in taken}
    return Chunk(chunk.file, chunk.lines, others | roles)


def column_at(chunk: Chunk, name: str) -> Values:
    """Return the column, what a path such as info.score finds inside its objects, or the sum of several joined by +."""
    if name not in chunk.columns and "+" in name:
        return add_up([numbers(column_at(chunk, one))[0] for one in name.split("+")], len(chunk))
    if name in chunk.columns or "." not in name:
        return chunk.get(name)
    first, *rest = name.split(".")
    return [inside(value, *rest) for value in chunk.get(first)]


def count_of(value: Any) -> Any:
    """Return a number of tokens, or how many there are in a list."""
    return len(value) if isinstance(value, list) else value


def by_name(given: dict[str, str]) -> Format:
    """Return the format of any table with columns of usual names, or of the names that are given by role."""

    def fits(columns: set[str]) -> bool:
        roles = choose(columns, given).keys()
        return bool({"response", "tokens"} & roles) and bool({"reward", "correct"} & roles)

    return Format(
        "generic", "columns by name", "your limit of generation", fits, partial(read_by_name, given=given),
        {"truncated": 'no finish reason: add a column `finish_reason` ("stop" or "length") or `truncated`'},
    )  # fmt: skip
