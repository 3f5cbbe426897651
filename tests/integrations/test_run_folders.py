"""Run folders of TRL and verl: the same rollouts give the same tables and metrics as our own trainer's, by the same names."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pyarrow.parquet as pq
import pytest
from homes import HOMES, Found, make_model
from test_contract import CASES, OTHERS

from fairlen.rollouts import RESPONSES, SEGMENTS

UNKNOWN = {"logprobs": "TRL's own generation does not say them"}
"""Columns that a home cannot have, and why; what reward functions said, `outcomes`, is its own."""


def read_table(found: Found, kind: str) -> list[dict[str, Any]]:
    """Rows in order of prompts and tracks; nan as text, so that it equals itself."""
    rows = pq.read_table(found.folder / "records" / f"{kind}-000000.parquet").to_pylist()
    return [{name: value for name, value in row.items() if name != "outcomes"} for row in rows]


def approximate(value: Any) -> Any:
    """Lists of updates and numbers as they may round."""
    is_number = isinstance(value, float) or (isinstance(value, list) and any(isinstance(x, float) for x in value))
    return pytest.approx(value, rel=1e-9, abs=1e-12, nan_ok=True) if is_number else value


@pytest.mark.parametrize(("case", "name"), [
    *product(("plain", "tool tokens", "three updates", "split into two updates"), ("grpo+balanced", "fspo")),
    ("turns that a limit ends", "dapo+balanced"), ("turns that a limit ends", "dapo+balanced_turns"),
])  # fmt: skip
@pytest.mark.parametrize("home", OTHERS)
def test_the_same_rollouts_leave_the_same_folder(home, case, name, tmp_path):
    for folder in ("own", "other"):
        (tmp_path / folder).mkdir()
    own = HOMES[0].run(CASES[case], name, make_model(), tmp_path / "own")
    found = home.run(CASES[case], name, make_model(), tmp_path / "other")
    for kind, columns in (("responses", len(RESPONSES) - 1), ("segments", len(SEGMENTS))):
        expected, rows = read_table(own, kind), read_table(found, kind)
        assert len(rows) == len(expected) > 8 and expected[0].keys() == rows[0].keys()
        assert len(rows[0]) == columns
        for row, ours in zip(rows, expected, strict=True):
            for column in ours.keys() - (UNKNOWN if home.name == "trl" else {}):
                assert row[column] == approximate(ours[column]), (kind, column)
    lines = [
        [json.loads(line) for line in (one.folder / "metrics.jsonl").read_text().splitlines()] for one in (own, found)
    ]
    assert len(lines[0]) == len(lines[1]) == CASES[case].num_iterations * CASES[case].num_updates
    for ours, theirs in zip(*lines, strict=True):
        assert not ours.keys() - theirs.keys() - home.unknown.keys()
        for metric in ours.keys() & theirs.keys() - {"learning_rate"}:
            assert theirs[metric] == approximate(ours[metric]), metric
