"""The trained tokens of some planned sequences, back to back: what a surrogate sees of one micro-batch, and what a stage learns.

Index sets: **B** sequences of the micro-batch, **T** their trained tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Micro:
    """Per-sequence numbers of the plan and per-token log-probs of the policies that are fixed during the update."""

    length: Tensor
    """Trained tokens of each sequence, [B], int64; sums to T."""
    sequence: Tensor
    """Which sequence each token belongs to, [T], int64."""
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
    ref_logprobs: Tensor | None = None
    """Nats by a frozen reference model, [T], for methods that need them."""
    bounded: Tensor | None = None
    """Tokens that the surrogate's bound goes by, [B], for those of a channel."""
    mask: Tensor | None = None
    """[T], False on tokens that do not train, which a last sequence of weight 0 has; None where all train."""

    @classmethod
    def of(
        cls,
        length: Tensor,
        advantage: Tensor,
        weight: Tensor,
        term_weight: Tensor,
        old_logprobs: Tensor,
        rollout_logprobs: Tensor | None = None,
        ref_logprobs: Tensor | None = None,
        is_on_policy: bool = False,
        bounded: Tensor | None = None,
    ) -> Micro:
        """From columns of rows, of which those without a token are left out, and log-probs of the others' tokens, [T].

        Without `rollout_logprobs` the engine is taken to be exact.
        """
        rows = length.nonzero()[:, 0]
        return Micro(
            length=length[rows],
            sequence=(rows.new_ones(len(rows)).cumsum(0) - 1).repeat_interleave(length[rows]),
            advantage=advantage[rows],
            weight=weight[rows],
            term_weight=term_weight[rows],
            old_logprobs=widen(old_logprobs),
            rollout_logprobs=widen(old_logprobs if rollout_logprobs is None else rollout_logprobs),
            is_on_policy=is_on_policy,
            ref_logprobs=None if ref_logprobs is None else widen(ref_logprobs),
            bounded=None if bounded is None else bounded[rows],
        )

    def per_token(self, values: Tensor) -> Tensor:
        """[B] -> [T], each sequence's number on all of its tokens."""
        return values[self.sequence]

    def sum_per_sequence(self, values: Tensor) -> Tensor:
        """[T] -> [B]"""
        return values.new_zeros(len(self.length)).index_add(0, self.sequence, values)

    def cumulate(self, values: Tensor) -> Tensor:
        """[T] -> [T], float64: the sum up to each token over its sequence, whose tokens lie in their order."""
        order = self.sequence.argsort(stable=True)
        total = self.sum_per_sequence(values.double())
        running = values.double()[order].cumsum(0) - self.per_token(total.cumsum(0) - total)[order]
        return running.new_zeros(len(values)).index_copy(0, order, running)

    def of_trained(self, values: Tensor) -> Tensor:
        """[T] -> [T], 0 on tokens that do not train."""
        return values if self.mask is None else values.where(self.mask, 0)

    def total_of_sequences(self, values: Tensor) -> Tensor:
        """[B] -> the sum over sequences with a token that trains, float64."""
        if self.mask is not None:
            values = values.where(self.sum_per_sequence(self.mask.double()) > 0, 0)
        return values.double().sum()


def widen(values: Tensor) -> Tensor:
    """Numbers in at least float32: a sum of log-probs in bfloat16 has two digits."""
    return values.float() if values.dtype.itemsize < 4 else values


@dataclass(frozen=True)
class Outputs:
    """Outputs of the current policy on the trained tokens; they carry the gradient."""

    logprobs: Tensor
    """Nats under softmax(logits / temperature), [T]."""
    entropy: Tensor
    """Nats, of the distribution each token was drawn from, [T]; without gradient unless a term asks for it, NaN if unknown."""


@dataclass(frozen=True)
class TokenLoss:
    """Result of a surrogate, [T] each; only `loss` carries gradient."""

    loss: Tensor
    """At ratio 1 the derivative of its sum by each token's log-prob is minus the advantage."""
    ratio: Tensor
    """The importance ratio that the surrogate bounds: a token's or its sequence's."""
    clipped: Tensor
    """Bool: the bound acts and the gradient is zero."""
    inside: Tensor
    """Bool: within the two-sided bound, whatever the sign of the advantage; acceptance by length is defined on it."""


def state(default: float) -> Any:
    """A field of a stage that `update` replaces; left out of `--set`, of tables and of the configuration hash."""
    return field(default=default, metadata={"state": True}, repr=False)


def is_state(stage_field: Field[Any]) -> bool:
    return bool(stage_field.metadata.get("state"))


Sums = Mapping[str, Any]
"""Numbers, or tensors of one number that wait on the device."""


class Stateful(Protocol):
    """A stage of any choice that learns: frozen, with fields made by `state`, which move once per update and by value."""

    def observe(self, outputs: Outputs, micro: Micro) -> Sums:
        """Sums over the sequences of one micro-batch, by names that are always the same; they add up over any split."""
        ...

    def update(self, sums: Sums) -> Self:
        """The stage after one update, from its own sums over all micro-batches and ranks."""
        ...


def has_state(stage: Any) -> bool:
    return is_dataclass(stage) and any(map(is_state, fields(stage)))
