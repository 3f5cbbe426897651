"""fairlen's own records: one row a response and one row a segment of every rollout batch, with what updates did to each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fairlen.batch import Floats, Ints, Responses, Segments
from fairlen.diagnostics.log import Log, Trained
from fairlen.diagnostics.readers.chunk import Found
from fairlen.diagnostics.readers.files import Unreadable

NAME = "fairlen"
TITLE = "fairlen records"
BUDGET = "budget"
REMEDY: dict[str, str] = {}
RESPONSES = {
    "rollout_batch": pa.int64(), "prompt": pa.int64(), "length": pa.int64(), "finish": pa.string(), "outcome": pa.float64(),
    "status": pa.string(), "active": pa.bool_(), "reward": pa.float64(), "stream": pa.int64(), "round": pa.int64(),
}  # fmt: skip
SEGMENTS = {
    "rollout_batch": pa.int64(), "response": pa.int64(), "start": pa.int64(), "stop": pa.int64(), "group": pa.int64(),
    "role": pa.string(), "round": pa.int64(), "mass": pa.float64(), "value": pa.float64(), "advantage": pa.float64(),
}  # fmt: skip
UPDATES = {name: pa.list_(pa.float64()) for name in ("update", "weight", "log_ratio", "clipped", "inside")}


def fits(columns: set[str]) -> bool:
    return columns >= RESPONSES.keys() or columns >= SEGMENTS.keys()


def read_log(files: list[Path], found: Found) -> Log:
    """The log of a folder of records. Raises Unreadable where tables of responses lack their segments or the other way round."""
    tables = [(path, read_table(path)) for path in files]
    responses = pa.concat_tables([t for _, t in tables if "finish" in t.column_names], promote_options="default")
    pieces = [t for _, t in tables if "role" in t.column_names]
    if not len(responses) or not pieces:
        raise Unreadable(f"{files[0].parent}: responses-*.parquet and segments-*.parquet are needed, both of them")
    segments = pa.concat_tables(pieces, promote_options="default")
    batch, batch_of_segment = column(responses, "rollout_batch"), column(segments, "rollout_batch")
    order, order_of_segments = np.argsort(batch, kind="stable"), np.argsort(batch_of_segment, kind="stable")
    responses, segments = responses.take(order), segments.take(order_of_segments)
    batch, batch_of_segment = batch[order], batch_of_segment[order_of_segments]
    within = column(segments, "response")
    row = starts_of(batch, batch_of_segment, files[0].parent) + within
    if ((within < 0) | (row >= np.searchsorted(batch, batch_of_segment, side="right"))).any():
        raise Unreadable(
            f"{files[0].parent}: segments of responses that are not there: a file is missing or was not finished"
        )
    budget = find_budget(files[0].parent, responses)
    table = to_responses(responses, batch, budget)
    trained = to_trained(segments)
    return Log(
        NAME, "tokens", table, batch, to_segments(segments, batch_of_segment, row, table.active[row], budget),
        advantage=column(segments, "advantage"), value=column(segments, "value"), trained=trained,
        known=find_known(segments, trained), columns=further(responses, batch, table.prompt),
        malformed=tuple(found.malformed), num_files=len(files),
    )  # fmt: skip


def read_table(path: Path) -> pa.Table:
    """The columns that measures need, tokens and log-probs left out; a hash stands for the text."""
    try:
        names = set(pq.read_schema(path).names)
        wanted = RESPONSES if names >= RESPONSES.keys() else SEGMENTS | {n: t for n, t in UPDATES.items() if n in names}
        parts = (
            {name: pa.float64() for name in sorted(names) if name.startswith("part_")} if wanted is RESPONSES else {}
        )
        with pq.ParquetFile(path) as file:
            table = file.read([*wanted, *parts]).select([*wanted, *parts]).cast(pa.schema(wanted | parts))
            texts = file.read(["text"])["text"].to_pylist() if "text" in names else []
        if wanted is RESPONSES and texts:
            table = table.append_column("text", pa.array([hash(text) for text in texts], pa.int64()))
        return table
    except (OSError, pa.ArrowException) as error:
        raise Unreadable(f"{path}: {str(error).splitlines()[0]}; not a whole table of records") from None


def column(table: pa.Table, name: str) -> Any:
    """A column as a numpy array."""
    return table[name].combine_chunks().to_numpy(zero_copy_only=False)


def lists(table: pa.Table, name: str) -> pa.ListArray:
    """A column of lists as one array."""
    whole = table[name].combine_chunks()
    return whole if isinstance(whole, pa.ListArray) else pa.concat_arrays(whole.chunks)  # type: ignore[return-value]


def starts_of(batch: Ints, batch_of_segment: Ints, folder: Path) -> Ints:
    """First row of each segment's rollout batch. Raises Unreadable for batches of which only one table is there."""
    lonely = set(np.unique(batch).tolist()) ^ set(np.unique(batch_of_segment).tolist())
    if lonely:
        raise Unreadable(
            f"{folder}: rollout batch {min(lonely)} has responses or segments but not both: copy both files"
        )
    return np.searchsorted(batch, batch_of_segment)


def number_within(batch: Ints, number: Ints) -> Ints:
    """Numbers that are unique within a batch as numbers that are unique over all, dense from 0."""
    pair = np.stack([batch, number], 1)
    return np.unique(pair, axis=0, return_inverse=True)[1].reshape(len(batch)).astype(np.int64)


def find_budget(folder: Path, responses: pa.Table) -> int:
    """The run's budget, or the longest answer where its settings are not at hand."""
    longest = int(column(responses, "length").max(initial=1))
    try:
        told = json.loads((folder.parent / "run.json").read_text())["config"]["budget"]
    except (OSError, ValueError, KeyError, TypeError):
        return longest
    return max(told, longest) if isinstance(told, int) else longest


def to_responses(table: pa.Table, batch: Ints, budget: int) -> Responses:
    return Responses(
        prompt=number_within(batch, column(table, "prompt")),
        length=column(table, "length"),
        outcome=column(table, "outcome"),
        correct=column(table, "status") == "correct",
        truncated=column(table, "finish") == "length",
        active=column(table, "active").astype(np.bool_),
        stream=column(table, "stream"),
        round=column(table, "round"),
        budget=budget,
    )


def to_segments(table: pa.Table, batch: Ints, row: Ints, active: Any, budget: int) -> Segments:
    return Segments(
        response=row,
        length=column(table, "stop") - column(table, "start"),
        group=number_within(batch, column(table, "group")),
        active=active,
        mass=column(table, "mass"),
        survivor=column(table, "role") == "survivor",
        round=column(table, "round"),
        budget=budget,
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


def further(table: pa.Table, batch: Ints, prompt: Ints) -> dict[str, Floats]:
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
