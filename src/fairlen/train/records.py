"""What a rollout batch leaves behind for diagnosis: two tables, one row a response and one row a segment.

    records/responses-000000.parquet   records/segments-000000.parquet

Rejected prompts are in them. A segment keeps its summed log ratio S at every update, so that any band can be replayed on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fairlen.batch import Plan, Rollouts
from fairlen.files.folders import replacing
from fairlen.methods.method import Scored
from fairlen.tasks.grader import Finding, Grader
from fairlen.tasks.task import Problem
from fairlen.train.step import StepResult

UNVERIFIED = Finding({}, None, None)


@dataclass
class BatchRecord:
    """Gathers what happens to one rollout batch."""

    rollouts: Rollouts
    problems: tuple[Problem, ...]
    scored: Scored
    updates: dict[str, list[list[float]]] = field(default_factory=dict)
    """Per segment one list a column, one number an update that it was part of."""

    def __post_init__(self) -> None:
        for name in ("update", "weight", "log_ratio", "clipped", "inside"):
            self.updates[name] = [[] for _ in self.rollouts.segments]

    def add_update(self, number: int, plan: Plan, result: StepResult) -> None:
        """Remembers one update of some of the segments."""
        columns = {
            "weight": plan.weight,
            "log_ratio": result.log_ratio,
            "clipped": result.clipped,
            "inside": result.inside,
        }
        for position, row in enumerate(plan.rows.tolist()):
            self.updates["update"][row].append(number)
            for name, values in columns.items():
                self.updates[name][row].append(float(values[position]))

    def write(self, folder: Path, batch: int, grader: Grader) -> None:
        """Writes both tables."""
        write_table(self.response_columns(batch, grader), folder / f"responses-{batch:06d}.parquet")
        write_table(self.segment_columns(batch), folder / f"segments-{batch:06d}.parquet")

    def response_columns(self, batch: int, grader: Grader) -> dict[str, pa.Array | list]:
        """One row a response."""
        rows, selected = self.rollouts.responses, self.scored.selected
        findings = [grader.findings.pop(r.seed, None) or UNVERIFIED for r in rows]
        parts = [finding.parts for finding in findings]
        names = sorted({name for part in parts for name in part})
        return {
            "rollout_batch": [batch] * len(rows),
            "prompt": [r.prompt for r in rows],
            "problem_id": [self.problems[r.prompt].id for r in rows],
            "problem": [self.problems[r.prompt].text for r in rows],
            "answer": [self.problems[r.prompt].answer for r in rows],
            "text": [grader.decode(r.token_ids[r.num_prompt :]) for r in rows],
            "token_ids": pa.array([list(r.token_ids) for r in rows], pa.list_(pa.int32())),
            "num_prompt": [r.num_prompt for r in rows],
            "length": [r.length for r in rows],
            "logprobs": pa.array([list(r.logprobs) for r in rows], pa.list_(pa.float32())),
            "finish": [r.finish for r in rows],
            "outcome": [r.outcome for r in rows],
            "status": [r.status for r in rows],
            "extracted": pa.array([finding.answer for finding in findings], pa.string()),
            "verify_seconds": pa.array([finding.seconds for finding in findings], pa.float64()),
            "active": self.scored.responses.active.tolist(),
            "selected": [bool(selected[r.prompt]) for r in rows],
            "reward": self.scored.reward.tolist(),
            **{f"part_{name}": pa.array([part.get(name) for part in parts], pa.float64()) for name in names},
            "stream": [r.stream for r in rows],
            "track": [r.track for r in rows],
            "round": [r.round for r in rows],
            "inherited": [r.inherited for r in rows],
            "seed": [r.seed for r in rows],
            "temperature": [r.temperature for r in rows],
            "policy_version": [r.policy_version for r in rows],
        }

    def segment_columns(self, batch: int) -> dict[str, pa.Array | list]:
        """One row a segment."""
        rows, scored = self.rollouts.segments, self.scored
        return {
            "rollout_batch": [batch] * len(rows),
            "response": [s.response for s in rows],
            "start": [s.start for s in rows],
            "stop": [s.stop for s in rows],
            "group": [s.group for s in rows],
            "role": [s.role for s in rows],
            "round": [s.round for s in rows],
            "mass": [s.mass for s in rows],
            "trains": scored.trains.tolist(),
            "value": scored.value.tolist(),
            "advantage": scored.advantage.tolist(),
            **{name: pa.array(values, pa.list_(pa.float64())) for name, values in self.updates.items()},
        }


def write_table(columns: dict[str, pa.Array | list], path: Path) -> None:
    """Writes a table that is whole or not there."""
    with replacing(path) as staging:
        pq.write_table(pa.table(columns), staging, compression="zstd")
