"""The position of a run, the rollout batch that it learns from, and the checkpoint of these and of all that moves.

Plans and problems are in no checkpoint: they follow from the responses and the method, and from positions in the training stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor

from fairlen.batch import Plan
from fairlen.engine.generation import SteppedEngine
from fairlen.loop.learning_signal import LearningSignal, Remedies
from fairlen.methods.method import Method, updates
from fairlen.rollouts import UPDATES
from fairlen.tasks.grader import Grader
from fairlen.train.collect import Collected, Collector
from fairlen.train.records import BatchRecord, read_rollouts
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

FORMAT = 2
"""Of checkpoints; others are refused."""


REMEDIES = Remedies(
    length="raise --max-response-length",
    verdict="look at responses in the report: the verifier may miss their answers",
    updates="give --updates-per-batch 4",
)


@dataclass
class Progress:
    """Counters of a run, all in its checkpoints."""

    batch: int = 0
    update: int = 0
    next_problem: int = 0
    best_accuracy: float = -1.0
    generated: int = 0  # tokens generated in training
    seconds: float = 0.0  # spent on collecting and learning
    evaluated: int = -1  # rollout batches done at the last evaluation

    def is_done(self, config: TrainConfig) -> bool:
        limits = (
            (config.run.max_updates, self.update),
            (config.run.max_generated, self.generated),
            (config.run.max_seconds, self.seconds),
        )
        return self.batch >= config.run.rollout_batches or any(0 < limit <= done for limit, done in limits)

    def needs_evaluation(self, config: TrainConfig) -> bool:
        """Whether one is due, once: first, after every `eval_every`, and near a limit, where comparisons interpolate."""
        limits = ((config.run.max_generated, self.generated), (config.run.max_seconds, self.seconds))
        share = 1.0 + 1.5 / max(self.batch, 1)  # the next rollout batch may cost 1.5 times the mean
        is_close = any(limit and done * share >= limit for limit, done in limits)
        is_wanted = self.batch == 0 or is_due(config.run.eval_every, self.batch) or is_close
        return is_wanted and self.evaluated != self.batch

    def needs_checkpoint(self, config: TrainConfig, is_within_batch: bool) -> bool:
        """Whether one is due: every `save_every_updates`, every `save_every` rollout batches, and at the end."""
        run = config.run
        at_its_end = not is_within_batch and (is_due(run.save_every, self.batch) or self.is_done(config))
        return at_its_end or is_due(run.save_every_updates, self.update)


def is_due(every: int, number: int) -> bool:
    return every > 0 and number > 0 and number % every == 0


@dataclass
class StartedBatch:
    collected: Collected
    plans: list[Plan]  # of one epoch
    num_epochs: int
    policy_version: int  # of the weights that generated it
    record: BatchRecord
    facts: dict[str, float] = field(default_factory=dict)  # of its collection, logged with every update
    seconds: dict[str, float] = field(default_factory=dict)  # of its collection, logged with its first update
    num_done: int = 0  # updates made or skipped
    old_logprobs: dict[int, Tensor] | None = None
    """The trainer's log-probs by row before the first update; None until needed."""

    @property
    def num_updates(self) -> int:
        return len(self.plans) * self.num_epochs

    def capture(self) -> dict[str, Any]:
        """The part that is in no table or tensor, for `RunState.resume_batch`; JSON takes it."""
        return {
            "problems": len(self.collected.problems),
            "extra_batches": self.collected.num_extra_batches,
            "method_state": self.collected.method.state,
            "policy_version": self.policy_version,
            "facts": self.facts,
            "seconds": self.seconds,
            "done": self.num_done,
        }


@dataclass(kw_only=True)
class RunState:
    """The parts of a checkpoint: weights, moments, schedule, the method's state, random streams, position."""

    config: TrainConfig
    run: Run
    method: Method
    learner: Learner
    engine: SteppedEngine
    collector: Collector
    grader: Grader
    guard: Guard
    progress: Progress = field(default_factory=Progress)
    signal: LearningSignal = field(default_factory=lambda: LearningSignal(REMEDIES, warned={"surrogate"}))
    """Without its note on an idle surrogate, which is shown at the start."""
    started: StartedBatch | None = None
    rollback: dict[str, Any] | None = None  # random streams before the work that an interruption cancelled

    def capture(self) -> Checkpoint:
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
            "max_tokens_per_microbatch": [self.config.update.max_tokens_per_microbatch, learner.max_tokens],
            "watch": self.signal.watch.state(),
            "format": FORMAT,
        }
        if self.started is None:
            return Checkpoint(tensors, state)
        if old := self.started.old_logprobs:
            tensors["old_logprobs"] = {str(row): values.clone() for row, values in old.items()}
        return Checkpoint(tensors, state | {"started": self.started.capture()}, self.started.record.tables())

    def start_batch(self, collected: Collected, policy_version: int) -> StartedBatch:
        scored, config = collected.scored, self.config
        plans = [collected.method.weigh(update) for update in updates(scored, config.update.updates_per_batch)]
        record = BatchRecord(self.progress.batch, collected.rollouts, collected.problems, scored, self.grader.decode)
        return StartedBatch(collected, plans, config.update.epochs_per_batch, policy_version, record)

    def resume_batch(self, checkpoint: Checkpoint) -> StartedBatch:
        found, first = checkpoint.state["started"], self.progress.next_problem - checkpoint.state["started"]["problems"]
        rollouts = read_rollouts(checkpoint.tables, self.collector.sampling.max_new_tokens)
        problems = tuple(self.collector.problem_at(first + i) for i in range(found["problems"]))
        method = self.method.with_state(found["method_state"])
        collected = Collected(rollouts, problems, method, found["extra_batches"])
        started = self.start_batch(collected, found["policy_version"])
        segments, device = checkpoint.tables["segments"], self.learner.policy.device
        started.record.updates = {name: segments[name].to_pylist() for name in UPDATES}
        started.facts, started.seconds, started.num_done = found["facts"], found["seconds"], found["done"]
        if old := checkpoint.tensors.get("old_logprobs"):
            started.old_logprobs = {int(row): values.to(device) for row, values in old.items()}
        return started

    def resume(self, log: Callable[[str], None]) -> None:
        """Continue from the newest checkpoint that is whole, or from the start where there is none yet."""
        self.run.write_changes()
        for change in self.run.changes:
            log(f"resumed with {change}")
        found = load_newest(self.run.checkpoints)
        if found is None:
            self.run.truncate_logs({})
            self.run.drop_records(0)
            return log("no checkpoint was made yet: the run starts again")
        for loss in self.restore(found[1]):
            log(f"warning: {loss}")
        log(f"resumed from {found[0].name}")

    def restore(self, checkpoint: Checkpoint) -> list[str]:
        """Go back to a checkpoint; return the losses of the logs. Raises ValueError for another configuration or format."""
        state, tensors = checkpoint.state, checkpoint.tensors
        if state.get("format") != FORMAT:
            raise ValueError(
                f"out={self.run.folder}: its checkpoint has format {state.get('format', 1)}, and this version of fairlen goes on "
                f"from format {FORMAT}: go on with the version that wrote it, or start the run again in another folder (--out)"
            )
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
        self.run.drop_records(progress.batch)
        restore_streams(state["streams"])
        self.guard.num_skipped, self.guard.num_in_a_row = state["skipped"]
        self.signal.watch.restore(state.get("watch", {}))
        given, found = state["max_tokens_per_microbatch"]
        if given == self.config.update.max_tokens_per_microbatch:  # else the user has chosen another one
            learner.max_tokens = found
        if "started" in state:
            self.started = self.resume_batch(checkpoint)
        return lost
