"""What a report reads of a run folder: run.json, metrics.jsonl, the numbers of records/. Texts are read later, for a sample."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fairlen.batch import Bools, Floats, Ints, Responses, Segments
from fairlen.diagnostics.log import Trained

OF_RESPONSES = (
    "prompt",
    "length",
    "finish",
    "outcome",
    "status",
    "active",
    "reward",
    "stream",
    "round",
    "track",
    "inherited",
)
OF_SEGMENTS = ("response", "start", "stop", "group", "role", "round", "mass", "trains", "value", "advantage")
OF_UPDATES = ("update", "weight", "log_ratio", "clipped", "inside")


@dataclass(frozen=True)
class Records:
    """The numbers of all rollout batches; R, B, U as in diagnostics/log.py."""

    responses: Responses
    """`prompt` is unique over rollout batches."""
    batch: Ints
    """Rollout batch of each response, [R]."""
    reward: Floats
    track: Ints
    inherited: Ints
    file: Ints
    """Position in `files`, [R]."""
    row: Ints
    """Row within that file, [R]."""
    files: tuple[Path, ...]
    segments: Segments
    """`response` is a row of `responses`, `group` is unique over rollout batches."""
    start: Ints
    """First position in the response's token_ids, [B]."""
    value: Floats
    advantage: Floats
    trains: Bools
    trained: Trained

    def __len__(self) -> int:
        return len(self.responses)

    @property
    def has_streams(self) -> bool:
        """Whether the segments are pairs of EqLen's streams."""
        return bool(self.segments.survivor.any() or (self.responses.round > 0).any())


@dataclass(frozen=True)
class Run:
    """A run folder, read."""

    folder: Path
    description: dict[str, Any]
    """run.json."""
    updates: list[dict[str, Any]]
    """Of metrics.jsonl, updates and skipped ones."""
    evaluations: list[dict[str, Any]]
    records: Records | None
    """None where no rollout batch was recorded."""


