"""Metrics and records of a rollout batch, rejected prompts included: responses-000000.parquet, segments-000000.parquet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fairlen.batch import Floats, Ints
from fairlen.files.folders import replacing
from fairlen.loop.tally import reward_metrics, scored_metrics, update_metrics
from fairlen.methods.method import Method, Scored
from fairlen.rollouts import RESPONSES, SEGMENTS, UPDATES, Response, Rollouts, Segment
from fairlen.schema import Columns, from_arrow, to_arrow
from fairlen.tasks.task import Problem
from fairlen.train.step import StepResult

Decode = Callable[[Sequence[int]], str]
Row = TypeVar("Row")


def rollout_metrics(rollouts: Rollouts, scored: Scored, method: Method, num_extra_batches: int = 0) -> dict[str, float]:
    """Metrics of one rollout batch; shares of the verifier are of graded responses."""
    responses = rollouts.responses
    graded = [response.status for response in responses if response.status != "unverified"]
    shares = {f"verifier/{one}": graded.count(one) / max(len(graded), 1) for one in ("no_answer", "timeout", "error")}
    took = {
        "prompts/extra_batches": float(num_extra_batches),
        "tokens/generated": float(count_generated(responses)),
        "responses/verified": float(len(graded)),
    }
    return scored_metrics(scored, method) | reward_metrics(responses) | shares | took


def count_generated(responses: Sequence[Response]) -> int:
    """Generated tokens, inherited ones left out."""
    return sum(response.length - response.inherited for response in responses)


def describe_update(result: StepResult, learning_rate: float) -> dict[str, float]:
    own = {
        "gradient/norm": result.gradient_norm,
        "learning_rate": learning_rate,
        "tokens/forwarded": float(result.num_forwarded),
    }
    return update_metrics(result.counts) | own


@dataclass
class BatchRecord:
    number: int
    rollouts: Rollouts
    problems: tuple[Problem, ...]
    scored: Scored
    decode: Decode  # leaves out special tokens
    updates: dict[str, list[list[float]]] = field(default_factory=dict)
    """Per segment one list a column, one number an update that it was part of."""

    def __post_init__(self) -> None:
        self.updates = self.updates or {name: [[] for _ in self.rollouts.segments] for name in UPDATES}

    def add_update(self, number: int, rows: Ints, *measured: Floats) -> None:
        """Append the numbers of one update of some segments: their weight, and the result of `measure_sequences`."""
        for name, values in zip(UPDATES, (np.full(len(rows), number), *measured), strict=True):
            for row, value in zip(rows.tolist(), values.tolist(), strict=True):
                self.updates[name][row].append(value)

    def tables(self) -> dict[str, pa.Table]:
        return {"responses": self.responses, "segments": self.segments}

    def write(self, folder: Path) -> None:
        for name, table in self.tables().items():
            with replacing(folder / f"{name}-{self.number:06d}.parquet") as staging:
                pq.write_table(table, staging, compression="zstd")

    @cached_property
    def responses(self) -> pa.Table:
        """One row a response; updates do not change it."""
        rows, scored = self.rollouts.responses, self.scored
        problems = [self.problems[r.prompt] for r in rows]
        own = {
            "id": number_within([f"{self.number}-{r.prompt}" for r in rows]),
            "rollout_batch": [self.number] * len(rows),
            "counts": [r.active for r in rows],
            "active": scored.responses.active.tolist(),
            "selected": scored.selected[scored.responses.prompt].tolist(),
            "reward": scored.reward.tolist(),
            "problem_id": [problem.id for problem in problems],
            "problem": [problem.text for problem in problems],
            "answer": [problem.answer for problem in problems],
            "text": [self.decode(r.token_ids[r.num_prompt :]) for r in rows],
        }
        return build_table(RESPONSES, rows, own)

    @property
    def segments(self) -> pa.Table:
        rows, scored, names = self.rollouts.segments, self.scored, self.responses["id"].to_pylist()
        own = {
            "id": number_within([names[s.response] for s in rows]),
            "rollout_batch": [self.number] * len(rows),
            "length": self.rollouts.segment_table.length.tolist(),
            "trains": scored.trains.tolist(),
            "value": scored.value.tolist(),
            "advantage": scored.advantage.tolist(),
        }
        return build_table(SEGMENTS, rows, own | self.updates)


def number_within(names: Sequence[str]) -> list[str]:
    """Names with a number each, from 0 among equal ones."""
    seen = Counter[str]()
    numbered = []
    for name in names:
        numbered.append(f"{name}-{seen[name]}")
        seen[name] += 1
    return numbered


def build_table(columns: Columns, rows: Sequence[Any], own: Mapping[str, Sequence[Any]]) -> pa.Table:
    values = {name: own[name] if name in own else [getattr(row, name) for row in rows] for name in columns}
    return pa.table({name: to_arrow(kind, values[name]) for name, (kind, _) in columns.items()})


def read_rollouts(tables: Mapping[str, pa.Table], max_response_length: int) -> Rollouts:
    """The rollout batch of two tables, exactly as it was."""
    responses = tables["responses"].drop_columns("active").rename_columns({"counts": "active"})
    segments = read_rows(Segment, SEGMENTS, tables["segments"])
    return Rollouts(read_rows(Response, RESPONSES, responses), segments, max_response_length)


def read_rows(kind: type[Row], columns: Columns, table: pa.Table) -> tuple[Row, ...]:
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    values = [from_arrow(columns[name][0], table[name]) for name in names]
    return tuple(kind(**dict(zip(names, row, strict=True))) for row in zip(*values, strict=True))
