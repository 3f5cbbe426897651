"""Any JSON lines, CSV or Parquet: columns by their usual names, or as `--columns prompt=question,reward=score` says."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import numpy as np

from fairlen.diagnostics.readers.chunk import Chunk, Columns, Found, Meter, Part, Raw, Values, make_part, numbers

NAME = "generic"
TITLE = "columns by name"
BUDGET = "your generation budget"
REMEDY = {"truncated": 'no finish reason: add a column `finish_reason` ("stop" or "length") or `truncated`'}

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
CUT = {"length", "max_tokens", "max_length", "truncated", "true", "1", "1.0"}
"""Finish reasons that mean cut off."""


def choose(columns: set[str], given: dict[str, str]) -> dict[str, str]:
    """Which column is what: as given, else the first usual name that is there and not taken."""
    chosen = dict(given)
    for role, names in USUAL.items():
        free = (name for name in names if name in columns and name not in chosen.values())
        if role not in chosen and (name := next(free, None)):
            chosen[role] = name
    return chosen


def fits(columns: set[str], given: dict[str, str] | None = None) -> bool:
    """Whether there are answers, or their lengths, and something that says how good they were."""
    chosen = choose(columns, given or {})
    return bool({"response", "tokens"} & chosen.keys()) and bool({"reward", "correct"} & chosen.keys())


def check_given(given: dict[str, str], columns: set[str]) -> str:
    """What is wrong with --columns for this file; empty where nothing is."""
    for role, names in given.items():
        for name in names.split("+"):
            if name.split(".")[0] not in columns:
                near = get_close_matches(name, list(columns), 1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(columns))}"
                return f"--columns {role}={names}: no column {name!r}: {hint}"
    return ""


def read(chunk: Chunk, meter: Meter, found: Found, given: dict[str, str] | None = None) -> Part:
    """One chunk of rows."""
    if "chosen" not in found.reader:
        found.reader["chosen"] = choose(set(chunk.columns), given or {})
        found.note("columns: " + ", ".join(f"{role} = `{name}`" for role, name in found.reader["chosen"].items()))
    chosen = found.reader["chosen"]
    columns = {role: column_at(chunk, name) for role, name in chosen.items()}
    taken = {part for name in chosen.values() for part in name.split("+")}
    if "prompt" not in columns:
        found.note("no prompt column: every answer is a group of its own; name it: --columns prompt=NAME")
    reward = add_up(chunk, chosen["reward"]) if "reward" in chosen else [None] * len(chunk)
    raw = Raw(
        columns.get("prompt") or [(chunk.file, line) for line in chunk.lines], columns.get("response") or [None] * len(chunk),
        reward, columns.get("step"), columns.get("correct"), cut(columns), columns.get("advantage"),
        [count_of(value) for value in columns["tokens"]] if "tokens" in columns else None,
        {name: values for name, values in chunk.columns.items() if name not in taken},
    )  # fmt: skip
    return make_part(chunk, raw, meter, found)


def column_at(chunk: Chunk, name: str) -> Values:
    """A column, or what a path such as info.score finds inside its objects."""
    if name in chunk.columns or "." not in name:
        return chunk.get(name)
    first, *rest = name.split(".")
    values = chunk.get(first)
    for key in rest:
        values = [value.get(key) if isinstance(value, dict) else None for value in values]
    return values


def add_up(chunk: Chunk, names: str) -> Values:
    """The column, or the sum of several joined by +, each where it is there."""
    if "+" not in names or names in chunk.columns:
        return column_at(chunk, names)
    table = np.stack([numbers(column_at(chunk, name), len(chunk))[0] for name in names.split("+")])
    return [None if np.isnan(column).all() else float(np.nansum(column)) for column in table.T]


def cut(columns: Columns) -> Values | None:
    """Whether each answer was cut off, from finish reasons or truth values."""
    if "finish" not in columns:
        return None
    return [None if value is None else str(value).strip().lower() in CUT for value in columns["finish"]]


def count_of(value: Any) -> Any:
    """A number of tokens, or how many there are in a list."""
    return len(value) if isinstance(value, list) else value
