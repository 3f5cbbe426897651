"""fairlen's own records: one row a response and one row a segment of every rollout batch, with what updates did to each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fairlen.audit.log import NO_INTS, Log, Trained
from fairlen.audit.readers.formats import Format, has_all
from fairlen.audit.readers.rows import find_duplicates, pair_keys
from fairlen.batch import NO_VERDICT, Floats, Ints, build_responses, build_segments
from fairlen.files.foreign import read_json_object, require_regular_file
from fairlen.files.formats import Unreadable, refused
from fairlen.rollouts import RESPONSES, SEGMENTS, UPDATES
from fairlen.schema import arrow_schema, number_text
from fairlen.settings import flatten

OF_RESPONSES = (
    "rollout_batch", "prompt", "length", "num_turns", "finish", "outcome", "status", "active", "reward", "stream", "track",
    "round", "inherited",
)  # fmt: skip
OF_TURNS = ("turn", "num_turns", "earned")
OF_SEGMENTS = (
    "rollout_batch", "response", "start", "stop", "length", "group", "role", "round", "mass", "value", "advantage", *OF_TURNS,
    *UPDATES,
)  # fmt: skip
"""Columns of rollouts.py that measures need."""
FORMAT = Format(
    "fairlen", "fairlen records", "max_response_length", has_all("rollout_batch track inherited", "rollout_batch role mass"),
    lambda chunk, found: chunk,
)  # fmt: skip
HALVES = "the other table is damaged, was not copied or is not written yet"


def read_records(files: list[Path], texts: bool = True) -> tuple[Log | None, tuple[str, ...]]:
    """Return the rollout batches of some tables, None where none is whole; and a sentence for everything left out.

    Without `texts` the log has no column "duplicate", which takes reading them.
    """
    tables: dict[Path, pa.Table] = {}
    left_out: list[str] = []
    for number, path in enumerate(files):
        try:
            tables[path] = read_table(path, number, texts)
        except Unreadable as error:
            left_out.append(str(error))
    responses = join([t for t in tables.values() if "finish" in t.column_names], arrow_schema(RESPONSES, OF_RESPONSES))
    segments = join([t for t in tables.values() if "role" in t.column_names], arrow_schema(SEGMENTS, OF_SEGMENTS))
    lost, reasons = find_lost(responses, segments, files, find_idle(tables))
    responses, segments = (t.filter(~np.isin(column(t, "rollout_batch"), lost)) for t in (responses, segments))
    left_out += reasons
    if not len(responses):
        return None, tuple(left_out or [f"{files[0]}: no row in responses-*.parquet"])
    return to_log(responses, segments, files), tuple(left_out)


def read_table(path: Path, number: int, texts: bool) -> pa.Table:
    """Return columns that measures need, with hashes of texts. Raises Unreadable for damage and numbers that no run writes."""
    with refused(path), pq.ParquetFile(require_regular_file(path)) as file:
        names = set(file.schema_arrow.names)
        is_responses = "finish" in names
        wanted = OF_RESPONSES if is_responses else OF_SEGMENTS
        if missing := sorted(set(wanted) - names):
            raise Unreadable(f"{path}: no column {', '.join(missing)}: not written by this version of fairlen")
        schema = arrow_schema(RESPONSES if is_responses else SEGMENTS, wanted)
        table = file.read([*wanted]).select([*wanted]).cast(schema)
        if is_responses and "channels" in names:
            table = table.append_column("channels", file.read(["channels"])["channels"])
        for name in names & {"problem_id", *["text"] * texts} if is_responses else ():
            found = [number_text(text or "") for text in file.read([name])[name].to_pylist()]
            table = table.append_column(name, pa.array(found, pa.int64()))
    if problem := find_problem(table):
        raise Unreadable(f"{path}: {problem}; the file is damaged or was changed: copy it again")
    table = table.append_column("file", pa.array(np.full(len(table), number)))
    return table.append_column("row", pa.array(np.arange(len(table))))


def find_problem(table: pa.Table) -> str:
    """Return what cannot be in a table of records, with its row; empty where nothing is wrong."""
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
        sizes = [lists(table, name).value_lengths().to_numpy() for name in UPDATES]
        wrong = {
            "has its stop before its first token": column(table, "stop") <= column(table, "start"),
            "has more updates in one column than in another": np.any([s != sizes[0] for s in sizes], axis=0),
        }
    return next((f"row {np.argmax(bad) + 1} {what}" for what, bad in wrong.items() if np.any(bad)), "")


def join(tables: list[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return one table, in order of rollout batches; an empty one of none."""
    if not tables:
        return schema.append(pa.field("file", pa.int64())).append(pa.field("row", pa.int64())).empty_table()
    table = pa.concat_tables(tables, promote_options="default")
    return table.take(np.argsort(column(table, "rollout_batch"), kind="stable"))


def find_idle(tables: dict[Path, pa.Table]) -> Ints:
    """Return rollout batches without a segment, as when every stream was truncated; only its name says which."""
    empty = [path.stem for path, table in tables.items() if "role" in table.column_names and not len(table)]
    names = [stem.rpartition("-")[2] for stem in empty]
    return np.array([int(name) for name in names if name.isdecimal()], np.int64)


