"""One optimizer step: micro-batches, the backward pass of sums, clipping of the gradient norm, the step.

Knows no method by name and divides nothing: the loss of every micro-batch is a sum, and gradients are summed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairlen.batch import Floats, Plan, Rollouts
from fairlen.method import Method
from fairlen.micro import Micro, MicroWithRef, Outputs, TokenLoss, UpdateSums, sum_update
from fairlen.train.layout import ROWS, Layout
from fairlen.train.lora import Unadapted
from fairlen.train.pack import Packed, pack
from fairlen.train.policy import Policy

LARGEST_LOG_RATIO = 20.0
"""Nats, in exponents that are only reported."""


@dataclass
class StepResult:
    """What one update leaves behind."""

    quantity: str = ""
    """Empty after a step; else what was not finite, and no step was made."""
    sums: UpdateSums = field(default_factory=UpdateSums)
    loss: float = 0.0
    """Sum of weight * token loss and terms."""
    gradient_norm: float = 0.0
    tokens: dict[str, float] = field(default_factory=dict)
    """Sums over trained tokens: of entropy, ratio, clipped, inside, old_kl, mismatch_kl; and the largest ratio and mismatch."""
    log_ratio: Floats = field(default_factory=lambda: np.zeros(0))
    """S of each sequence of the plan, nats, [B]."""
    clipped: Floats = field(default_factory=lambda: np.zeros(0))
    """Share of each sequence's tokens whose gradient the bound made zero, [B]."""
    inside: Floats = field(default_factory=lambda: np.zeros(0))
    """Share of each sequence's tokens within the two-sided bound, [B]."""
    mismatch: Floats = field(default_factory=lambda: np.zeros(0))
    """Sum over each sequence's tokens of |trainer - engine|, of log-probs by the weights that generated, nats, [B]."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time in pack, forward and backward."""
    num_forwarded: int = 0
    """Positions computed, padding included."""

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass
class Learner:
    """The policy with its optimizer, and the reference model where a term asks for one."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    max_gradient_norm: float
    max_tokens: int
    """Positions in one micro-batch."""
    reference: Policy | Unadapted | None = None
    layout: Layout = ROWS

    def step(
        self, method: Method, rollouts: Rollouts, plan: Plan, old_logprobs: dict[int, Tensor], is_on_policy: bool
    ) -> StepResult:
        """Makes one update, or none where a number is not finite; then the weights and the optimizer are untouched."""
        zeros = (np.zeros(len(plan)) for _ in range(4))
        result = StepResult(log_ratio=next(zeros), clipped=next(zeros), inside=next(zeros), mismatch=next(zeros))
        self.policy.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        for packed in self.timed_packs(result, rollouts, plan, old_logprobs, is_on_policy):
            self.accumulate(method, packed, result)
            if result.quantity:
                self.optimizer.zero_grad(set_to_none=True)
                return result
        norm = torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), self.max_gradient_norm)
        result.gradient_norm = float(norm)
        if not torch.isfinite(norm):
            result.quantity = "gradient"
            self.optimizer.zero_grad(set_to_none=True)
            return result
        self.optimizer.step()
        self.schedule.step()
        return result

    def timed_packs(
        self, result: StepResult, rollouts: Rollouts, plan: Plan, old_logprobs: dict[int, Tensor], is_on_policy: bool
    ) -> Iterator[Packed]:
        """The micro-batches, the making of each counted as packing."""
        packs = self.packs(rollouts, plan, old_logprobs, is_on_policy)
        while True:
            with result.timed("pack"):
                packed = next(packs, None)
            if packed is None:
                return
            yield packed

    def packs(
        self, rollouts: Rollouts, plan: Plan, old_logprobs: dict[int, Tensor], is_on_policy: bool
    ) -> Iterator[Packed]:
        """The micro-batches, laid out as it costs least."""
        yield from pack(
            rollouts,
            plan,
            self.max_tokens,
            trees=self.layout.takes_trees(rollouts, plan, self.max_tokens),
            is_on_policy=is_on_policy,
            old_logprobs=old_logprobs,
            device=self.policy.device,
        )

    def accumulate(self, method: Method, packed: Packed, result: StepResult) -> None:
        """Forward and backward of one micro-batch; sets `result.quantity` where something is not finite."""
        with result.timed("forward"):
            outputs = self.policy.forward(packed.inputs, method.needs_entropy)
            micro = self.with_reference(packed) if method.needs_ref else packed.micro
            loss = method.loss(outputs, micro)
            result.quantity = find_non_finite(outputs, loss.total)
        if result.quantity:
            return
        with result.timed("backward"):
            loss.total.backward()
        result.loss += float(loss.total.detach())
        result.sums += sum_update(outputs, micro)
        result.num_forwarded += packed.inputs.token_ids.numel()
        observe(result, packed, outputs, loss.token)

    @property
    def rate(self) -> float:
        """Learning rate of the next update."""
        return float(self.schedule.get_last_lr()[0])

    def restore_schedule(self, state: dict[str, Any]) -> None:
        """Puts the schedule back, and the rate it had reached into the optimizer, which it does not do itself."""
        self.schedule.load_state_dict(state)
        for group, rate in zip(self.optimizer.param_groups, self.schedule.get_last_lr(), strict=True):
            group["lr"] = rate

    def with_reference(self, packed: Packed) -> MicroWithRef:
        """The micro-batch with the reference model's log-probs."""
        if self.reference is None:
            raise RuntimeError("a term of the method needs a reference model: build the Learner with one")
        with torch.no_grad():
            logprobs = self.reference.forward(packed.inputs).logprobs
        return MicroWithRef(**vars(packed.micro), ref_logprobs=logprobs)

    @torch.no_grad()
    def old_logprobs(self, rollouts: Rollouts, plan: Plan) -> dict[int, Tensor]:
        """Log-probs of every segment of the plan by the trainer's arithmetic, by row in the rollout batch."""
        found: dict[int, Tensor] = {}
        for packed in self.packs(rollouts, plan, {}, True):
            if packed.is_idle:
                continue
            parts = self.policy.forward(packed.inputs).logprobs.split(packed.micro.length.tolist())
            found |= dict(zip(plan.rows[packed.rows].tolist(), parts, strict=True))
        return found


