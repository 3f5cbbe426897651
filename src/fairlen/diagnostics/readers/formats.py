"""What a format is, what readers of formats share, and the one of any table with columns of usual names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fairlen.diagnostics.readers.rows import Found, Part, Values, is_number, numbers
from fairlen.files.formats import Chunk, Columns, Row, make_chunk
from fairlen.methods.describe import suggest

USUAL: dict[str, tuple[str, ...]] = {
    role: tuple(names.split())
    for role, names in {
        "prompt": "prompt question query problem instruction input prompt_id problem_id group group_id uid",
        "response": "response completion output generation generated_text model_output text prediction answer responses "
        "completions outputs generations messages conversation",
        "reward": "reward score outcome rewards scores reward_score total_reward return",
        "correct": "correct is_correct acc accuracy passed success exact_match verified",
        "step": "step global_step rollout_batch iteration training_step",
        "tokens": "response_mask loss_mask completion_mask num_tokens n_tokens completion_tokens response_length "
        "completion_length output_tokens num_output_tokens response_tokens completion_ids response_ids output_ids length",
        "turns": "num_turns n_turns",
        "finish": "finish_reason finish stop_reason truncated is_truncated",
        "advantage": "advantage advantages",
    }.items()
}
"""What fairlen wants, and the names that are taken for it, the surest first."""
PART = re.compile(
    r"^(rewards?|scores?)[_/.:-](?!.*(std|min|max|count|weight|threshold|model|id)$)|[_/.](reward|score)s?(/mean)?$",
    re.I,
)
"""Names of columns whose numbers are a part of the reward."""
ASKS = {"user", "system", "developer", "human"}
LISTED = "response", "reward", "correct", "finish", "tokens", "turns", "advantage"
"""What a row may have lists of, one for each of several responses to its prompt."""
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
    """Gives a chunk with columns as rows.read_rows names them."""
    remedy: dict[str, str] = field(default_factory=dict)
    """What its files lack."""
    finish: Callable[[Part, Found], Part] = lambda rows, found: rows
    lists: frozenset[str] = frozenset()
    """Columns of a table whose lists of numbers are read; of others their lengths."""
    notes: tuple[str, ...] = ()
    """How its columns were chosen; files of other notes are another source."""
    columns: frozenset[str] = frozenset()
    """Those of a file of which files with others are another source."""


def has_all(*names: str) -> Callable[[set[str]], bool]:
    """Return whether all columns of one of some sets are there, each a text of names."""
    sets = [set(one.split()) for one in names]
    return lambda columns: any(columns >= one for one in sets)


def rename(chunk: Chunk, names: dict[str, str], **special: Values) -> Chunk:
    """Return a chunk whose columns are named by role."""
    roles = {role: chunk.columns[name] for role, name in names.items() if name in chunk.columns}
    return Chunk(chunk.file, chunk.lines, roles | special)


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


def choose_all(head: Columns, given: dict[str, str]) -> dict[str, str]:
    """Return `choose`, and where nothing is a reward the sum of all columns of numbers that are named as parts of one."""
    roles = choose(set(head), given)
    parts = [name for name in head if PART.search(name) and name not in roles.values() and is_numeric(head[name])]
    return roles if not parts or {"reward", "correct"} & roles.keys() else roles | {"reward": "+".join(parts)}


def is_numeric(values: Values) -> bool:
    """Return whether a column has numbers or verdicts and nothing else."""
    return not all(value is None for value in values) and not numbers(values)[1].any()


def check_given(given: dict[str, str], columns: set[str]) -> str:
    """Return what is wrong with --columns for this file; empty where nothing is."""
    for role, names in given.items():
        for name in names.split("+"):
            if name not in columns and name.split(".")[0] not in columns:
                return f"--columns {role}={names}: no column {name!r}: {suggest(name, sorted(columns))}"
    return ""


def read_by_name(chunk: Chunk, found: Found, chosen: dict[str, str]) -> Chunk:
    """Return rows by the roles of their columns."""
    roles = {role: column_at(chunk, name) for role, name in chosen.items()}
    if "prompt" not in roles:
        chats = [split_chat(one) for one in roles.get("response", [None] * len(chunk))]
        roles["prompt"] = [chat[0] or (chunk.file, line) for chat, line in zip(chats, chunk.lines, strict=True)]
        roles["response"] = [chat[1] for chat in chats]
        if not any(prompt for prompt, _ in chats):
            found.note("no prompt column: every row is a group of its own; name it: --columns prompt=NAME")
    chunk = Chunk(chunk.file, chunk.lines, roles)
    if any(isinstance(one, list) for role in ("reward", "correct") for one in roles.get(role, ())):
        chunk = expand(chunk, found, unfold)
    if any(isinstance(one, dict) for one in chunk.get("reward")):
        chunk.columns["reward"] = [add_named(one, found) for one in chunk.get("reward")]
    if "finish" in roles:
        words = (None if value is None else str(value).strip().lower() for value in chunk.get("finish"))
        chunk.columns["truncated"] = [None if word is None else word in TRUNCATED for word in words]
    if "tokens" in roles and chosen["tokens"].endswith("mask"):
        masks = chunk.get("tokens")
        chunk.columns.setdefault("turns", [count_turns(one) for one in masks])
        chunk.columns["tokens"] = [sum(one) if isinstance(one, list) else one for one in masks]
    elif "tokens" in roles:
        chunk.columns["tokens"] = [count_of(value) for value in chunk.get("tokens")]
    return chunk


def split_chat(value: Any) -> tuple[Any, Any]:
    """Return the messages up to the last question, None where there is none, and those after it."""
    messages = value if isinstance(value, list) else []
    asks = [place for place, one in enumerate(messages, 1) if isinstance(one, dict) and one.get("role") in ASKS]
    return (value[: asks[-1]], value[asks[-1] :] or None) if asks else (None, value)


def add_named(value: Any, found: Found) -> Any:
    """Return the sum of named rewards."""
    if not isinstance(value, dict) or not all(one is None or is_number(one) for one in value.values()):
        return value
    names = found.chosen.setdefault("named", " + ".join(f"`{name}`" for name in list(value)[:8]))
    found.note(f"reward: {names}, unweighted")
    known = [one for one in value.values() if one is not None]
    return sum(known) if known else None


def unfold(row: Row, file: str, line: int, found: Found) -> Iterator[Row]:
    """Give a row for each response where a row has lists of them and of their rewards."""
    lists = {role: row[role] for role in LISTED if isinstance(row.get(role), list)}
    if not lists.keys() & {"reward", "correct"}:
        yield row
        return
    if isinstance(row["prompt"], list) and all(isinstance(one, str) for one in row["prompt"]):
        lists["prompt"] = row["prompt"]
    if row.get("response") is not None:
        lists.setdefault("response", [row["response"]])
    sizes = {role: len(values) for role, values in sorted(lists.items())}
    if len(set(sizes.values())) > 1 or 0 in sizes.values():
        return found.reject(file, line, "lists of " + ", ".join(f"{size} for {role}" for role, size in sizes.items()))
    of_all = row | {"tokens": None}  # a number of the whole row says nothing about one response
    yield from (of_all | dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True))


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


def count_turns(mask: Any) -> int | None:
    """Return the stretches of tokens that the policy wrote, by a mask of them; None of no list."""
    return sum(after > before for before, after in pairwise([0, *mask])) if isinstance(mask, list) else None


def by_name(roles: dict[str, str]) -> Format:
    """Return the format of tables with columns in these roles; it fits where they are enough for a log."""
    return Format(
        "generic", "columns by name", "your limit of generation",
        lambda roles: not roles.isdisjoint(("response", "tokens")) and not roles.isdisjoint(("reward", "correct")),
        partial(read_by_name, chosen=roles),
        {"truncated": 'no finish reason: add a column `finish_reason` ("stop" or "length") or `truncated`'},
        lists=frozenset(name for name in roles.values() if not name.endswith("ids")),
        notes=("columns: " + ", ".join(f"{role} = `{name}`" for role, name in roles.items()),),
    )  # fmt: skip
