"""What a report reads of a run folder: run.json, metrics.jsonl, the numbers of records/. Texts are read later, for a sample."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlen.diagnostics.readers.fairlen_records import Records, read_records

LARGEST = 2**53
"""Whole numbers up to here are exact."""


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
    left_out: tuple[str, ...] = ()
    """A sentence for everything in records/ that could not be read."""


def read_run(folder: Path) -> Run:
    """Reads a run folder, also of a run that still goes on.

    Raises FileNotFoundError where there is no run, and ValueError where run.json or metrics.jsonl is not what a run writes.
    """
    path = folder / "run.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: there is no such file; give the folder that `fairlen train` printed as its run folder"
        )
    try:
        description = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(description, dict):
        raise ValueError(f"{path}: not an object")
    entries = read_metrics(folder / "metrics.jsonl")
    tables = [path for kind in ("responses", "segments") for path in sorted(folder.glob(f"records/{kind}-*.parquet"))]
    records, left_out = read_records(tables, texts=False) if tables else (None, ())
    return Run(
        folder,
        description,
        [e for e in entries if "eval/accuracy" not in e],
        [e for e in entries if "eval/accuracy" in e],
        records,
        left_out,
    )


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The objects of metrics.jsonl; its last line may be half written.

    Raises ValueError for a line that is not JSON, and for one that does not say when it was.
    """
    if not path.is_file():
        return []
    lines = [(number, line) for number, line in enumerate(path.read_text().splitlines(), 1) if line.strip()]
    found = []
    for number, line in lines:
        try:
            entry = json.loads(line)
        except ValueError as error:
            if number == lines[-1][0]:
                break
            raise ValueError(f"{path}:{number}: not JSON: {error}") from None
        if isinstance(entry, dict):
            check_time(entry, f"{path}:{number}")
            found.append(entry)
    return found


def check_time(entry: dict[str, Any], where: str) -> None:
    """Raises ValueError unless `rollout_batch` and `update` are counts: every curve is drawn against one of them."""
    for name in ("rollout_batch", "update"):
        value = entry.get(name)
        if not isinstance(value, (int, float)) or not 0 <= value <= LARGEST or value != int(value):
            raise ValueError(f"{where}: {name}={value!r}: give a whole number from 0, or take the line out of the file")
