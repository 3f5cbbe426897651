"""The loop: collect, score, weigh, update, log. It knows no method by name.

rollouts = collect(...)                    responses and the segments to train
scored = method.score(rollouts)            numpy, once per rollout batch
for update in updates(scored): plan = method.weigh(update); learner.step(method, rollouts, plan)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from fairlen.batch import Plan, Rollouts
from fairlen.evaluate.run import Evaluation, evaluate
from fairlen.extend import RolloutEngine
from fairlen.method import Method, Scored, updates
from fairlen.tasks.task import Problem
from fairlen.train.checkpoint import (
    Checkpoint,
    capture_moments,
    capture_weights,
    keep_newest,
    restore_moments,
    restore_weights,
    save_checkpoint,
)
from fairlen.train.collect import Collected, Collector
from fairlen.train.config import TrainConfig
from fairlen.train.guard import Guard, find_non_finite
from fairlen.train.judge import Judge
from fairlen.train.metrics import rollout_metrics, update_metrics
from fairlen.train.records import BatchRecord
from fairlen.train.run import Run
from fairlen.train.step import Learner, StepResult

EVALUATION_SEED = 0x5EED
KEPT_CHECKPOINTS = 2


@dataclass
class Progress:
    """Where a run is; all that a checkpoint needs besides weights, moments and the method's state."""

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


