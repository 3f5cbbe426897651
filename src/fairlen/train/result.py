"""What one update leaves behind, gathered over its micro-batches: sums for metrics and records, times, what was not finite."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fairlen.batch import Floats
from fairlen.methods.micro import Micro, Outputs, TokenLoss, UpdateSums
from fairlen.policy.pack import Packed

MAX_LOG_RATIO = 20.0
"""Nats, in exponents that are only reported."""


@dataclass
class StepResult:
    """What one update leaves behind."""

    quantity: str = ""
    """Empty after a step; else what was not finite, and no step was made, but for "weights", which an update has damaged."""
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

    @classmethod
    def of(cls, num_sequences: int) -> StepResult:
        """Of an update of so many sequences, with nothing gathered yet."""
        zeros = (np.zeros(num_sequences) for _ in range(4))
        return cls(log_ratio=next(zeros), clipped=next(zeros), inside=next(zeros), mismatch=next(zeros))

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


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
        "mismatch_kl": torch.expm1(mismatch.clamp(max=MAX_LOG_RATIO)) - mismatch,
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
