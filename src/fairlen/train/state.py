"""Where a run is: its counters, the rollout batch that it learns from, and the checkpoint of these and of all that moves.

Plans and problems are in no checkpoint: they follow from the responses and the method, and from positions in the training stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairlen.batch import Plan
from fairlen.methods.method import Method, Scored, updates
from fairlen.rollouts import Response, Rollouts, Segment
from fairlen.sampling.extend import RolloutEngine
from fairlen.tasks.grader import Grader, Grading
from fairlen.train.collect import Collected, Collector
from fairlen.train.records import BatchRecord
from fairlen.train.run.checkpoint import (
    Checkpoint,
    capture_moments,
    capture_streams,
    capture_weights,
    load_newest,
    restore_moments,
    restore_streams,
    restore_weights,
)
from fairlen.train.run.config import TrainConfig
from fairlen.train.run.faults import Guard
from fairlen.train.run.folder import Run
from fairlen.train.step import Learner

COLLECTED_APART = ("token_ids", "logprobs", "supports")
"""Fields of responses that a checkpoint keeps as tensors."""
OLD = "old_logprobs."
"""Begins the names of the trainer's log-probs of a segment, before its row."""


NEXT = 1.5
"""Mean rollout batches that the next one may cost."""


@dataclass
class Progress:
    """Counters of a run, all of which a checkpoint keeps."""

    batch: int = 0
    """Rollout batches done."""
    update: int = 0
    """Updates done."""
    next_problem: int = 0
    """Position in the training stream."""
    policy_version: int = 0
    best_accuracy: float = -1.0
    generated: int = 0
    """Tokens generated in training."""
    seconds: float = 0.0
    """Spent on collecting and learning."""
    evaluated: int = -1
    """Rollout batches done at the last evaluation."""

    def is_done(self, config: TrainConfig) -> bool:
        """Whether all rollout batches are done, or a limit on updates, tokens or time is reached."""
        limits = (
            (config.max_updates, self.update),
            (config.max_generated, self.generated),
            (config.max_seconds, self.seconds),
        )
        return self.batch >= config.rollout_batches or any(0 < limit <= done for limit, done in limits)

    def needs_evaluation(self, config: TrainConfig) -> bool:
        """Whether one is due, once: before the first rollout batch, after every so many, and before one that may pass a limit.

        What is compared at that limit lies between this evaluation and the last one.
        """
        limits = ((config.max_generated, self.generated), (config.max_seconds, self.seconds))
        is_close = any(limit and done * (1.0 + NEXT / max(self.batch, 1)) >= limit for limit, done in limits)
        return (self.batch == 0 or is_due(config.eval_every, self.batch) or is_close) and self.evaluated != self.batch

    def needs_checkpoint(self, config: TrainConfig, is_within_batch: bool) -> bool:
        """Whether one is due: after so many updates, after so many rollout batches, and at the end."""
        return is_due(config.save_every_updates, self.update) or (
            not is_within_batch and (is_due(config.save_every, self.batch) or self.is_done(config))
        )


def is_due(every: int, number: int) -> bool:
    """Whether something that happens every so often happens now; 0 is never."""
    return every > 0 and number > 0 and number % every == 0


