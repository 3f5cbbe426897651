"""What a report reads of a run folder: run.json, metrics.jsonl, the numbers of records/. Texts are read later, for a sample."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairlen.batch import Floats
from fairlen.diagnostics.readers.fairlen_records import Records, read_records


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
    """Read a run folder, also of a run that still goes on.

    Raises FileNotFoundError where there is no run, and ValueError where run.json or metrics.jsonl is not what a run writes.
    """
    path = folder / "run.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: there is no such file; give the folder that `fairlen train` printed as its run folder"
        )
    description = parse(path.read_text(), path)
    entries = read_metrics(folder / "metrics.jsonl")
    updates, evaluations = ([e for e in entries if ("eval/accuracy" in e) == of] for of in (False, True))
    tables = [path for kind in ("responses", "segments") for path in sorted(folder.glob(f"records/{kind}-*.parquet"))]
    records, left_out = read_records(tables, texts=False) if tables else (None, ())
    return Run(folder, description, updates, evaluations, records, left_out)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the objects of metrics.jsonl; its last line may be half written.

    Raises ValueError for a line that is not JSON, or whose `rollout_batch` or `update`, the x of all curves, is no count.
    """
    lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or not line.endswith("\n"):
            continue
        entry = parse(line, f"{path}:{number}")
        for name in ("rollout_batch", "update"):
            value = entry.get(name)
            if not isinstance(value, int | float) or not 0 <= value <= 2**53 or value != int(value):
                raise ValueError(
                    f"{path}:{number}: {name}={value!r}: give a whole number from 0, or take the line out of the file"
                )
        found.append(entry)
    return found


def parse(text: str, where: Path | str) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError for what is none."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{where}: not JSON: an object is expected")
    return found


def column(entries: Sequence[dict[str, Any]], name: str) -> Floats:
    """Return a metric of some entries; nan where it is absent or not a number."""
    values = [entry.get(name) for entry in entries]
    return np.array([float(v) if isinstance(v, int | float) else np.nan for v in values], np.float64)
