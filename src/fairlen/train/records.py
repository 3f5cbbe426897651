"""What is written down of a run: the numbers of an update, and tables of a rollout batch, records/responses-000000.parquet and
records/segments-000000.parquet. Rejected prompts are in them; a segment keeps its summed log ratio S at every update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fairlen.batch import Floats, Ints
from fairlen.files.folders import replacing
from fairlen.loop.tally import scored_metrics, update_metrics
from fairlen.methods.method import Method, Scored
from fairlen.rollouts import Response, Rollouts
from fairlen.tasks.grader import Grading
from fairlen.tasks.task import Problem
from fairlen.train.step import StepResult

UNVERIFIED = Grading({}, None, None)
Decode = Callable[[Sequence[int]], str]

OF_RESPONSE = (
    "prompt", "num_prompt", "length", "finish", "outcome", "status", "stream", "track", "round", "inherited", "seed",
    "temperature", "policy_version", "num_turns",
)  # fmt: skip
OF_SEGMENT = ("response", "start", "stop", "group", "role", "round", "mass", "turn", "num_turns", "earned")
"""Fields of responses and segments that are columns as they are."""


def rollout_metrics(rollouts: Rollouts, scored: Scored, method: Method, num_extra_batches: int = 0) -> dict[str, float]:
    """Return what one rollout batch is like and what it took; shares of the verifier are of graded responses."""
    responses = rollouts.responses
    graded = [response.status for response in responses if response.status != "unverified"]
    shares = {
        f"verifier/{name}": graded.count(name) / max(len(graded), 1) for name in ("no_answer", "timeout", "error")
    }
    took = {
        "prompts/extra_batches": float(num_extra_batches),
        "tokens/generated": float(count_generated(responses)),
        "responses/verified": float(len(graded)),
    }
    return scored_metrics(scored, method) | shares | took


def count_generated(responses: Sequence[Response]) -> int:
    """Return how many tokens were generated, inherited ones left out."""
    return sum(response.length - response.inherited for response in responses)


def describe_update(result: StepResult, learning_rate: float) -> dict[str, float]:
    """Return what one update did: the metrics that every home has, and ours."""
    own = {
        "gradient/norm": result.gradient_norm,
        "learning_rate": learning_rate,
        "tokens/forwarded": float(result.num_forwarded),
    }
    return update_metrics(result.counts) | own


@dataclass
class BatchRecord:
    """Gather what happens to one rollout batch."""

    rollouts: Rollouts
    problems: tuple[Problem, ...]
    scored: Scored
    updates: dict[str, list[list[float]]] = field(default_factory=dict)
    """Per segment one list a column, one number an update that it was part of."""

    def __post_init__(self) -> None:
        for name in ("update", "weight", "log_ratio", "clipped", "inside"):
            self.updates[name] = [[] for _ in self.rollouts.segments]

    def add_update(self, number: int, rows: Ints, *measured: Floats) -> None:
        """Remember one update of some of the segments: their weight, and what `measure_sequences` gives."""
        for name, values in zip(self.updates, (np.full(len(rows), number), *measured), strict=True):
            for row, value in zip(rows.tolist(), values.tolist(), strict=True):
                self.updates[name][row].append(value)

    def write(self, folder: Path, batch: int, findings: dict[int, Grading], decode: Decode) -> None:
        """Write both tables. `findings` are by seed, and are taken out; `decode` leaves out special tokens."""
        write_table(self.response_columns(batch, findings, decode), folder / f"responses-{batch:06d}.parquet")
        write_table(self.segment_columns(batch), folder / f"segments-{batch:06d}.parquet")

    def response_columns(self, batch: int, findings: dict[int, Grading], decode: Decode) -> dict[str, pa.Array | list]:
        """Return one row a response."""
        rows, selected = self.rollouts.responses, self.scored.selected
        found = [findings.pop(r.seed, None) or UNVERIFIED for r in rows]
        parts = [finding.parts for finding in found]
        names = sorted({name for part in parts for name in part})
        return {
            "rollout_batch": [batch] * len(rows),
            **{name: [getattr(row, name) for row in rows] for name in OF_RESPONSE},
            "problem_id": [self.problems[r.prompt].id for r in rows],
            "problem": [self.problems[r.prompt].text for r in rows],
            "answer": [self.problems[r.prompt].answer for r in rows],
            "text": [decode(r.token_ids[r.num_prompt :]) for r in rows],
            "token_ids": pa.array([list(r.token_ids) for r in rows], pa.list_(pa.int32())),
            "logprobs": pa.array([list(r.logprobs) for r in rows], pa.list_(pa.float32())),
            "supports": pa.array(
                [[np.frombuffer(one, np.int32) for one in r.supports] for r in rows], pa.list_(pa.list_(pa.int32()))
            ),
            "turns": pa.array([list(chain(*r.spans)) for r in rows], pa.list_(pa.int32())),
            "turn_rewards": pa.array([list(r.turn_rewards) for r in rows], pa.list_(pa.float64())),
            "extracted": pa.array([finding.answer for finding in found], pa.string()),
            "verify_seconds": pa.array([finding.seconds for finding in found], pa.float64()),
            "active": self.scored.responses.active.tolist(),
            "selected": [bool(selected[r.prompt]) for r in rows],
            "reward": self.scored.reward.tolist(),
            **{f"part_{name}": pa.array([part.get(name) for part in parts], pa.float64()) for name in names},
        }

    def segment_columns(self, batch: int) -> dict[str, pa.Array | list]:
        """Return one row a segment."""
        rows, scored = self.rollouts.segments, self.scored
        return {
            "rollout_batch": [batch] * len(rows),
            **{name: [getattr(row, name) for row in rows] for name in OF_SEGMENT},
            "length": self.rollouts.segment_table.length.tolist(),
            "trains": scored.trains.tolist(),
            "value": scored.value.tolist(),
            "advantage": scored.advantage.tolist(),
            **{name: pa.array(values, pa.list_(pa.float64())) for name, values in self.updates.items()},
        }


def write_table(columns: dict[str, pa.Array | list], path: Path) -> None:
    """Write a table that is whole or not there."""
    with replacing(path) as staging:
        pq.write_table(pa.table(columns), staging, compression="zstd")