def find_lost(responses: pa.Table, segments: pa.Table, files: list[Path], idle: Ints) -> tuple[Ints, list[str]]:
    """Return rollout batches of which a table is missing or whose tables do not belong together, and a sentence a reason."""
    batch, batch_of_segment = column(responses, "rollout_batch"), column(segments, "rollout_batch")
    within = column(segments, "response")
    size = np.searchsorted(batch, batch_of_segment, side="right") - np.searchsorted(batch, batch_of_segment)
    astray = np.isin(batch_of_segment, batch) & ((within < 0) | (within >= size))
    found = (
        (responses, ~np.isin(batch, np.append(batch_of_segment, idle)), f"responses without segments: {HALVES}"),
        (segments, ~np.isin(batch_of_segment, batch), f"segments without responses: {HALVES}"),
        (segments, astray, "segments of responses that are not there: a file was not finished, or is of another run"),
    )
    lost, reasons = np.zeros(0, np.int64), []
    for table, rows, why in found:
        if rows.any():
            wrong = table.filter(rows)
            batches = np.unique(column(wrong, "rollout_batch"))
            more = f" and {len(batches) - 1} more" if len(batches) > 1 else ""
            reasons.append(f"{files[column(wrong, 'file')[0]]}: rollout batch {batches[0]}{more}: {why}")
            lost = np.append(lost, batches)
    return lost, reasons


def to_log(responses: pa.Table, segments: pa.Table, files: list[Path]) -> Log:
    batch, batch_of_segment = column(responses, "rollout_batch"), column(segments, "rollout_batch")
    row = np.searchsorted(batch, batch_of_segment) + column(segments, "response")
    prompt, status = pair_keys(batch, column(responses, "prompt")), column(responses, "status")
    active = column(responses, "active").astype(np.bool_)
    table = build_responses(
        prompt, column(responses, "length"), column(responses, "outcome"), np.where(active, status == "correct", NO_VERDICT),
        column(responses, "finish") == "length", find_limit(files[0].parent, responses),
        stream=column(responses, "stream"), round=column(responses, "round"), num_turns=column(responses, "num_turns"),
        channels=read_channels(responses),
    )  # fmt: skip
    role, of_turns = column(segments, "role"), {name: column(segments, name) for name in OF_TURNS}
    pieces = build_segments(
        table, column(segments, "length"), response=row, group=pair_keys(batch_of_segment, column(segments, "group")),
        mass=column(segments, "mass"), survivor=role == "survivor", round=column(segments, "round"), **of_turns,
    )  # fmt: skip
    whole = [name for name in responses.column_names if not responses[name].null_count]
    problem = column(responses, "problem_id") if "problem_id" in whole else NO_INTS
    trained = to_trained(segments)
    known = {"trained": bool(len(trained)), "streams": bool((role == "finisher").any())}
    columns = {name: column(responses, name) for name in ("reward", "track", "inherited")}
    if "text" in responses.column_names:
        columns["duplicate"] = find_duplicates(prompt, column(responses, "text"))
    return Log(
        FORMAT.name, "tokens", table, batch, replace(pieces, active=table.active[row]), advantage=column(segments, "advantage"),
        value=column(segments, "value"), trained=trained, columns=columns,
        known=frozenset({"correct", "truncated", "advantage", "reward", *(name for name in known if known[name])}),
        problem=problem, file=column(responses, "file"), line=column(responses, "row") + 1,
        start=column(segments, "start"),
    )  # fmt: skip


def read_channels(responses: pa.Table) -> list[dict[str, int]]:
    """Return tokens by channel of each response; nothing of records where every response is an answer alone."""
    chunks = responses["channels"].chunks if "channels" in responses.column_names else []
    is_known = any(len(chunk.keys) for chunk in chunks)
    return [dict(cell or ()) for chunk in chunks for cell in chunk.to_pylist()] if is_known else []


def column(table: pa.Table, name: str) -> Any:
    return table[name].combine_chunks().to_numpy(zero_copy_only=False)


def lists(table: pa.Table, name: str) -> pa.ListArray:
    whole = table[name].combine_chunks()
    return whole if isinstance(whole, pa.ListArray) else pa.concat_arrays(whole.chunks)  # type: ignore[return-value]


def find_limit(folder: Path, responses: pa.Table) -> int:
    """Return the run's max response length, or the longest response where its settings are not at hand."""
    longest = int(column(responses, "length").max(initial=1))
    try:
        return max(int(flatten(read_json_object(folder.parent / "run.json")["config"])["max_response_length"]), longest)
    except (OSError, ValueError, KeyError, TypeError):
        return longest


def to_trained(table: pa.Table) -> Trained:
    size = np.asarray(lists(table, "update").value_lengths().fill_null(0)).astype(np.int64)
    flat: dict[str, Floats] = {name: np.asarray(lists(table, name).flatten(), np.float64) for name in UPDATES}
    return Trained(segment=np.repeat(np.arange(len(size)), size), update=flat.pop("update").astype(np.int64), **flat)
