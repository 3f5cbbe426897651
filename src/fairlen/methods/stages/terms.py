"""Terms added to the surrogate, and corrections that multiply it.

term(outputs, micro)        -> loss [T], summed with the plan's term_weight
correction(micro)           -> factor [T] on the surrogate's loss, without gradient
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fairlen.batch import Ints
from fairlen.checks import Amount, Bound, Checked, NotNegative, added_later
from fairlen.methods.stages.micro import Micro, Outputs
from fairlen.methods.stages.surrogate import MAX_LOG_RATIO

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ReferenceKL(Checked):
    """coefficient * an estimate of KL(policy || reference), per token of the rollout batch.

        k1: l    k2: l^2 / 2    k3: exp(-l) - 1 + l,     l = logprobs - ref_logprobs

    Source: GRPO (arXiv:2402.03300, equation 4): k3. Coefficients there 0.04; DeepSeek-R1 0.001; TRL's and most recipes' default
    0. Departure: l is held within 20 nats, as in verl, since exp of 89 is infinite in float32; beyond, there is no gradient.
    The gradient of k3 is not that of the divergence, for whose gradient the estimate is multiplied by a ratio that carries one
    (arXiv:2512.02556): that to the old policy in TRL (`use_bias_correction_kl`, its default), to the present one in NeMo-RL.
    """

    coefficient: Amount = 0.001
    """Loss for each nat."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Of the divergence, from the log-probs of one token: k1, k2 or k3."""
    ratio_to: Literal["none", "old", "present"] = added_later("none")
    """Policy whose ratio, with its gradient, multiplies the estimate: none, the old one, or the present one, where it is 1."""

    needs_ref: ClassVar[bool] = True
    needs_entropy: ClassVar[bool] = False

    def __call__(self, outputs: Outputs, micro: Micro) -> Tensor:
        if micro.ref_logprobs is None:
            raise TypeError("ref_logprobs=None: ReferenceKL needs the reference model's log-probs of every token")
        log_ratio = (outputs.logprobs - micro.ref_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        estimate = log_ratio if self.estimator == "k1" else log_ratio**2 / 2.0
        if self.estimator == "k3":
            estimate = (-log_ratio).expm1() + log_ratio  # exp - 1 would lose small ones in float32
        if self.ratio_to != "none":
            policy = micro.old_logprobs if self.ratio_to == "old" else outputs.logprobs.detach()
            estimate = estimate * (outputs.logprobs - policy).clamp(max=MAX_LOG_RATIO).exp()
        return self.coefficient * estimate


@dataclass(frozen=True)
class EntropyBonus(Checked):
    """-coefficient * entropy of the distribution each trained token was drawn from."""

    coefficient: Amount = 0.001
    """Loss less for each nat."""

    needs_ref: ClassVar[bool] = False
    needs_entropy: ClassVar[bool] = True

    def __call__(self, outputs: Outputs, micro: Micro) -> Tensor:
        return -self.coefficient * outputs.entropy


@dataclass(frozen=True)
class SquaredLogRatio(Checked):
    """coefficient * (logprob - logprob of the policy that sampled)^2, of every trained token, masked ones too.

    Source: the KL of Kimi K2.5 (arXiv:2602.02276) as prime-rl's default loss has it (`kl_tau`).
    """

    coefficient: Amount = 0.001
    """Loss for each squared nat."""

    needs_ref: ClassVar[bool] = False
    needs_entropy: ClassVar[bool] = False

    def __call__(self, outputs: Outputs, micro: Micro) -> Tensor:
        moved = (outputs.logprobs - micro.rollout_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        return self.coefficient * moved**2


@dataclass(frozen=True)
class NoCorrection:
    """The engine samples from the trainer's policy: nothing to correct."""

    def __call__(self, micro: Micro) -> Tensor:
        return micro.old_logprobs.new_ones(len(micro.old_logprobs))


@dataclass(frozen=True)
class SamplerMismatch(Checked):
    """Corrects an engine whose log-probs differ from the trainer's: r held within floor .. cap, or 0 outside.

        token:    r = exp(old_logprobs - rollout_logprobs)
        sequence: r = exp of their sum over the sequence, on each of its tokens

    Source: truncated importance sampling as in verl's rollout correction and TRL's `vllm_importance_sampling_*`; masked on both
    sides, IcePop. A sum over a sequence favours short ones: its spread grows with length. Hence token level by default, unlike
    TRL.
    """

    level: Literal["token", "sequence"] = "token"
    """Whose ratio the factor is: of each token, or of the sequence."""
    above_cap: Literal["truncate", "mask"] = "truncate"
    """Value of factors outside the bounds: the bound, or 0."""
    cap: Bound = 2.0
    """Largest factor; inf is off."""
    floor: NotNegative = added_later(0.0)
    """Smallest factor."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_order(self, "floor", "cap")

    def __call__(self, micro: Micro) -> Tensor:
        ratio = sampler_ratio(micro, self.level)
        if self.above_cap == "truncate":
            return ratio.clamp(self.floor, self.cap)
        return ratio.where(~((ratio < self.floor) | (ratio > self.cap)), 0.0)  # nan stays, and the update is skipped


@dataclass(frozen=True)
class SamplerRejection(Checked):
    """Drops tokens, or whole sequences, whose ratio r to the engine's policy lies outside low .. high.

        token: r = exp(old_logprobs - rollout_logprobs)          sequence: exp of their sum over the sequence
        any: a token of the sequence is outside                  mean: exp of their mean over the sequence

    By the sum a long sequence is dropped the sooner, by its worst token too; by the mean the later, whose spread falls with
    length. What is dropped still counts in the denominators, as in TRL, SkyRL and NeMo-RL; with `recount` it does not, as in
    verl, whose masks come before them: the kept tokens of the others weigh more.
    Source: SkyRL's `sequence_mask_metric`, NeMo-RL's `seq-mask-tis`, verl's `rollout_rs` (k1); bounds are SkyRL's.
    """

    level: Literal["token", "sequence", "mean", "any"] = "mean"
    """Whose ratio decides: a token's, the sequence's, its geometric mean, or each of its tokens'."""
    low: NotNegative = 0.99
    """Smallest ratio that is kept."""
    high: Bound = 1.01
    """Largest ratio that is kept."""
    weigh: bool = False
    """Whether kept tokens are also multiplied by their own ratio, as in NeMo-RL."""
    recount: bool = False
    """Whether denominators count kept tokens and sequences alone; the trainer then needs both log-probs before it plans."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_order(self, "low", "high")

    def __call__(self, micro: Micro) -> Tensor:
        kept, ratio = self.keep(micro), sampler_ratio(micro, "token")
        factor = ratio if self.weigh else ratio.clamp(1.0, 1.0)
        return factor.where(kept, 0.0)

    def keep(self, micro: Micro) -> Tensor:
        """Bool, [T]: the tokens that train."""
        ratio = sampler_ratio(micro, "token" if self.level == "any" else self.level)
        kept = ~((ratio < self.low) | (ratio > self.high))  # nan stays, and the update is skipped
        if self.level == "any":
            return micro.per_token(micro.sum_per_sequence((~kept).double()) == 0)
        return kept

    def count(self, length: Sequence[int] | Ints, old_logprobs: Tensor, rollout_logprobs: Tensor) -> Ints:
        """Tokens of each sequence [B] that train, given all of theirs [T]."""
        sizes = old_logprobs.new_tensor(length).long()
        kept, nothing = 0 * sizes, 0.0 * sizes
        micro = Micro.of(sizes, nothing, nothing, nothing, old_logprobs, rollout_logprobs)
        kept[sizes > 0] = micro.sum_per_sequence(self.keep(micro).long())
        return kept.cpu().numpy()


def require_order(stage: Checked, least: str, most: str) -> None:
    """Raise ValueError for bounds that let nothing through."""
    low, high = getattr(stage, least), getattr(stage, most)
    if low > high:
        raise ValueError(f"{type(stage).__name__}: {least}={low:g} above {most}={high:g}: give them in rising order")


def sampler_ratio(micro: Micro, level: str) -> Tensor:
    """The trainer's over the engine's probability, [T]: of a token, of its sequence, or its geometric mean over the sequence."""
    log_ratio = micro.old_logprobs - micro.rollout_logprobs
    if level != "token":
        total = micro.sum_per_sequence(log_ratio)
        log_ratio = micro.per_token(total / micro.length if level == "mean" else total)
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp()


Term = ReferenceKL | EntropyBonus | SquaredLogRatio
Correction = NoCorrection | SamplerMismatch | SamplerRejection