def find_non_finite(outputs: Outputs, total: Tensor) -> str:
    """Which quantity is not finite, or nothing."""
    if torch.isfinite(total):
        return ""
    return "loss" if torch.isfinite(outputs.logprobs).all() else "logprobs"


@torch.no_grad()
def observe(result: StepResult, packed: Packed, outputs: Outputs, token: TokenLoss) -> None:
    """Adds one micro-batch to what the update reports."""
    micro = packed.micro
    old = outputs.logprobs if micro.is_on_policy else micro.old_logprobs
    log_ratio, mismatch = outputs.logprobs - old, old - micro.rollout_logprobs
    sums = {
        "entropy": outputs.entropy,
        "ratio": token.ratio,
        "clipped": token.clipped,
        "inside": token.inside,
        "old_kl": -log_ratio,
        "mismatch_kl": torch.expm1(mismatch.clamp(max=LARGEST_LOG_RATIO)) - mismatch,
    }
    counts = 0.0 if packed.is_idle else 1.0
    for name, values in sums.items():
        result.tokens[name] = result.tokens.get(name, 0.0) + counts * float(values.double().sum())
    for name, values in {"largest_ratio": token.ratio, "largest_mismatch": mismatch.abs()}.items():
        result.tokens[name] = max(result.tokens.get(name, 0.0), counts * float(values.max()))
    if packed.is_idle:
        return
    result.log_ratio[packed.rows] = micro.sum_per_sequence(log_ratio.double()).cpu().numpy()
    result.mismatch[packed.rows] = micro.sum_per_sequence(mismatch.double().abs()).cpu().numpy()
    result.clipped[packed.rows] = share_per_sequence(micro, token.clipped)
    result.inside[packed.rows] = share_per_sequence(micro, token.inside)


def share_per_sequence(micro: Micro, flags: Tensor) -> Floats:
    """Share of each sequence's tokens that are flagged, [B]."""
    return (micro.sum_per_sequence(flags.double()) / micro.length).cpu().numpy()