@dataclass
class StartedBatch:
    """A rollout batch that is being learned from: what was collected, what is planned, and how far it has got."""

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

    @classmethod
    def plan(cls, collected: Collected, method: Method, config: TrainConfig, policy_version: int) -> StartedBatch:
        """Score a rollout batch, and plan its updates."""
        scored = method.score(collected.rollouts)
        plans = [method.weigh(update) for update in updates(scored, config.updates_per_batch)]
        record = BatchRecord(collected.rollouts, collected.problems, scored)
        return cls(collected, method, scored, plans, config.epochs_per_batch, policy_version, record)

    @property
    def num_updates(self) -> int:
        """Number of updates made, skipped and to come."""
        return len(self.plans) * self.num_epochs

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and what JSON takes, for `restore`."""
        rows = self.collected.rollouts
        names = [f.name for f in fields(Response) if f.name not in COLLECTED_APART]
        tensors = {
            "token_ids": torch.tensor([token for r in rows.responses for token in r.token_ids], dtype=torch.int64),
            "logprobs": torch.tensor([x for r in rows.responses for x in r.logprobs], dtype=torch.float64),
        }
        if any(row.supports for row in rows.responses):
            supports = [one for r in rows.responses for one in r.supports_of(r.num_prompt, len(r.token_ids))]
            tensors["supports"] = torch.from_numpy(np.frombuffer(b"".join(supports), np.uint8).copy())
            tensors["support_sizes"] = torch.tensor(list(map(len, supports)))
        tensors |= {f"{OLD}{row}": values.clone() for row, values in (self.old_logprobs or {}).items()}
        return tensors, {
            "responses": [{name: getattr(row, name) for name in names} for row in rows.responses],
            "num_tokens": [len(row.token_ids) for row in rows.responses],
            "segments": [asdict(row) for row in rows.segments],
            "max_response_length": rows.max_response_length,
            "problems": len(self.collected.problems),
            "selected": self.collected.num_selected,
            "extra_batches": self.collected.num_extra_batches,
            "method_state": self.method.state,
            "policy_version": self.policy_version,
            "updates": self.record.updates,
            "facts": self.facts,
            "seconds": self.seconds,
            "done": self.num_done,
            "has_old_logprobs": self.old_logprobs is not None,
        }

    @classmethod
    def restore(
        cls, tensors: Mapping[str, Tensor], found: Mapping[str, Any], state: RunState, first_problem: int
    ) -> StartedBatch:
        """Return what `capture` took; `first_problem` is the position of the first of its problems."""
        problems = tuple(state.collector.problem_at(first_problem + i) for i in range(found["problems"]))
        collected = Collected(read_rollouts(tensors, found), problems, found["selected"], found["extra_batches"])
        method = state.method.with_state(found["method_state"])
        started = cls.plan(collected, method, state.config, found["policy_version"])
        started.record.updates = {name: found["updates"][name] for name in started.record.updates}
        started.facts, started.seconds, started.num_done = found["facts"], found["seconds"], found["done"]
        if found["has_old_logprobs"]:
            old = {name.removeprefix(OLD): tensors[name] for name in tensors if name.startswith(OLD)}
            started.old_logprobs = {int(row): x.to(state.learner.policy.device) for row, x in old.items()}
        return started


def read_rollouts(tensors: Mapping[str, Tensor], found: Mapping[str, Any]) -> Rollouts:
    """Return responses and segments as they were collected."""
    tokens, logprobs = (iter(tensors[name].tolist()) for name in ("token_ids", "logprobs"))
    supports = iter(read_supports(tensors))
    responses = []
    for row, count in zip(found["responses"], found["num_tokens"], strict=True):
        row = {"turns": (), "turn_rewards": ()} | row  # older checkpoints have none
        row |= {"turns": tuple(map(tuple, row["turns"])), "turn_rewards": tuple(row["turn_rewards"])}
        generated = sum(stop - start for start, stop in row["turns"]) or count - row["num_prompt"]
        row |= {"token_ids": tuple(islice(tokens, count)), "logprobs": tuple(islice(logprobs, generated))}
        responses.append(Response(supports=tuple(islice(supports, generated)), **row))
    segments = tuple(Segment(**row) for row in found["segments"])
    return Rollouts(tuple(responses), segments, found["max_response_length"])


def read_supports(tensors: Mapping[str, Tensor]) -> list[bytes]:
    """Return the supports of all generated tokens, or none where nothing was cut."""
    if "supports" not in tensors:
        return []
    stops = tensors["support_sizes"].cumsum(0).tolist()
    joined = tensors["supports"].numpy().tobytes()
    return [joined[start:stop] for start, stop in pairwise((0, *stops))]


@dataclass(kw_only=True)
class RunState:
    """What a checkpoint is made of: weights, moments, schedule, the method's state, random streams, position."""

    config: TrainConfig
    run: Run
    method: Method
    learner: Learner
    engine: RolloutEngine
    collector: Collector
    grader: Grader
    guard: Guard
    progress: Progress = field(default_factory=Progress)
    started: StartedBatch | None = None
    """The rollout batch that is being learned from."""
    rollback: dict[str, Any] | None = None
    """Random streams before what an interruption cancelled."""

    def capture(self) -> Checkpoint:
        """Return the checkpoint of this moment, between two updates."""
        learner = self.learner
        tensors = {
            "model": capture_weights(learner.policy.model),
            "optimizer": capture_moments(learner.policy.model, learner.optimizer),
        }
        state = vars(self.progress) | {
            "configuration": self.run.configuration,
            "method_state": self.method.state,
            "schedule": learner.schedule.state_dict(),
            "sizes": self.run.log_sizes(),
            "streams": self.rollback or capture_streams(),
            "skipped": [self.guard.num_skipped, self.guard.num_in_a_row],
            "max_tokens_per_microbatch": [self.config.max_tokens_per_microbatch, learner.max_tokens],
            "findings": [[seed, asdict(finding)] for seed, finding in self.grader.findings.items()],
        }
        if self.started is not None:
            tensors["rollouts"], state["started"] = self.started.capture()
        return Checkpoint(tensors, state)

    def resume(self, log: Callable[[str], None]) -> None:
        """Go on from the newest checkpoint that is whole; from the start where the run ended before its first one."""
        for change in self.run.changes:
            log(f"resumed with {change}")
        found = load_newest(self.run.checkpoints)
        if found is None:
            self.run.truncate_logs({})
            return log("no checkpoint was made yet: the run starts again")
        for loss in self.restore(found[1]):
            log(f"warning: {loss}")
        log(f"resumed from {found[0].name}")

    def restore(self, checkpoint: Checkpoint) -> list[str]:
        """Go back to where a checkpoint was made; return what the logs have lost since.

        Raises ValueError for a checkpoint of another configuration.
        """
        state, tensors = checkpoint.state, checkpoint.tensors
        if state["configuration"] != self.run.configuration:
            raise ValueError(
                f"out={self.run.folder}: its checkpoint is of configuration {state['configuration']}, and these settings are "
                f"{self.run.configuration}: the checkpoints of another run were put there; give the folder that they are from"
            )
        learner, progress = self.learner, self.progress
        restore_weights(learner.policy.model, tensors["model"])
        restore_moments(learner.policy.model, learner.optimizer, tensors["optimizer"])
        learner.restore_schedule(state["schedule"])
        self.method = self.method.with_state(state["method_state"])
        for one in fields(progress):
            setattr(progress, one.name, state[one.name])
        lost = self.run.truncate_logs(state["sizes"])
        self.engine.refresh(progress.policy_version)
        restore_streams(state["streams"])
        self.guard.num_skipped, self.guard.num_in_a_row = state["skipped"]
        given, found = state["max_tokens_per_microbatch"]
        if given == self.config.max_tokens_per_microbatch:  # else the user has chosen another one
            learner.max_tokens = found
        if started := state.get("started"):
            first = progress.next_problem - started["problems"]
            self.started = StartedBatch.restore(tensors["rollouts"], started, self, first)
            self.grader.findings = {seed: Grading(**finding) for seed, finding in state["findings"]}
        return lost
