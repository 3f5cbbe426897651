"""One optimizer step: micro-batches, the backward pass of sums, clipping of the gradient norm, the step, and its numbers.

Where memory runs out, the same update is made again with micro-batches of half the size, which gives the same gradient.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fairlen.batch import Floats, Ints, Plan
from fairlen.console import warn
from fairlen.hangs import TrainingStopped
from fairlen.loop.tally import Counts, count, measure_sequences, sum_counts
from fairlen.loop.update import judge_update
from fairlen.methods.method import Method
from fairlen.methods.stages.micro import Micro
from fairlen.policy.layout import ROWS, Layout
from fairlen.policy.model import Policy, Unadapted, are_finite
from fairlen.policy.pack import Packed, pack
from fairlen.rollouts import Rollouts

Found = TypeVar("Found")
SHORTAGES = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "std::bad_alloc",
)
"""In the messages of errors that are not torch.OutOfMemoryError."""
WORKSPACES = ":4096:8"
"""With buffers of a fixed size, products of matrices on CUDA are summed in one order."""


class OutOfMemoryError(TrainingStopped):
    """Not even the smallest micro-batch fits."""


def is_shortage(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(text in str(error) for text in SHORTAGES)


@contextmanager
def naming_shortage(work: str) -> Iterator[None]:
    """Raise OutOfMemoryError with what to change where memory runs out within."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_shortage(error):
            raise
        reason = str(error).strip().partition("\n")[0]
        raise OutOfMemoryError(
            f"memory ran out in {work} ({reason}): give a smaller --max-num-seqs, or a smaller --max-response-length"
        ) from error


def release_memory() -> None:
    """Free unreferenced memory; an exception's traceback keeps its references until it is gone."""
    gc.collect()
    torch.cuda.empty_cache()


def prepare_determinism() -> None:
    """Set the variable that cuBLAS reads at its start. Raises ValueError where the environment has another value."""
    found = os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", WORKSPACES)
    if found not in (WORKSPACES, ":16:8"):
        raise ValueError(
            f"deterministic=True with CUBLAS_WORKSPACE_CONFIG={found}: unset it, or give {WORKSPACES} or :16:8"
        )


@contextmanager
def determinism(is_on: bool) -> Iterator[None]:
    """Use torch's deterministic algorithms within. Raises TrainingStopped where an operation has none."""
    if not is_on:
        yield
        return
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        raise TrainingStopped(f"deterministic=True: {str(error).splitlines()[0]} Leave --deterministic out") from error
    finally:
        torch.use_deterministic_algorithms(False)


@dataclass
class StepResult:
    """Results of one update, over its micro-batches."""

    measured: Floats  # of each sequence of the plan, [3, B], as `measure_sequences` has it
    method: Method  # with its state moved, after a step
    quantity: str = ""
    """Empty after a step; else the quantity that was not finite, so that no step was made, or damaged "weights"."""
    counts: Counts = field(default_factory=dict)  # of loop/tally.py, over all micro-batches
    gradient_norm: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    """Time in pack, forward and backward; on CUDA the last two are the time between events in `spans`, once `read`."""
    spans: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)
    num_forwarded: int = 0  # positions computed, padding included
    observed: list[tuple[Ints, Tensor]] = field(default_factory=list)
    """Rows of micro-batches, and their numbers on the device."""

    @property
    def loss(self) -> float:
        return self.counts.get("loss/total", 0.0)

    @contextmanager
    def timed(self, name: str, device: torch.device | None = None) -> Iterator[None]:
        """Add the time within to `seconds`: the host's, or on CUDA the device's, which is not waited for here."""
        if device and device.type == "cuda":
            span = name, torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            span[1].record(torch.cuda.current_stream(device))
            yield
            span[2].record(torch.cuda.current_stream(device))
            self.spans.append(span)
        else:
            start = time.perf_counter()
            yield
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def read(self) -> None:
        """Fill in the observed numbers, with one wait for the device."""
        if self.observed:
            rows = np.concatenate([rows for rows, _ in self.observed])
            self.measured[:, rows] = torch.cat([values for _, values in self.observed], 1).cpu().numpy()
            self.observed.clear()
        if self.spans:
            self.spans[-1][2].synchronize()  # has come by where numbers were read
            for name, first, last in self.spans:
                self.seconds[name] = self.seconds.get(name, 0.0) + first.elapsed_time(last) / 1000
            self.spans.clear()


