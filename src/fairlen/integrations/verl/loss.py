"""A method's loss in the workers of verl, in the place of verl's own: the plain sum, times the ranks that verl averages over.

The trainer sends it before the updates of each rollout batch, so that the method's state travels with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.utils.padding import no_padding_2_padding

from fairlen.integrations.rows import find_trained
from fairlen.integrations.verl.settings import read_method
from fairlen.loop.tally import count, measure_sequences, sum_counts
from fairlen.loop.update import judge_update
from fairlen.methods.method import PLANNED, Method
from fairlen.methods.stages.micro import Micro, Outputs

COLUMN = "plan_"
"""Begins the names of a plan's columns in a batch."""
COUNTS = "fairlen_counts"
"""Among verl's metrics: (update of the rollout batch, counts, rows and what is recorded of them) of each micro-batch and rank."""


def to_padded(data: Any, name: str) -> Tensor:
    """A column of tokens as [N, L]; as it is where it has no rows of unequal length."""
    column = data[name]
    return column.to_padded_tensor(0.0) if column.is_nested else column


def read_plan(data: Any, name: str) -> Tensor:
    """A column of the plan, a number for each sequence, row after row; verl has rows of several numbers as unequal ones."""
    column = data[COLUMN + name]
    return torch.cat(column.unbind()) if column.is_nested else column.flatten()


class FairLoss:
    """The loss function of a worker, from one rollout batch to the next."""

    def __init__(self, chosen: Mapping[str, Any], state: Mapping[str, float], is_fresh: bool) -> None:
        """`chosen` is `algorithm.fairlen`; `is_fresh`: old log-probs are by the weights that the first update starts from."""
        self.chosen, self.state, self.is_fresh, self.num_done = chosen, state, is_fresh, 0
        self.counts: list[Mapping[str, Tensor]] = []
        """Of the micro-batches of an update, on this rank."""

    @cached_property
    def method(self) -> Method:
        """Made where it is used: a stage from a file is not known to other processes by its class."""
        return read_method(self.chosen).with_state(self.state)

    def __call__(
        self, model_output: Mapping[str, Tensor], data: Any, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, Any]]:
        logprobs = no_padding_2_padding(model_output["log_probs"], data)
        told = read_plan(data, "trains"), read_plan(data, "length")
        mask, length = find_trained(to_padded(data, "response_mask"), *told)
        outputs = Outputs(logprobs[mask], read_entropy(model_output, data, logprobs)[mask])
        micro = self.read_micro(data, mask, length, logprobs.dtype)
        loss = self.method.loss(outputs, micro)
        self.counts.append(count(self.method, outputs, micro, loss))
        counts = sum_counts(self.counts[-1:])
        rows = read_plan(data, "row")[length > 0].double()
        measured = torch.cat([rows[None], measure_sequences(outputs, micro, loss.token)]).cpu().numpy()
        return loss.total * data["dp_size"], {COUNTS: (self.num_done, counts, measured)}

    def read_micro(self, data: Any, mask: Tensor, length: Tensor, dtype: torch.dtype) -> Micro:
        """The sequences of a micro-batch that train: `mask` [N, L] has their tokens, `length` how many each, row after row."""
        others = {"rollout_logprobs": "rollout_log_probs", "ref_logprobs": "ref_log_prob"}
        return Micro.of(
            length,
            **{name: read_plan(data, name).to(dtype) for name in PLANNED},
            old_logprobs=to_padded(data, "old_log_probs")[mask],
            **{field: to_padded(data, name)[mask] for field, name in others.items() if name in data},
            is_on_policy=self.is_fresh,
        )

    def finish_update(self, gradient_norm: Any, group: Any) -> None:
        """Move the state by the sums of all ranks where verl made the step, as the trainer does, which counts skipped ones."""
        finished = judge_update(self.method, self.counts, gradient_norm, group)
        self.method, self.counts, self.num_done = finished.method, [], self.num_done + 1
        self.is_fresh = self.is_fresh and not finished.may_step


def read_entropy(model_output: Mapping[str, Tensor], data: Any, logprobs: Tensor) -> Tensor:
    """The present policy's where a term needs it, or the old policy's, which verl has mostly computed anyway, or nan."""
    if "entropy" in model_output:
        return no_padding_2_padding(model_output["entropy"], data)
    return to_padded(data, "entropy") if "entropy" in data else torch.full_like(logprobs, torch.nan)


def finish_after_steps(engine: Any, find_loss: Callable[[], Any]) -> None:
    """Have a method's loss told the norm of the gradient after each step of an engine, which skips one that is not finite."""
    step = engine.optimizer_step

    def step_and_finish() -> Any:
        norm, loss = step(), find_loss()
        if isinstance(loss, FairLoss):
            loss.finish_update(norm, engine.get_data_parallel_group())
        return norm

    engine.optimizer_step = step_and_finish


class FairActor(TrainingWorker):
    """verl's training worker, whose loss may be a method's."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        finish_after_steps(self.engine, lambda: self.loss_fn)


class FairWorker(ActorRolloutRefWorker):
    """verl's worker of actor, rollout and reference."""

    actor_worker_cls = FairActor


class FairDetachWorker(DetachActorWorker):
    """The same under verl's asynchronous trainer with rollout servers of their own."""

    actor_worker_cls = FairActor
