"""The trained tokens of some planned sequences, back to back: what a surrogate sees of one micro-batch.

Index sets: **B** sequences of the micro-batch, **T** their trained tokens. No prompt, no mask, no padding, no shift.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Tokens = TypeVar("Tokens", bound="Micro")


@dataclass(frozen=True)
class Micro:
    """Per-sequence numbers of the plan and per-token log-probs of the policies that are fixed during the update."""

    length: Tensor
    """Trained tokens of each sequence, [B], int64; sums to T."""
    sequence: Tensor
    """Which sequence each token belongs to, [T], int64, rising."""
    advantage: Tensor
    """[B]"""
    weight: Tensor
    """[B], per token; the loss is the plain sum of weight * token loss."""
    term_weight: Tensor
    """[B], per token, for terms."""
    old_logprobs: Tensor
    """Nats by the policy that generated the rollout batch, by the trainer's arithmetic, [T]."""
    rollout_logprobs: Tensor
    """Nats by the policy as the engine sampled from it, [T]; equal to `old_logprobs` where the engine is exact."""
    is_on_policy: bool
    """The weights are those that generated the rollout batch: every ratio is exactly 1."""

    def per_token(self, values: Tensor) -> Tensor:
        """[B] -> [T], each sequence's number on all of its tokens."""
        return values[self.sequence]

    def sum_per_sequence(self, values: Tensor) -> Tensor:
        """[T] -> [B]"""
        return values.new_zeros(len(self.length)).index_add(0, self.sequence, values)

    def as_sampled_by(self: Tokens, logprobs: Tensor) -> Tokens:
        """The same tokens with these log-probs [T] as the old ones, so that engine noise of 1e-6 does not pass for drift."""
        return replace(self, old_logprobs=logprobs.detach())


@dataclass(frozen=True)
class MicroWithRef(Micro):
    """The same, with the log-probs of a frozen reference model."""

    ref_logprobs: Tensor
    """Nats, [T]."""


@dataclass(frozen=True)
class Outputs:
    """What the current policy says of the trained tokens; carries the gradient."""

    logprobs: Tensor
    """Nats under softmax(logits / temperature), [T]."""
    entropy: Tensor
    """Nats, of the distribution each token was drawn from, [T]; without gradient unless a term asks for it."""


@dataclass(frozen=True)
class TokenLoss:
    """What a surrogate returns, [T] each; only `loss` carries gradient."""

    loss: Tensor
    """At ratio 1 the derivative of its sum by each token's log-prob is minus the advantage."""
    ratio: Tensor
    """The importance ratio that the surrogate bounds: a token's or its sequence's."""
    clipped: Tensor
    """Bool: the bound acts and the gradient is zero."""
    inside: Tensor
    """Bool: within the two-sided bound, whatever the sign of the advantage; acceptance by length is defined on it."""


@dataclass(frozen=True)
class UpdateSums:
    """Sums over all sequences of one off-policy update, over micro-batches and ranks; what a method's state learns from."""

    num_sequences: float = 0.0
    num_tokens: float = 0.0
    log_ratio: float = 0.0
    """Sum over tokens of logprobs - old_logprobs, nats."""
    squared_log_ratio: float = 0.0
    """Sum over sequences of S^2 / length, S the sequence's log ratio."""

    def __add__(self, other: UpdateSums) -> UpdateSums:
        return UpdateSums(
            self.num_sequences + other.num_sequences,
            self.num_tokens + other.num_tokens,
            self.log_ratio + other.log_ratio,
            self.squared_log_ratio + other.squared_log_ratio,
        )


def sum_update(outputs: Outputs, micro: Micro) -> UpdateSums:
    """The sums of one micro-batch; all zero when it is on-policy, where the log ratio is 0 by definition."""
    if micro.is_on_policy:
        return UpdateSums()
    log_ratio = micro.sum_per_sequence((outputs.logprobs.detach() - micro.old_logprobs).double())
    return UpdateSums(
        num_sequences=float(len(micro.length)),
        num_tokens=float(micro.length.sum()),
        log_ratio=float(log_ratio.sum()),
        squared_log_ratio=float((log_ratio**2 / micro.length).sum()),
    )
