"""The plans of a verl job as files: one a rollout batch, with the rows that were planned, for whoever wants to check them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fairlen.files.folders import write_file


def record_plan(settings: Mapping[str, Any], columns: Mapping[str, Iterable[Any]]) -> None:
    """Writes one JSON line a row to plan-000000.jsonl and so on, where `algorithm.fairlen.record` names a folder."""
    if not settings.get("record"):
        return
    folder = Path(settings["record"])
    number = len(list(folder.glob("plan-*.jsonl")))
    rows = zip(*columns.values(), strict=True)
    lines = [json.dumps(dict(zip(columns, row, strict=True)), default=float) for row in rows]
    write_file(folder / f"plan-{number:06d}.jsonl", "\n".join(lines) + "\n")