@dataclass
class Trainer:
    """Everything a run is made of."""

    config: TrainConfig
    run: Run
    method: Method
    learner: Learner
    engine: RolloutEngine
    collector: Collector
    judge: Judge
    held_out: tuple[Problem, ...]
    guard: Guard
    engine_is_exact: bool
    show: Callable[[dict[str, Any]], None]
    """Is told of every object that is logged."""
    progress: Progress = field(default_factory=Progress)

    async def train(self) -> None:
        """Runs until the last rollout batch, or until a limit is reached."""
        while not self.is_done:
            start = time.perf_counter()
            await self.collect_and_learn()
            self.progress.seconds += time.perf_counter() - start
            self.progress.batch += 1
            if is_due(self.config.eval_every, self.progress.batch) and not self.is_done:
                await self.evaluate()
            if is_due(self.config.save_every, self.progress.batch):
                self.save()

    @property
    def is_done(self) -> bool:
        """Whether all rollout batches are done, or a limit on updates, tokens or time is reached."""
        config, progress = self.config, self.progress
        limits = (
            (config.max_updates, progress.update),
            (config.max_generated, progress.generated),
            (config.max_seconds, progress.seconds),
        )
        return progress.batch >= config.rollout_batches or any(0 < limit <= done for limit, done in limits)

    async def collect_and_learn(self) -> None:
        """One rollout batch and its updates."""
        progress, start, verifying = self.progress, time.perf_counter(), self.judge.seconds
        try:
            collected = await self.collector(
                self.method, progress.batch, progress.next_problem, progress.policy_version
            )
        except FloatingPointError:
            self.guard.allows("rollout_logprobs", False, progress.update, ())
            return self.log({"update/skipped": "rollout_logprobs"})
        progress.next_problem += len(collected.problems)
        progress.generated += sum(response.length - response.inherited for response in collected.rollouts.responses)
        self.learn(collected, {"rollout": time.perf_counter() - start, "verify": self.judge.seconds - verifying})

    def learn(self, collected: Collected, seconds: dict[str, float]) -> None:
        """All updates of one rollout batch."""
        rollouts = collected.rollouts
        broken = find_non_finite(rollouts)
        if not self.guard.allows(broken or "outcome", broken is None, self.progress.update, rollouts.responses):
            self.judge.findings.clear()
            return self.log({"update/skipped": broken})
        start = time.perf_counter()
        scored = self.method.score(rollouts)
        plans = [self.method.weigh(update) for update in updates(scored, self.config.updates_per_batch)]
        seconds["plan"] = time.perf_counter() - start
        record = BatchRecord(rollouts, collected.problems, scored)
        common = rollout_metrics(collected, scored, self.method.sampling)
        if not plans:
            self.log(common | {"update/skipped": describe_nothing(scored)})
        planned = plans * self.config.epochs_per_batch
        old_logprobs = self.old_logprobs(rollouts, plans) if len(planned) > 1 else {}
        version = self.progress.policy_version
        for plan in planned:
            result = self.learner.step(
                self.method, rollouts, plan, old_logprobs, is_on_policy=version == self.progress.policy_version
            )
            if not self.guard.allows(result.quantity, not result.quantity, self.progress.update, rollouts.responses):
                self.log(common | {"update/skipped": result.quantity})
                continue
            self.count_update(result)
            record.add_update(self.progress.update, plan, result)
            self.log(
                common
                | update_metrics(plan, result, self.learner.rate)
                | self.describe_update(seconds | result.seconds)
            )
            seconds = {}  # the collection's time belongs to its first update
        record.write(self.run.records, self.progress.batch, self.judge)

    def old_logprobs(self, rollouts: Rollouts, plans: list[Plan]) -> dict[int, Tensor]:
        """The trainer's log-probs before the first update; none where the engine's are the same."""
        found: dict[int, Tensor] = {}
        if not self.engine_is_exact:
            for plan in plans:
                found |= self.learner.old_logprobs(rollouts, plan)
        return found

    def count_update(self, result: StepResult) -> None:
        """The weights have changed: the method learns, counters move, the engine forgets keys and values."""
        self.guard.passed()
        self.method = self.method.update(result.sums)
        self.progress.update += 1
        self.progress.policy_version += 1
        self.engine.refresh(self.progress.policy_version)

    def describe_update(self, seconds: dict[str, float]) -> dict[str, float]:
        """The method's state and the times of an update."""
        state = {f"state/{name}": value for name, value in self.method.state.items()}
        return state | {f"time/{name}": value for name, value in seconds.items()}

    def log(self, metrics: dict[str, Any]) -> None:
        """One object, with where the run is."""
        where = {"update": self.progress.update, "rollout_batch": self.progress.batch}
        health = {"engine/occupancy": self.engine.stats.occupancy, "updates/skipped": self.guard.num_skipped}
        entry = where | metrics | health
        self.run.log(entry)
        self.show(entry)

    async def evaluate(self) -> Evaluation:
        """Held-out accuracy and lengths; keeps the model if it is the best so far."""
        start = time.perf_counter()
        sampling = self.collector.sampling
        found = await evaluate(
            self.engine.extend, self.judge, self.held_out, self.config.eval_samples, sampling, EVALUATION_SEED
        )
        self.judge.findings.clear()
        spent = {"tokens/generated_total": self.progress.generated, "time/training": self.progress.seconds}
        self.log(found.metrics() | spent | {"time/evaluation": time.perf_counter() - start})
        self.run.log_evaluation(self.progress.update, found)
        if found.accuracy.value > self.progress.best_accuracy:
            self.progress.best_accuracy = found.accuracy.value
            self.save_model("best")
        return found

    def save_model(self, name: Literal["model", "best"]) -> None:
        """The model and tokenizer in Hugging Face format, and the adapters alone where they are what is trained."""
        policy, folder = self.learner.policy, self.run.folder
        policy.save(folder / name)
        if policy.has_adapters:
            adapters = {"model": "adapter", "best": "best-adapter"}[name]
            policy.save_adapters(folder / adapters, self.config.model)

    def save(self) -> None:
        """A checkpoint from which the run goes on as if it had never stopped."""
        model, optimizer = self.learner.policy.model, self.learner.optimizer
        state = vars(self.progress) | {
            "method_state": self.method.state,
            "schedule": self.learner.schedule.state_dict(),
            "sizes": self.run.log_sizes(),
        }
        checkpoint = Checkpoint(capture_weights(model), capture_moments(model, optimizer), state)
        save_checkpoint(self.run.checkpoints, f"batch-{self.progress.batch:06d}", checkpoint)
        keep_newest(self.run.checkpoints, KEPT_CHECKPOINTS)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Goes back to where a checkpoint was made."""
        state = dict(checkpoint.state)
        restore_weights(self.learner.policy.model, checkpoint.weights)
        restore_moments(self.learner.policy.model, self.learner.optimizer, checkpoint.moments)
        self.learner.restore_schedule(state.pop("schedule"))
        self.method = self.method.with_state(state.pop("method_state"))
        self.run.truncate_logs(state.pop("sizes"))
        self.progress = Progress(**state)
        self.engine.refresh(self.progress.policy_version)


def describe_nothing(scored: Scored) -> str:
    """Why there is nothing to train on."""
    if not len(scored.segments):
        return "no pair was formed: the budget cut both tracks of every stream, or both wrote the same"
    return "every pair was worth the same" if scored.kept.any() else "no prompt was kept"


def is_due(every: int, number: int) -> bool:
    """Whether something that happens every so often happens now; 0 is never."""
    return every > 0 and number % every == 0
