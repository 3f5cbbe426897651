"""fairlen's own records: one row a response and one row a segment of every rollout batch, with what updates did to each.

Audits and reports both read them here. A file that is damaged, and a rollout batch of which one table is missing, are left out
with a sentence that says so; the rest is read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fairlen.batch import Bools, Floats, Ints, Responses, Segments
from fairlen.diagnostics.log import Log, Trained
from fairlen.files.formats import DAMAGED, Unreadable, describe

NAME = "fairlen"
TITLE = "fairlen records"
BUDGET = "max_response_length"
REMEDY: dict[str, str] = {}
RESPONSES = {
    "rollout_batch": pa.int64(), "prompt": pa.int64(), "length": pa.int64(), "finish": pa.string(), "outcome": pa.float64(),
    "status": pa.string(), "active": pa.bool_(), "reward": pa.float64(), "stream": pa.int64(), "track": pa.int64(),
    "round": pa.int64(), "inherited": pa.int64(),
}  # fmt: skip
SEGMENTS = {
    "rollout_batch": pa.int64(), "response": pa.int64(), "start": pa.int64(), "stop": pa.int64(), "group": pa.int64(),
    "role": pa.string(), "round": pa.int64(), "mass": pa.float64(), "value": pa.float64(), "advantage": pa.float64(),
}  # fmt: skip
UPDATES = {name: pa.list_(pa.float64()) for name in ("update", "weight", "log_ratio", "clipped", "inside")}
HALVES = "the other table is damaged, was not copied or is not written yet"
ASTRAY = "a file was not finished, or is of another run"


@dataclass(frozen=True)
class Records:
    """A log of records, and what only they know: how tracks hang together, and where each response is written."""

    log: Log
    track: Ints
    """[R]"""
    inherited: Ints
    """Generated tokens that were taken over from another track, [R]."""
    start: Ints
    """First position of each segment in its response's token_ids, [B]."""
    files: tuple[Path, ...]
    file: Ints
    """Position in `files` of each response's table, [R]."""
    row: Ints
    """Row of each response in that table, [R]."""


def fits(columns: set[str]) -> bool:
    return columns >= RESPONSES.keys() or columns >= SEGMENTS.keys()


def read_records(files: list[Path], texts: bool = True) -> tuple[Records | None, tuple[str, ...]]:
    """The rollout batches of some tables, None where none is whole; and a sentence for everything left out.

    Without `texts` the log has no column "duplicate", which takes reading them.
    """
    tables: dict[Path, pa.Table] = {}
    left_out: list[str] = []
    for number, path in enumerate(files):
        try:
            tables[path] = read_table(path, number, texts)
        except Unreadable as error:
            left_out.append(str(error))
    responses = join([t for t in tables.values() if "finish" in t.column_names], RESPONSES)
    segments = join([t for t in tables.values() if "role" in t.column_names], SEGMENTS)
    lost, reasons = find_lost(responses, segments, files, find_idle(tables))
    responses, segments = (t.filter(~np.isin(column(t, "rollout_batch"), lost)) for t in (responses, segments))
    left_out += reasons
    if not len(responses):
        return None, tuple(left_out or [f"{files[0]}: no row in responses-*.parquet"])
    return to_records(responses, segments, files), tuple(left_out)


def read_table(path: Path, number: int, texts: bool) -> pa.Table:
    """The columns that measures need and where each row is from, tokens and log-probs left out; a hash stands for the text.

    Raises Unreadable for a damaged file and for numbers that no run writes.
    """
    try:
        with pq.ParquetFile(path) as file:
            names = set(file.schema_arrow.names)
            is_responses = "finish" in names
            wanted = RESPONSES if is_responses else SEGMENTS | {n: t for n, t in UPDATES.items() if n in names}
            missing = sorted(wanted.keys() - names)
            if missing:
                raise Unreadable(f"{path}: no column {', '.join(missing)}: not written by this version of fairlen")
            parts = {name: pa.float64() for name in sorted(names) if is_responses and name.startswith("part_")}
            table = file.read([*wanted, *parts]).select([*wanted, *parts]).cast(pa.schema(wanted | parts))
            if is_responses and texts and "text" in names:
                words = file.read(["text"])["text"].to_pylist()
                table = table.append_column("text", pa.array([hash(text) for text in words], pa.int64()))
    except (OSError, pa.ArrowException) as error:
        raise Unreadable(f"{path}: {describe(error)}; {DAMAGED}") from None
    problem = find_problem(table)
    if problem:
        raise Unreadable(f"{path}: {problem}; the file is damaged or was changed: copy it again")
    table = table.append_column("file", pa.array(np.full(len(table), number)))
    return table.append_column("row", pa.array(np.arange(len(table))))


