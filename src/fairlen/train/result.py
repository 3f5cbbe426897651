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
from fairlen.methods.stages.micro import Micro, Outputs, TokenLoss
from fairlen.methods.tally import Counts
from fairlen.policy.pack import Packed


@dataclass
class StepResult:
    """What one update leaves behind."""

    quantity: str = ""
    """Empty after a step; else what was not finite, and no step was made, but for "weights", which an update has damaged."""
    counts: Counts = field(default_factory=dict)
    """What methods/tally.py counted over all micro-batches."""
    gradient_norm: float = 0.0
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

    @property
    def loss(self) -> float:
        """Sum of weight * token loss and terms."""
        return self.counts.get("loss/total", 0.0)

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
    """Fills in what records keep of each sequence of one micro-batch."""
    micro, rows = packed.micro, packed.rows
    old = outputs.logprobs if micro.is_on_policy else micro.old_logprobs
    log_ratio, mismatch = outputs.logprobs - old, old - micro.rollout_logprobs
    result.log_ratio[rows] = micro.sum_per_sequence(log_ratio.double()).cpu().numpy()
    result.mismatch[rows] = micro.sum_per_sequence(mismatch.double().abs()).cpu().numpy()
    result.clipped[rows] = share_per_sequence(micro, token.clipped)
    result.inside[rows] = share_per_sequence(micro, token.inside)


def share_per_sequence(micro: Micro, flags: Tensor) -> Floats:
    """Share of each sequence's tokens that are flagged, [B]."""
    return (micro.sum_per_sequence(flags.double()) / micro.length).cpu().numpy()