@dataclass
class Learner:
    """The policy with its optimizer, and the reference model where a term asks for one."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    max_gradient_norm: float
    max_tokens: int  # positions in one micro-batch; falls where memory runs out
    reference: Policy | Unadapted | None = None
    layout: Layout = ROWS
    is_deterministic: bool = False  # whether repeated sums over micro-batches have the same bits on CUDA too
    largest: int = 0  # positions of the largest micro-batch since the last `fit`
    num_done: int = 0  # sequences of the update whose gradients were summed
    pause: Callable[[], object] = bool  # called before every micro-batch; an error of it drops the update

    def step(
        self, method: Method, rollouts: Rollouts, plan: Plan, old_logprobs: dict[int, Tensor], is_on_policy: bool
    ) -> StepResult:
        """Make one update, or none where a number is not finite; then the weights and the optimizer are untouched."""
        work = partial(self.differentiate, method, rollouts, plan, old_logprobs, is_on_policy)
        result = self.fit(work, rollouts, plan)
        if not result.quantity:
            self.apply(result, method)
        if result.quantity:
            self.optimizer.zero_grad(set_to_none=True)
        return result

    def fit(self, work: Callable[[], Found], rollouts: Rollouts, plan: Plan) -> Found:
        """Return the result of `work`, repeated with smaller micro-batches where memory runs out, down to one sequence."""
        longest = max((rollouts.segments[row].stop for row in plan.rows), default=1)
        while True:
            self.largest = 0
            try:
                with determinism(self.is_deterministic):
                    return work()
            except (RuntimeError, MemoryError) as error:
                if not is_shortage(error):
                    raise
                reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            self.halve(longest, reason)  # here, where the error no longer holds on to what the forward pass kept

    def halve(self, longest: int, reason: str) -> None:
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
        """Sum the gradient of an update over its micro-batches into the parameters, and return its numbers."""
        result = StepResult(np.zeros((3, len(plan))), method)
        self.policy.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        self.num_done = 0
        if not all(np.isfinite(column).all() for column in (plan.advantage, plan.weight, plan.term_weight)):
            result.quantity = "advantage"
            return result
        counts: list[Mapping[str, Any]] = []
        packs = self.packs(rollouts, plan, old_logprobs, is_on_policy)
        while True:
            with result.timed("pack"):
                packed = next(packs, None)
            if packed is None:
                break
            self.accumulate(method, packed, result, counts)
        result.counts = sum_counts(counts)
        result.read()
        return result

    def apply(self, result: StepResult, method: Method) -> None:
        """Clip the gradient, step if every number is finite, and check the weights, which a shortage may leave half changed."""
        try:
            norm = torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), self.max_gradient_norm)
            result.gradient_norm = float(norm)
            finished = judge_update(method, [result.counts], result.gradient_norm)
            result.method, result.quantity = finished.method, finished.broken
            if finished.may_step:
                self.optimizer.step()
        except (RuntimeError, MemoryError) as error:
            if is_shortage(error):
                raise OutOfMemoryError(
                    "memory ran out in the optimizer's step, after which the weights may be half changed; nothing is saved of "
                    "them, and the last checkpoint is whole: go on from it with --resume and a smaller --max-num-seqs, or begin "
                    "again with --lora-rank 32"
                ) from error
            raise
        if finished.may_step:
            self.schedule.step()
            if not are_finite(self.policy.trained().values()):
                result.quantity = "weights"

    def packs(
        self, rollouts: Rollouts, plan: Plan, old_logprobs: dict[int, Tensor], is_on_policy: bool
    ) -> Iterator[Packed]:
        """Yield the micro-batches in the cheapest layout."""
        trees = self.layout.takes_trees(rollouts, plan, self.max_tokens)
        given = {"is_on_policy": is_on_policy, "old_logprobs": old_logprobs, "device": self.policy.device}
        for packed in pack(rollouts, plan, self.max_tokens, trees=trees, **given):
            self.pause()
            self.largest = max(self.largest, packed.inputs.token_ids.numel())
            yield packed

    def accumulate(self, method: Method, packed: Packed, result: StepResult, counts: list[Mapping[str, Any]]) -> None:
        device = self.policy.device
        with result.timed("forward", device):
            outputs = self.policy.forward(packed.inputs, method.needs_entropy)
            micro = self.with_reference(packed) if method.needs_ref else packed.micro
            loss = method.loss(outputs, micro)
        with result.timed("backward", device):
            loss.total.backward()
        result.num_forwarded += packed.inputs.token_ids.numel()
        self.num_done += len(packed.rows)
        if not packed.is_idle:
            counts.append(count(method, outputs, micro, loss))
            result.observed.append((packed.rows, measure_sequences(outputs, packed.micro, loss.token)))

    def restore_schedule(self, state: dict[str, Any]) -> None:
        """Put the schedule back, and its rate into the optimizer, which it does not do itself."""
        self.schedule.load_state_dict(state)
        for group, rate in zip(self.optimizer.param_groups, self.schedule.get_last_lr(), strict=True):
            group["lr"] = rate

    def with_reference(self, packed: Packed) -> Micro:
        if self.reference is None:
            raise RuntimeError("a term of the method needs a reference model: build the Learner with one")
        with torch.no_grad():
            logprobs = self.reference.forward(packed.inputs, with_entropy=False).logprobs
        return replace(packed.micro, ref_logprobs=logprobs)

    @torch.no_grad()
    def old_logprobs(self, rollouts: Rollouts, plan: Plan) -> dict[int, Tensor]:
        """Log-probs of every segment of the plan by the trainer's arithmetic, by row in the rollout batch."""

        def compute() -> dict[int, Tensor]:
            found: dict[int, Tensor] = {}
            for packed in self.packs(rollouts, plan, {}, True):
                if not packed.is_idle:
                    logprobs = self.policy.forward(packed.inputs, with_entropy=False).logprobs
                    parts = logprobs.split(packed.micro.length.tolist())
                    found |= dict(zip(plan.rows[packed.rows].tolist(), parts, strict=True))
            return found

        return self.fit(compute, rollouts, plan)