def find_problem(table: pa.Table) -> str:
    """What cannot be in a table of records, with its row; empty where nothing is wrong."""
    for name in table.column_names:
        if not pa.types.is_floating(table.schema.field(name).type) and table[name].null_count:
            return f"nothing in some rows of {name}"
    if "finish" in table.column_names:
        outcome, active = column(table, "outcome"), column(table, "active").astype(np.bool_)
        wrong = {
            "has a length below 1": column(table, "length") < 1,
            "counts, with an outcome that is not finite": active & ~np.isfinite(outcome),
        }
    else:
        sizes = [lists(table, name).value_lengths().to_numpy() for name in UPDATES if name in table.column_names]
        wrong = {
            "has its stop before its first token": column(table, "stop") <= column(table, "start"),
            "has more updates in one column than in another": np.any([s != sizes[0] for s in sizes], axis=0),
        }
    return next((f"row {np.argmax(bad) + 1} {what}" for what, bad in wrong.items() if np.any(bad)), "")


def join(tables: list[pa.Table], columns: dict[str, Any]) -> pa.Table:
    """One table, in order of rollout batches; an empty one of none."""
    if not tables:
        return pa.schema({**columns, "file": pa.int64(), "row": pa.int64()}).empty_table()
    table = pa.concat_tables(tables, promote_options="default")
    return table.take(np.argsort(column(table, "rollout_batch"), kind="stable"))


def find_idle(tables: dict[Path, pa.Table]) -> Ints:
    """Rollout batches whose table of segments has no row, as when the budget cut every stream: only its name tells which."""
    names = [
        path.stem.rpartition("-")[2]
        for path, table in tables.items()
        if "role" in table.column_names and not len(table)
    ]
    return np.array([int(name) for name in names if name.isdecimal()], np.int64)


def find_lost(responses: pa.Table, segments: pa.Table, files: list[Path], idle: Ints) -> tuple[Ints, list[str]]:
    """Rollout batches of which a table is missing or whose tables do not belong together, and a sentence for each reason."""
    batch, batch_of_segment = column(responses, "rollout_batch"), column(segments, "rollout_batch")
    within = column(segments, "response")
    size = np.searchsorted(batch, batch_of_segment, side="right") - np.searchsorted(batch, batch_of_segment)
    astray = np.isin(batch_of_segment, batch) & ((within < 0) | (within >= size))
    found = (
        (responses, ~np.isin(batch, np.append(batch_of_segment, idle)), f"responses without segments: {HALVES}"),
        (segments, ~np.isin(batch_of_segment, batch), f"segments without responses: {HALVES}"),
        (segments, astray, f"segments of responses that are not there: {ASTRAY}"),
    )
    reasons = [name_lost(table.filter(rows), files, why) for table, rows, why in found if rows.any()]
    return np.concatenate([column(table.filter(rows), "rollout_batch") for table, rows, _ in found]), reasons


def name_lost(rows: pa.Table, files: list[Path], why: str) -> str:
    """A sentence about the first rollout batch of some rows, and how many more there are."""
    batch = np.unique(column(rows, "rollout_batch"))
    more = f" and {len(batch) - 1} more" if len(batch) > 1 else ""
    return f"{files[column(rows, 'file')[0]]}: rollout batch {batch[0]}{more}: {why}"


def to_records(responses: pa.Table, segments: pa.Table, files: list[Path]) -> Records:
    """Of tables that belong together."""
    batch, batch_of_segment = column(responses, "rollout_batch"), column(segments, "rollout_batch")
    row = np.searchsorted(batch, batch_of_segment) + column(segments, "response")
    max_response_length = find_budget(files[0].parent, responses)
    table = to_responses(responses, batch, max_response_length)
    trained = to_trained(segments)
    log = Log(
        NAME, "tokens", table, batch, to_segments(segments, batch_of_segment, row, table.active[row], max_response_length),
        advantage=column(segments, "advantage"), value=column(segments, "value"), trained=trained,
        known=find_known(segments, trained), columns=further(responses, table.prompt), num_files=len(files),
    )  # fmt: skip
    return Records(
        log, column(responses, "track"), column(responses, "inherited"), column(segments, "start"), tuple(files),
        column(responses, "file"), column(responses, "row"),
    )  # fmt: skip