def read_run(folder: Path) -> Run:
    """Reads a run folder, also of a run that still goes on.

    Raises FileNotFoundError where there is no run, and ValueError where a file is not what a run writes.
    """
    path = folder / "run.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder}: no run.json there; give the folder that `fairlen train` printed as its run folder"
        )
    try:
        description = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(description, dict):
        raise ValueError(f"{path}: not an object")
    entries = read_lines(folder / "metrics.jsonl")
    config = description.get("config")
    budget = int(config.get("budget", 0)) if isinstance(config, dict) else 0
    return Run(
        folder,
        description,
        [e for e in entries if "eval/accuracy" not in e],
        [e for e in entries if "eval/accuracy" in e],
        read_records(folder / "records", budget),
    )


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file; its last line may be half written."""
    if not path.is_file():
        return []
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    found = []
    for number, line in enumerate(lines):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            if number + 1 < len(lines):
                raise ValueError(f"{path}:{number + 1}: not JSON: {error}") from None
    return [entry for entry in found if isinstance(entry, dict)]


def read_records(folder: Path, budget: int) -> Records | None:
    """All tables whose both parts are there."""
    paths = sorted(folder.glob("responses-*.parquet"))
    paths = [p for p in paths if p.with_name(p.name.replace("responses", "segments")).is_file()]
    parts = [(p, read_table(p, OF_RESPONSES), read_segments(p)) for p in paths]
    parts = [(p, r, s) for p, r, s in parts if r.num_rows]
    if not parts:
        return None
    tables, pieces = [r for _, r, _ in parts], [s for _, _, s in parts]
    sizes = np.array([t.num_rows for t in tables])
    table, segment = (
        pa.concat_tables(tables, promote_options="permissive"),
        pa.concat_tables(pieces, promote_options="permissive"),
    )
    of_file, of_piece = (
        np.repeat(np.arange(len(sizes)), sizes),
        np.repeat(np.arange(len(sizes)), [s.num_rows for s in pieces]),
    )
    numbers = np.array([number_of(p) for p, _, _ in parts])
    first = np.cumsum(sizes) - sizes
    response = numpy(segment, "response", np.int64) + first[of_piece]
    return Records(
        responses=response_table(table, of_file, budget),
        batch=numbers[of_file],
        reward=numpy(table, "reward", np.float64),
        track=numpy(table, "track", np.int64),
        inherited=numpy(table, "inherited", np.int64),
        file=of_file,
        row=np.arange(len(of_file)) - first[of_file],
        files=tuple(p for p, _, _ in parts),
        segments=segment_table(segment, response, of_piece, budget),
        start=numpy(segment, "start", np.int64),
        value=numpy(segment, "value", np.float64),
        advantage=numpy(segment, "advantage", np.float64),
        trains=numpy(segment, "trains", np.bool_),
        trained=trained_table(segment),
    )


def number_of(path: Path) -> int:
    """responses-000012.parquet -> 12"""
    digits = path.stem.rpartition("-")[2]
    if not digits.isdigit():
        raise ValueError(f"{path}: expected a name such as responses-000012.parquet")
    return int(digits)


def read_segments(path: Path) -> pa.Table:
    """The segments that belong to a file of responses."""
    return read_table(path.with_name(path.name.replace("responses", "segments")), OF_SEGMENTS + OF_UPDATES)


def read_table(path: Path, columns: tuple[str, ...]) -> pa.Table:
    """Some columns. Raises ValueError where one is missing."""
    try:
        names = pq.read_schema(path).names
        missing = [name for name in columns if name not in names]
        if missing:
            raise ValueError(f"no column {', '.join(missing)}: written by another version of fairlen?")
        return pq.read_table(path, columns=list(columns))
    except (pa.ArrowInvalid, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def numpy(table: pa.Table, name: str, kind: type) -> Any:
    """A column as numpy; null is nan, or 0 where there is no nan."""
    column = table[name]
    if column.null_count:
        column = pc.fill_null(pc.cast(column, pa.float64()), np.nan if kind is np.float64 else 0.0)
    return np.asarray(column.to_numpy(), dtype=kind)


def is_word(table: pa.Table, name: str, word: str) -> Bools:
    """Where a column of text holds a word."""
    return np.array([value == word for value in table[name].to_pylist()], np.bool_)


def unique(table: pa.Table, name: str, of_file: Ints) -> Ints:
    """Numbers that begin at 0 in every file, as numbers that no two files share."""
    values = numpy(table, name, np.int64)
    largest = np.zeros(int(of_file.max(initial=-1)) + 2, np.int64)
    np.maximum.at(largest, of_file + 1, values + 1)
    return values + np.cumsum(largest)[of_file]


def response_table(table: pa.Table, of_file: Ints, budget: int) -> Responses:
    """The table of all responses."""
    length = numpy(table, "length", np.int64)
    return Responses(
        prompt=unique(table, "prompt", of_file),
        length=length,
        outcome=np.nan_to_num(numpy(table, "outcome", np.float64)),
        correct=is_word(table, "status", "correct"),
        truncated=is_word(table, "finish", "length"),
        active=numpy(table, "active", np.bool_),
        stream=numpy(table, "stream", np.int64),
        round=numpy(table, "round", np.int64),
        budget=budget or int(length.max()),
    )


def segment_table(table: pa.Table, response: Ints, of_file: Ints, budget: int) -> Segments:
    """The table of all segments."""
    length = numpy(table, "stop", np.int64) - numpy(table, "start", np.int64)
    return Segments(
        response=response,
        length=length,
        group=unique(table, "group", of_file),
        active=np.ones(len(length), np.bool_),
        mass=numpy(table, "mass", np.float64),
        survivor=is_word(table, "role", "survivor"),
        round=numpy(table, "round", np.int64),
        budget=budget or int(length.max(initial=1)),
    )


def trained_table(table: pa.Table) -> Trained:
    """One row for each segment and each update that it was part of."""
    lists = {name: pa.concat_arrays(table[name].chunks) for name in OF_UPDATES}
    flat = {name: np.asarray(column.flatten().to_numpy(), np.float64) for name, column in lists.items()}
    counts = np.diff(lists["update"].offsets.to_numpy())
    return Trained(
        segment=np.repeat(np.arange(table.num_rows), counts),
        update=flat["update"].astype(np.int64),
        **{name: flat[name] for name in OF_UPDATES[1:]},
    )
