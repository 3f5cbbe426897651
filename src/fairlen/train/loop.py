"""The loop: collect, score, weigh, update, log. Its position is in `RunState`, so that it can stop between any two updates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError

from fairlen.batch import Plan
from fairlen.console import Pace, warn
from fairlen.engine.device import give_back_memory
from fairlen.evaluate.run import Evaluation, evaluate
from fairlen.files.folders import replace_folder
from fairlen.loop.learning_signal import NOTE
from fairlen.loop.tally import state_metrics
from fairlen.loop.update import explain
from fairlen.methods.method import Method, Scored, Update, updates
from fairlen.policy.lora import save_adapters
from fairlen.rollouts import Rollouts
from fairlen.settings import LARGE
from fairlen.tasks.task import NO_FAILURES, Problem
from fairlen.train.collect import Collected
from fairlen.train.records import count_generated, describe_update, rollout_metrics
from fairlen.train.run.checkpoint import Archive, capture_streams
from fairlen.train.run.faults import Interrupted, Interruption, find_non_finite, require_finite
from fairlen.train.run.trackers import Trackers
from fairlen.train.state import RunState, StartedBatch
from fairlen.train.step import naming_shortage

EVALUATION_SEED = 0x5EED


@dataclass(kw_only=True)
class Trainer(RunState):
    held_out: tuple[Problem, ...]
    engine_is_exact: bool
    show: Callable[[dict[str, Any]], None]
    first: Evaluation | None = None  # of the weights before any update
    showing: Callable[[object], AbstractContextManager[object]] = nullcontext
    """Shows a text within, of work that goes on."""
    archive: Archive
    interruption: Interruption = field(default_factory=Interruption)
    trackers: Trackers = field(default_factory=lambda: Trackers({}))

    async def train(self) -> Evaluation:
        """Run to the last rollout batch or a limit; return the last evaluation. Raises Interrupted after a checkpoint."""
        try:
            while self.started is not None or not self.progress.is_done(self.config):
                self.interruption.check()
                if self.started is None and self.progress.needs_evaluation(self.config):
                    await self.evaluate()
                start = time.perf_counter()
                await self.step()
                self.progress.seconds += time.perf_counter() - start
                is_new = self.started is None or self.started.num_done > 0
                if is_new and self.progress.needs_checkpoint(self.config, is_within_batch=self.started is not None):
                    self.save()
            return await self.evaluate()
        except Interrupted:
            self.save()
            raise

    async def step(self) -> None:
        if self.started is None:
            await self.collect()
        else:
            with self.cancellable():
                self.learn(self.started)
        if self.started is not None and self.started.num_done == self.started.num_updates:
            with self.run.journal.attempt(self.run.records):
                self.started.record.write(self.run.records)
            self.end_batch()

    def end_batch(self) -> None:
        self.started = None
        self.progress.batch += 1

    async def collect(self) -> None:
        """Collect the next rollout batch. Responses that an interruption cancels are generated again, the same."""
        progress, start, before, verifying = self.progress, time.perf_counter(), self.engine.stats, self.grader.seconds
        number = self.config.sampling.prompts_per_batch * self.method.sampling.num_tracks
        try:
            with self.generating(f"rollout batch {progress.batch + 1}", number):
                work = self.collector(self.method, progress.batch, progress.next_problem, progress.update)
                collected = await self.interruption.during(work)
        except FloatingPointError:
            self.guard.allows("rollout_logprobs", progress.update, ())
            self.log({"update/skipped": "rollout_logprobs"})
            return self.end_batch()
        progress.next_problem += len(collected.problems)
        progress.generated += count_generated(collected.rollouts.responses)
        self.engine.sleep()
        self.give_back()
        facts, seconds = self.engine.stats.since(before).metrics(), time.perf_counter() - start
        self.plan(collected, facts, {"rollout": seconds, "verify": self.grader.seconds - verifying})

    def plan(self, collected: Collected, facts: dict[str, float], seconds: dict[str, float]) -> None:
        """Plan all updates of a rollout batch, or give it up where its numbers are not finite; warn where nothing trains."""
        rollouts = collected.rollouts
        broken = find_non_finite(rollouts)
        cause = collected.explain_outcome() if broken == "outcome" else ""
        if not self.guard.allows(broken, self.progress.update, rollouts.responses, cause):
            self.log(facts | name_times(seconds) | {"update/skipped": broken})
            return self.end_batch()
        start = time.perf_counter()
        self.started = started = self.start_batch(collected, self.progress.update)
        started.facts, started.seconds = facts, seconds | {"plan": time.perf_counter() - start}
        folded = np.concatenate([np.zeros(0), *(plan.weight * plan.advantage for plan in started.plans)])
        table, failures = rollouts.response_table, self.grader.failures
        for warning in self.signal.look_at(
            self.progress.batch + 1, table, folded, collected.method, started.num_updates, failures
        ):
            warn(warning, "" if warning.startswith(NOTE) else "fairlen: ")
            self.trackers.alert(warning, self.progress.update)
        if not started.plans:
            self.log(self.describe_batch(started) | {"update/skipped": describe_nothing(collected.scored)})

    def learn(self, started: StartedBatch) -> None:
        rollouts, plan = started.collected.rollouts, started.plans[started.num_done % len(started.plans)]
        if started.old_logprobs is None:
            started.old_logprobs = self.find_old_logprobs(started)
        if self.method.recounts and started.old_logprobs:
            made = [*updates(started.collected.scored, self.config.update.updates_per_batch)]
            plan = recount(self.method, rollouts, made[started.num_done % len(made)], started.old_logprobs)
        if not len(plan):
            started.num_done += 1
            return self.log(self.describe_batch(started) | {"update/skipped": "the correction kept no sequence"})
        on_policy = self.progress.update == started.policy_version  # versions decide: log-probs are rounded
        self.learner.num_done = 0
        pace = Pace(f"update {self.progress.update + 1}", len(plan), lambda: self.learner.num_done, "sequences")
        with self.showing(pace):
            result = self.learner.step(self.method, rollouts, plan, started.old_logprobs, is_on_policy=on_policy)
        self.learner.optimizer.zero_grad(set_to_none=True)  # its memory is the engine's
        self.give_back()
        started.num_done += 1
        common = self.describe_batch(started)
        cause = explain(result.quantity, self.method) if result.quantity else ""
        if not self.guard.allows(result.quantity, self.progress.update, rollouts.responses, cause):
            return self.log(common | {"update/skipped": result.quantity})
        self.guard.passed()
        self.method = result.method
        self.progress.update += 1
        started.record.add_update(self.progress.update, plan.rows, plan.weight, *result.measured)
        rate = float(self.learner.schedule.get_last_lr()[0])
        limit = {"memory/max_tokens_per_microbatch": self.learner.max_tokens}
        times = name_times(result.seconds)
        self.log(common | describe_update(result, rate) | state_metrics(self.method) | times | limit)

    def give_back(self) -> None:
        """Give back freed memory between phases, in which a small model would only wait for its pages."""
        if self.learner.policy.model.num_parameters() >= LARGE:
            give_back_memory()

    def find_old_logprobs(self, started: StartedBatch) -> dict[int, Any]:
        """The trainer's log-probs before the first update; none where the engine's are the same, or unused."""
        if self.engine_is_exact or (started.num_updates == 1 and not self.method.recounts):
            return {}
        found = (self.learner.old_logprobs(started.collected.rollouts, plan) for plan in started.plans)
        return {row: values for part in found for row, values in part.items()}

    def describe_batch(self, started: StartedBatch) -> dict[str, float]:
        found, facts = started.collected, started.facts | name_times(started.seconds)
        started.seconds = {}
        return rollout_metrics(found.rollouts, found.scored, self.method, found.num_extra_batches) | facts

    @contextmanager
    def generating(self, name: str, number: int) -> Iterator[None]:
        """Generate and grade a number of responses within, by the present weights: shown, watched, cancellable."""
        self.grader.failures = NO_FAILURES
        self.engine.refresh(self.progress.update)  # keys and values kept from before a resume are not there
        pace = Pace(
            name, number, lambda: self.grader.num_graded, num_tokens=lambda: self.engine.stats.num_generated_tokens
        )
        with (
            naming_shortage(name),
            self.cancellable(),
            self.showing(pace),
            self.grader.watchdog.watch(name, lambda: (self.engine.stats.num_generated_tokens, self.grader.num_graded)),
        ):
            yield

    def log(self, metrics: dict[str, Any]) -> None:
        where = {"update": self.progress.update, "rollout_batch": self.progress.batch}
        entry = where | metrics | {"updates/skipped": self.guard.num_skipped}
        self.run.log(entry)
        with self.run.journal.attempt(Path("stdout")):
            self.show(entry)
        self.trackers.log(entry)

    async def evaluate(self) -> Evaluation:
        start, before = time.perf_counter(), self.engine.stats
        sampling, samples = replace(self.collector.sampling, with_support=False), self.config.run.samples
        with self.guard.evaluating(), self.generating("evaluation", len(self.held_out) * samples):
            work = evaluate(self.collector.extend, self.grader, self.held_out, samples, sampling, EVALUATION_SEED)
            found = await self.interruption.during(work)
        spent = {"tokens/generated_total": self.progress.generated, "time/training": self.progress.seconds}
        facts = self.engine.stats.since(before).metrics()
        self.log(found.metrics() | facts | spent | {"time/evaluation": time.perf_counter() - start})
        self.run.log_evaluation(self.progress.update, found)
        if self.progress.update == 0:
            self.first = self.first or found
        if self.progress.batch == 0 and (reasons := self.grader.failures.explain(self.signal.remedies.length)):
            warn(f"held out: {reasons}")
        if found.accuracy.value > self.progress.best_accuracy:
            self.progress.best_accuracy = found.accuracy.value
            try:
                self.save_model("best")
            except (OSError, SafetensorError) as error:
                warn(f"{self.run.folder}/best: {error}; the best model so far was not saved, training goes on")
        self.progress.evaluated = self.progress.batch
        return found

    @contextmanager
    def cancellable(self) -> Iterator[None]:
        """Let an interruption cancel the work within without a trace in a checkpoint."""
        before = capture_streams()
        try:
            yield
        except Interrupted:
            self.rollback = before
            raise

    def save_model(self, name: Literal["model", "best"]) -> None:
        policy, folder = self.learner.policy, self.run.folder
        replace_folder(folder / name, policy.save)
        if policy.has_adapters:
            adapters = folder / {"model": "adapter", "best": "best-adapter"}[name]
            replace_folder(adapters, lambda path: save_adapters(policy.model, path, self.config.model.name))

    def save(self) -> bool:
        """Write a checkpoint to its end, whatever signal comes; False where that failed."""
        checkpoint = self.capture()
        require_finite(checkpoint.tensors)
        progress, started = self.progress, self.started
        done = 2 + started.num_done if started else int(progress.evaluated == progress.batch)
        return self.archive.save(progress.batch, progress.update, checkpoint, done)


def recount(method: Method, rollouts: Rollouts, update: Update, old_logprobs: Mapping[int, Any]) -> Plan:
    """Return the plan of an update whose denominators count the tokens that the correction keeps."""
    correction: Any = method.correction
    spans = [rollouts.segments[row] for row in update.rows]
    told = np.concatenate([rollouts.responses[one.response].logprobs_of(one.start, one.stop) for one in spans])
    old = torch.cat([old_logprobs[row] for row in update.rows.tolist()])
    return method.weigh(update, correction.count(update.segments.length, old, torch.from_numpy(told).to(old)))


def name_times(seconds: Mapping[str, float]) -> dict[str, float]:
    return {f"time/{name}": value for name, value in seconds.items()}


def describe_nothing(scored: Scored) -> str:
    if not len(scored.segments):
        return "no pair was formed: both tracks of every stream were truncated, or both wrote the same"
    return "every pair was worth the same" if scored.selected.any() else "no prompt was selected"