def column(table: pa.Table, name: str) -> Any:
    """A column as a numpy array."""
    return table[name].combine_chunks().to_numpy(zero_copy_only=False)


def lists(table: pa.Table, name: str) -> pa.ListArray:
    """A column of lists as one array."""
    whole = table[name].combine_chunks()
    return whole if isinstance(whole, pa.ListArray) else pa.concat_arrays(whole.chunks)  # type: ignore[return-value]


def number_within(batch: Ints, number: Ints) -> Ints:
    """Numbers that are unique within a batch as numbers that are unique over all, dense from 0."""
    pair = np.stack([batch, number], 1)
    return np.unique(pair, axis=0, return_inverse=True)[1].reshape(len(batch)).astype(np.int64)


def find_budget(folder: Path, responses: pa.Table) -> int:
    """The run's budget, or the longest answer where its settings are not at hand."""
    longest = int(column(responses, "length").max(initial=1))
    try:
        told = json.loads((folder.parent / "run.json").read_text())["config"]["max_response_length"]
    except (OSError, ValueError, KeyError, TypeError):
        return longest
    return max(told, longest) if isinstance(told, int) else longest


def to_responses(table: pa.Table, batch: Ints, max_response_length: int) -> Responses:
    return Responses(
        prompt=number_within(batch, column(table, "prompt")),
        length=column(table, "length"),
        outcome=column(table, "outcome"),
        correct=column(table, "status") == "correct",
        truncated=column(table, "finish") == "length",
        active=column(table, "active").astype(np.bool_),
        stream=column(table, "stream"),
        round=column(table, "round"),
        max_response_length=max_response_length,
    )


def to_segments(table: pa.Table, batch: Ints, row: Ints, active: Bools, max_response_length: int) -> Segments:
    return Segments(
        response=row,
        length=column(table, "stop") - column(table, "start"),
        group=number_within(batch, column(table, "group")),
        active=active,
        mass=column(table, "mass"),
        survivor=column(table, "role") == "survivor",
        round=column(table, "round"),
        max_response_length=max_response_length,
    )


def to_trained(table: pa.Table) -> Trained | None:
    """One row for each update that a segment was part of; None where there was none."""
    if not UPDATES.keys() <= set(table.column_names):
        return None
    size = np.asarray(lists(table, "update").value_lengths().fill_null(0)).astype(np.int64)
    if not size.sum():
        return None
    flat: dict[str, Floats] = {name: np.asarray(lists(table, name).flatten(), np.float64) for name in UPDATES}
    return Trained(
        segment=np.repeat(np.arange(len(size)), size), update=flat["update"].astype(np.int64), weight=flat["weight"],
        log_ratio=flat["log_ratio"], clipped=flat["clipped"], inside=flat["inside"],
    )  # fmt: skip


def find_known(segments: pa.Table, trained: Trained | None) -> frozenset[str]:
    known = {"correct", "truncated", "advantage", "reward"} | ({"trained"} if trained is not None else set())
    paired = bool((column(segments, "role") != "whole").any())
    return frozenset(known | ({"streams"} if paired else set()))


def further(table: pa.Table, prompt: Ints) -> dict[str, Floats]:
    """Rewards, their parts, and which answers repeat an earlier one of their prompt."""
    names = ["reward", *(name for name in table.column_names if name.startswith("part_"))]
    columns = {name: np.asarray(column(table, name), np.float64) for name in names}
    if "text" in table.column_names:
        columns["duplicate"] = find_duplicates(prompt, column(table, "text"))
    return columns


def find_duplicates(prompt: Ints, text: Ints) -> Floats:
    """1 for answers that repeat an earlier one of their prompt, 0 for others; a hash of 0 is no text and repeats nothing."""
    mixed = mix(prompt, text)
    first = np.zeros(len(prompt), np.bool_)
    first[np.unique(mixed, return_index=True)[1]] = True
    return np.where(first | (text == 0), 0.0, 1.0)


def mix(one: Ints, other: Ints) -> Ints:
    """One number of two, hardly ever equal for different pairs."""
    with np.errstate(over="ignore"):
        mixed = (one.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) ^ other.astype(np.uint64)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return mixed.view(np.int64)
