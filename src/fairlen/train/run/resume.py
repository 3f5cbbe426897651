"""A trainer as a checkpoint, and back: what it takes to go on as if nothing had happened.

Weights, the optimizer's moments, the schedule, the method's state, random streams, the position in the training stream, the
rollout batch that is being learned from, counters, sizes of the files that grow, and which configuration it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING

from fairlen.engine import Engine
from fairlen.train.pending import capture_findings, resume_findings, resume_pending
from fairlen.train.run.checkpoint import Checkpoint, load_newest
from fairlen.train.run.snapshot import (
    capture_moments,
    capture_streams,
    capture_weights,
    restore_moments,
    restore_streams,
    restore_weights,
)

if TYPE_CHECKING:
    from fairlen.train.loop import Trainer


def capture(trainer: Trainer) -> Checkpoint:
    """The trainer between two updates."""
    learner, pending = trainer.learner, trainer.pending
    (streams, numbers), engine_steps = trainer.undone or (capture_streams(), trainer.engine.stats.num_steps)
    tensors = {
        "model": capture_weights(learner.policy.model),
        "optimizer": capture_moments(learner.policy.model, learner.optimizer),
        "streams": streams,
    }
    state = vars(trainer.progress) | {
        "configuration": trainer.run.configuration,
        "method_state": trainer.method.state,
        "schedule": learner.schedule.state_dict(),
        "sizes": trainer.run.log_sizes(),
        "streams": numbers,
        "engine_steps": engine_steps,
        "skipped": [trainer.guard.num_skipped, trainer.guard.num_in_a_row],
        "max_tokens_per_microbatch": [trainer.config.max_tokens_per_microbatch, learner.max_tokens],
        "findings": capture_findings(trainer.grader.findings),
    }
    if pending is not None:
        tensors["rollouts"], state["pending"] = pending.capture()
    return Checkpoint(tensors, state)


def go_on(trainer: Trainer, tell: Callable[[str], None]) -> None:
    """From the newest checkpoint that is whole; from the start where the run ended before its first one."""
    run, found = trainer.run, load_newest(trainer.run.checkpoints)
    for change in run.changes:
        tell(f"resumed with {change}")
    if found is None:
        run.truncate_logs({})
        return tell("no checkpoint was made yet: the run begins again")
    for loss in restore(trainer, found[1]):
        tell(f"warning: {loss}")
    tell(f"goes on from {found[0].name}")


def restore(trainer: Trainer, checkpoint: Checkpoint) -> list[str]:
    """Goes back to where a checkpoint was made; returns what the logs have lost since. Raises ValueError for a checkpoint of
    another configuration."""
    state, tensors = checkpoint.state, checkpoint.tensors
    mine = trainer.run.configuration
    if state.get("configuration", mine) != mine:
        raise ValueError(
            f"out={trainer.run.folder}: its checkpoint is of configuration {state['configuration']}, and these settings are "
            f"{mine}: the checkpoints of another run were put there; give the folder that they are from"
        )
    learner, progress = trainer.learner, trainer.progress
    restore_weights(learner.policy.model, tensors["model"])
    restore_moments(learner.policy.model, learner.optimizer, tensors["optimizer"])
    learner.restore_schedule(state["schedule"])
    trainer.method = trainer.method.with_state(state["method_state"])
    for name in (f.name for f in fields(progress) if f.name in state):
        setattr(progress, name, state[name])
    progress.evaluated = state.get("evaluated", progress.batch)
    lost = trainer.run.truncate_logs(state["sizes"])
    if isinstance(trainer.engine, Engine):
        trainer.engine.resume(state.get("engine_steps", 0))
    trainer.engine.refresh(progress.policy_version)
    if "streams" in tensors:
        restore_streams(tensors["streams"], state["streams"])
        restore_counters(trainer, checkpoint)
    if "pending" in state:
        restore_pending(trainer, checkpoint)
    return lost


def restore_counters(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """What was skipped so far, and the size of micro-batches that memory was found to have room for."""
    state = checkpoint.state
    trainer.guard.num_skipped, trainer.guard.num_in_a_row = state["skipped"]
    given, found = state["max_tokens_per_microbatch"]
    if given == trainer.config.max_tokens_per_microbatch:  # else the user has chosen anew
        trainer.learner.max_tokens = found


def restore_pending(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """The rollout batch in the middle of its updates; its problems come before the next one."""
    found, config = checkpoint.state["pending"], trainer.config
    first = trainer.progress.next_problem - found["problems"]
    trainer.pending = resume_pending(
        checkpoint.tensors["rollouts"],
        found,
        trainer.method,
        lambda i: trainer.collector.problem_at(first + i),
        config.updates_per_batch,
        config.epochs_per_batch,
        trainer.learner.policy.device,
    )
    trainer.grader.findings = resume_findings(checkpoint.state["findings"])
