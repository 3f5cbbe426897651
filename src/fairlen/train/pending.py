"""A rollout batch from which is being learned: what was collected, what is planned, and how far it has got.

Between two updates it can be written to a checkpoint and read back. Plans are not kept: they follow from the responses and from
the method as it was when it planned. Problems neither: they follow from their positions in the training stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from fairlen.batch import Plan, Response, Rollouts, Segment
from fairlen.methods.method import Method, Scored, updates
from fairlen.tasks.grader import Finding
from fairlen.tasks.task import Problem
from fairlen.train.collect import Collected
from fairlen.train.records import BatchRecord


@dataclass
class Pending:
    """One rollout batch and its updates."""

    collected: Collected
    method: Method
    """As it planned."""
    scored: Scored
    plans: list[Plan]
    """Of one epoch."""
    num_epochs: int
    policy_version: int
    """That generated it."""
    record: BatchRecord
    facts: dict[str, float] = field(default_factory=dict)
    """About its collection, logged with every update."""
    seconds: dict[str, float] = field(default_factory=dict)
    """What its collection took, logged with its first update."""
    num_done: int = 0
    """Updates made or skipped."""
    old_logprobs: dict[int, Tensor] | None = None
    """The trainer's log-probs by row before the first update; None before they were needed."""

    @property
    def num_updates(self) -> int:
        """Made, skipped and to come."""
        return len(self.plans) * self.num_epochs

    @property
    def next_plan(self) -> Plan:
        return self.plans[self.num_done % len(self.plans)]

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and what JSON takes, for `resume_pending`."""
        rows, old = self.collected.rollouts, self.old_logprobs
        tensors = {
            "token_ids": torch.tensor([token for r in rows.responses for token in r.token_ids], dtype=torch.int64),
            "logprobs": torch.tensor([x for r in rows.responses for x in r.logprobs], dtype=torch.float64),
        }
        if old:
            tensors["old_logprobs"] = torch.cat([values.detach().cpu() for values in old.values()])
        return tensors, {
            "responses": columns_of(rows.responses, Response, skipped=("token_ids", "logprobs")),
            "lengths": [[len(r.token_ids), len(r.logprobs)] for r in rows.responses],
            "segments": columns_of(rows.segments, Segment),
            "max_response_length": rows.max_response_length,
            "problems": len(self.collected.problems),
            "selected": self.collected.num_selected,
            "refills": self.collected.num_extra_batches,
            "method_state": self.method.state,
            "policy_version": self.policy_version,
            "updates": self.record.updates,
            "facts": self.facts,
            "seconds": self.seconds,
            "done": self.num_done,
            "old_rows": None if old is None else [[row, len(values)] for row, values in old.items()],
        }


def begin(collected: Collected, method: Method, num_updates: int, num_epochs: int, policy_version: int) -> Pending:
    """Scores and plans a rollout batch."""
    scored = method.score(collected.rollouts)
    plans = [method.weigh(update) for update in updates(scored, num_updates)]
    record = BatchRecord(collected.rollouts, collected.problems, scored)
    return Pending(collected, method, scored, plans, num_epochs, policy_version, record)


def resume_pending(
    tensors: Mapping[str, Tensor],
    found: Mapping[str, Any],
    method: Method,
    problem_at: Callable[[int], Problem],
    num_updates: int,
    num_epochs: int,
    device: torch.device,
) -> Pending:
    """The rollout batch that `capture` wrote; `problem_at` counts from the first of its problems."""
    problems = tuple(problem_at(i) for i in range(found["problems"]))
    collected = Collected(read_rollouts(tensors, found), problems, found["selected"], found["refills"])
    method = method.with_state(found["method_state"])
    pending = begin(collected, method, num_updates, num_epochs, found["policy_version"])
    pending.record.updates = {name: found["updates"][name] for name in pending.record.updates}
    pending.facts, pending.seconds, pending.num_done = dict(found["facts"]), dict(found["seconds"]), found["done"]
    if found["old_rows"] is not None:
        rows, lengths = zip(*found["old_rows"], strict=True) if found["old_rows"] else ((), ())
        parts = tensors["old_logprobs"].to(device).split(list(lengths)) if rows else ()
        pending.old_logprobs = dict(zip(rows, parts, strict=True))
    return pending


def read_rollouts(tensors: Mapping[str, Tensor], found: Mapping[str, Any]) -> Rollouts:
    """Responses and segments as they were collected."""
    num_tokens, num_generated = ([row[i] for row in found["lengths"]] for i in (0, 1))
    tokens = tensors["token_ids"].split(num_tokens)
    logprobs = tensors["logprobs"].split(num_generated)
    responses = (
        Response(token_ids=tuple(ids.tolist()), logprobs=tuple(values.tolist()), **row)
        for ids, values, row in zip(tokens, logprobs, rows_of(found["responses"]), strict=True)
    )
    return Rollouts(
        tuple(responses), tuple(Segment(**row) for row in rows_of(found["segments"])), found["max_response_length"]
    )


def columns_of(rows: tuple[Any, ...], kind: type, skipped: tuple[str, ...] = ()) -> dict[str, list[Any]]:
    """The fields of dataclasses as lists, one a field."""
    names = [f.name for f in fields(kind) if f.name not in skipped]
    return {name: [getattr(row, name) for row in rows] for name in names}


def rows_of(columns: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """One dictionary a row."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def capture_findings(findings: Mapping[int, Finding]) -> list[list[Any]]:
    """How outcomes came about, by seed."""
    return [[seed, asdict(finding)] for seed, finding in findings.items()]


def resume_findings(rows: list[list[Any]]) -> dict[int, Finding]:
    """Puts back what `capture_findings` took."""
    return {seed: Finding(**finding) for seed, finding in rows}
