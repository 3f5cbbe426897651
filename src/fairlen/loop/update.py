"""The end of an update in any training loop: whether the optimizer may step, and the method after the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor

from fairlen.console import warn
from fairlen.hangs import TrainingStopped
from fairlen.loop.tally import BROKEN, find_broken, observed, sum_counts, update_metrics
from fairlen.methods.description import list_stages
from fairlen.methods.method import Method
from fairlen.methods.rows import brief, check_method

MAX_IN_A_ROW = 3
"""Updates that may be skipped one after the other; the last of them ends the run."""
LOOK_AT = {
    "outcome": "a reward function returned it: look at the response's text in the dump",
    "rollout_logprobs": "the engine's log-prob of a token is missing, masked (NaN) or infinite: have the engine return one for "
    "each token; if it does, its weights may be damaged",
    "advantage": "a reward or advantage stage of the method divided by zero or overflowed: look at the outcomes in the dump",
    "logprobs": "the trainer's forward pass: the weights may be damaged, or the learning rate too high",
    "old_logprobs": "the trainer's forward pass before the first update: the weights may be damaged",
    "ref_logprobs": "the reference model's forward pass: its weights are those that the run started from",
    "loss": "the surrogate or a term overflowed: look at the log ratios; fewer updates per rollout batch keep them small",
    "gradient": "the backward pass overflowed: lower the learning rate, or train in float32",
    "state": "a stage of the method learned it: its `observe` or `update` divided by zero or overflowed",
    "weights": "the optimizer's step overflowed, or its moments were damaged: lower the learning rate, and go on from the last "
    "checkpoint with --resume",
}
"""Quantities that may be not finite, and where to look."""
MAKERS = {"advantage": ("reward", "advantage", "aggregation"), "loss": ("surrogate", "terms", "correction")}
"""Choices whose stages make a quantity."""


class NonFiniteError(TrainingStopped):
    """Training was given up after several non-finite updates in a row, or after one that damaged the weights."""


@dataclass
class Skips:
    """Updates that were skipped because a number was not finite; one object a run, which `finish_update` counts in."""

    num_skipped: int = 0  # so far
    num_in_a_row: int = 0  # since the last update that was made
    with_loss_scaler: bool = False
    """Gradients that overflow are how a loss scaler (of float16) finds its scale: they do not end the run."""
    cause: str = ""  # of the last one

    def add(self, quantity: str, cause: str = "") -> None:
        """Count one. Raises NonFiniteError at the third in a row, or at once where the weights are damaged."""
        self.num_skipped += 1
        self.cause = f"{quantity} was not finite: {cause or LOOK_AT[quantity]}"
        self.num_in_a_row += not (self.with_loss_scaler and quantity == "gradient")
        is_fatal = quantity == "weights"
        if self.num_in_a_row >= MAX_IN_A_ROW or is_fatal:
            times = "one update" if is_fatal else f"{self.num_in_a_row} updates in a row"
            raise NonFiniteError(self.cause.replace("finite:", f"finite in {times}:", 1))

    def conclude(self, num_made: int) -> None:
        """Raise NonFiniteError at the end of a run of which every update was skipped."""
        if self.num_in_a_row and not num_made:
            raise NonFiniteError(f"no update was made, and {self.num_skipped} were skipped: {self.cause}")

    def passed(self) -> None:
        self.num_in_a_row = 0


@dataclass(frozen=True)
class Finished:
    """The result of an update: the method after it, its metrics, and whether the optimizer may step."""

    method: Method  # with its state moved, or as it was before a skipped update
    metrics: dict[str, Any]
    """By the names of docs/metrics.md; of a skipped update `update/skipped` and `updates/skipped` alone."""
    broken: str = ""  # the quantity that was not finite, a key of LOOK_AT; empty where the update is made

    @property
    def may_step(self) -> bool:
        """Whether the optimizer may step. If not, drop the gradients and leave weights, moments and schedule as they are."""
        return not self.broken


def finish_update(
    method: Method, counts: Sequence[Mapping[str, Any]], gradient_norm: Tensor | float, skips: Skips, group: Any = None
) -> Finished:
    """Decide whether the optimizer may step, and move the method's state if so. Call it before the step, on every rank.

    `counts` are those of this rank's micro-batches, at least one; `gradient_norm` is that of the whole gradient, unscaled
    (`clip_grad_norm_` returns it), and `skips` the run's.
    An update with a log-prob (new, old, reference, or of an engine that a correction reads), a loss, a gradient or a state that
    is NaN or infinite is skipped: its counts are dropped, a line says which it was, and the third in a row raises
    NonFiniteError. All ranks decide the same: with torch.distributed initialised this is one gather of about thirty numbers
    (over `group`), and the one wait for the device.
    """
    check_method(method)
    refuse_wrong(counts, gradient_norm, skips)
    found = judge_update(method, counts, gradient_norm, group)
    if found.may_step:
        skips.passed()
    else:
        skips.add(found.broken, explain(found.broken, method))
        if gather_over(group) is None or distributed.get_rank() == 0:
            warn(f"update skipped, {skips.num_skipped} so far: {skips.cause}")
        found.metrics["update/skipped"] = found.broken
    found.metrics["updates/skipped"] = float(skips.num_skipped)
    return found


def explain(quantity: str, method: Method) -> str:
    """Return where to look, with the stages that make a quantity."""
    makers = f" ({list_stages(method, MAKERS[quantity])})" if quantity in MAKERS else ""
    return LOOK_AT[quantity] + makers


def refuse_wrong(counts: Any, gradient_norm: Any, skips: Any) -> None:
    """Raise TypeError for arguments of `finish_update` that are not what it asks for."""
    if not isinstance(skips, Skips):
        raise TypeError(f"skips={brief(skips)}: give the run's fairlen.Skips(), made once, before its first update")
    if not isinstance(counts, list | tuple):
        raise TypeError(f"counts={brief(counts)}: give a list with the `counts` of every loss of policy_loss")
    for place, one in enumerate(counts):
        if not isinstance(one, Mapping):
            raise TypeError(f"counts[{place}]={brief(one)}: give the `counts` of what policy_loss returned")
    is_number = isinstance(gradient_norm, Real) or (isinstance(gradient_norm, Tensor) and gradient_norm.numel() == 1)
    if not is_number:
        raise TypeError(
            f"gradient_norm={brief(gradient_norm)}: give the norm of the whole gradient, which clip_grad_norm_ returns"
        )


def judge_update(
    method: Method, counts: Sequence[Mapping[str, Any]], gradient_norm: Tensor | float, group: Any = None
) -> Finished:
    """Return the same, for a caller that counts skipped updates itself."""
    if not counts:
        raise ValueError("counts is empty: every rank gives those of at least one micro-batch, of weight 0 if need be")
    norm = torch.as_tensor(gradient_norm)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    numbers = sum_counts([*counts, {BROKEN + "gradient": ~norm.detach().isfinite()}], gather_over(group))
    if broken := find_broken(numbers):
        return Finished(method, {}, broken)
    moved = method.update(observed(numbers))
    if not all(map(isfinite, moved.state.values())):  # what was not finite once would never leave the state
        return Finished(method, {}, "state")
    return Finished(moved, update_metrics(numbers))


def gather_over(group: Any) -> Callable[[Tensor], Tensor] | None:
    """Return what gathers a vector of all ranks, [n] -> [ranks * n]; None where there is one process."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return None

    def gather(own: Tensor) -> Tensor:
        parts = [torch.empty_like(own) for _ in range(distributed.get_world_size(group))]
        distributed.all_gather(parts, own, group)
        return torch.cat(parts)

    return gather
