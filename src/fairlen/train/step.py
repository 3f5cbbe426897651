"""One optimizer step: micro-batches, the backward pass of sums, clipping of the gradient norm, the step.

Knows no method by name and divides nothing: the loss of every micro-batch is a sum, and gradients are summed. Where memory
runs out, the same update is begun again with micro-batches of half the size, which is the same gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fairlen.batch import Plan, Rollouts
from fairlen.console import warn
from fairlen.methods.method import Method
from fairlen.methods.stages.micro import Micro, MicroWithRef, Outputs
from fairlen.methods.tally import Tally
from fairlen.policy.layout import ROWS, Layout
from fairlen.policy.memory import OutOfMemoryError, is_shortage, release_memory
from fairlen.policy.model import Policy, Unadapted, are_finite
from fairlen.policy.pack import Packed, pack
from fairlen.train.result import StepResult, observe

Found = TypeVar("Found")
NO_ROOM_FOR_STEP = (
    "memory ran out in the optimizer's step, after which the weights may be half changed; nothing is saved of them, and the last "
    "checkpoint is whole: go on from it with --resume and a smaller --max-num-seqs, or begin again with --lora-rank 32"
)


@dataclass
class Learner:
    """The policy with its optimizer, and the reference model where a term asks for one."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    max_gradient_norm: float
    max_tokens: int
    """Positions in one micro-batch; becomes less where memory runs out."""
    reference: Policy | Unadapted | None = None
    layout: Layout = ROWS
    largest: int = 0
    """Positions of the largest micro-batch since `fit` last began."""
    pause: Callable[[], object] = bool
    """Called before every micro-batch; what it raises drops the update."""

    def step(
        self, method: Method, rollouts: Rollouts, plan: Plan, old_logprobs: dict[int, Tensor], is_on_policy: bool
    ) -> StepResult:
        """Makes one update, or none where a number is not finite; then the weights and the optimizer are untouched."""
        result = self.fit(
            lambda: self.differentiate(method, rollouts, plan, old_logprobs, is_on_policy), find_longest(rollouts, plan)
        )
        if not result.quantity:
            self.apply(result)
        if result.quantity:
            self.optimizer.zero_grad(set_to_none=True)
        return result

    def fit(self, work: Callable[[], Found], longest: int) -> Found:
        """What `work`, which goes through micro-batches, returns; begun again with smaller ones where memory runs out.

        Raises OutOfMemoryError where that does not help, since one sequence of `longest` tokens must fit.
        """
        while True:
            self.largest = 0
            try:
                return work()
            except (RuntimeError, MemoryError) as error:
                if not is_shortage(error):
                    raise
                reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            self.halve(longest, reason)  # here, where the error no longer holds on to what the forward pass kept

    def halve(self, longest: int, reason: str) -> None:
        """Takes micro-batches of half the size from now on."""
        self.optimizer.zero_grad(set_to_none=True)
        release_memory()
        tried = min(self.largest or self.max_tokens, self.max_tokens)
        if tried <= longest:
            raise OutOfMemoryError(
                f"memory ran out with one sequence of {longest} tokens in a micro-batch, which max_tokens_per_microbatch "
                f"cannot make smaller ({reason}): give --gradient-checkpointing, a smaller --max-response-length, "
                "--lora-rank 32 or a smaller --max-num-seqs"
            )
        self.max_tokens = max(tried // 2, longest)
        warn(
            f"memory ran out in a micro-batch of {tried} positions ({reason}); the update is made again with "
            f"{self.max_tokens} at most, which gives the same gradient: --max-tokens-per-microbatch {self.max_tokens} "
            "starts there"
        )

    def differentiate(
        self, method: Method, rollouts: Rollouts, plan: Plan, old_logprobs: dict[int, Tensor], is_on_policy: bool
    ) -> StepResult:
        """The gradient of an update, summed over its micro-batches into the parameters, and what is reported of it."""
        result = StepResult.of(len(plan))
        self.policy.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        if not all(np.isfinite(column).all() for column in (plan.advantage, plan.weight, plan.term_weight)):
            result.quantity = "advantage"
            return result
        tally = Tally()
        for packed in self.timed_packs(result, rollouts, plan, old_logprobs, is_on_policy):
            self.accumulate(method, packed, result, tally)
            if result.quantity:
                return result
        result.counts = tally.finish(device=self.policy.device)
        return result

    def apply(self, result: StepResult) -> None:
        """Clips the gradient and makes the optimizer's step, and sees whether the weights are still numbers.

        Raises OutOfMemoryError where memory runs out: a part of the weights may have changed, so that it cannot be made again.
        """
        try:
            norm = torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), self.max_gradient_norm)
            result.gradient_norm = float(norm)
            if not torch.isfinite(norm):
                result.quantity = "gradient"
                return
            self.optimizer.step()
        except (RuntimeError, MemoryError) as error:
            if is_shortage(error):
                raise OutOfMemoryError(NO_ROOM_FOR_STEP) from error
            raise
        self.schedule.step()
        if not are_finite(self.policy.trained().values()):
            result.quantity = "weights"

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
        for packed in pack(
            rollouts,
            plan,
            self.max_tokens,
            trees=self.layout.takes_trees(rollouts, plan, self.max_tokens),
            is_on_policy=is_on_policy,
            old_logprobs=old_logprobs,
            device=self.policy.device,
        ):
            self.pause()
            self.largest = max(self.largest, packed.inputs.token_ids.numel())
            yield packed

    def accumulate(self, method: Method, packed: Packed, result: StepResult, tally: Tally) -> None:
        """Forward and backward of one micro-batch; sets `result.quantity` where something is not finite."""
        with result.timed("forward"):
            outputs = self.policy.forward(packed.inputs, method.needs_entropy)
            micro = self.with_reference(packed) if method.needs_ref else packed.micro
            loss = method.loss(outputs, micro)
            result.quantity = find_non_finite(outputs, micro, loss.total)
        if result.quantity:
            return
        with result.timed("backward"):
            loss.total.backward()
        result.num_forwarded += packed.inputs.token_ids.numel()
        if not packed.is_idle:
            tally.add(method, outputs, micro, loss)
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

    def old_logprobs(self, rollouts: Rollouts, plan: Plan) -> dict[int, Tensor]:
        """Log-probs of every segment of the plan by the trainer's arithmetic, by row in the rollout batch."""
        return self.fit(lambda: self.compute_old_logprobs(rollouts, plan), find_longest(rollouts, plan))

    @torch.no_grad()
    def compute_old_logprobs(self, rollouts: Rollouts, plan: Plan) -> dict[int, Tensor]:
        """The same, where memory suffices."""
        found: dict[int, Tensor] = {}
        for packed in self.packs(rollouts, plan, {}, True):
            if packed.is_idle:
                continue
            parts = self.policy.forward(packed.inputs).logprobs.split(packed.micro.length.tolist())
            found |= dict(zip(plan.rows[packed.rows].tolist(), parts, strict=True))
        return found


def find_longest(rollouts: Rollouts, plan: Plan) -> int:
    """Tokens of the longest sequence of an update, prompt included."""
    return max((rollouts.segments[row].stop for row in plan.rows), default=1)


def find_non_finite(outputs: Outputs, micro: Micro, total: Tensor) -> str:
    """Which quantity is not finite, the first of them in the order of the arithmetic, or nothing."""
    tensors = {"logprobs": outputs.logprobs, "old_logprobs": micro.old_logprobs}
    if isinstance(micro, MicroWithRef):
        tensors["ref_logprobs"] = micro.ref_logprobs
    tensors["loss"] = total
    flags = [torch.isfinite(values).all() for values in tensors.values()]
    are_fine = torch.stack(flags).tolist()  # one wait for the device
    return next((name for name, is_fine in zip(tensors, are_fine, strict=True) if not is_fine), "")
