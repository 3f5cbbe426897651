"""Terms added to the surrogate, and corrections that multiply it.

term(outputs, micro)        -> loss [T], summed with the plan's term_weight
correction(micro)           -> factor [T] on the surrogate's loss, without gradient
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fairlen.checks import Checked, NotNegative, Positive
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
    """

    coefficient: NotNegative = 0.001
    """Loss for each nat."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Of the divergence, from the log-probs of one token: k1, k2 or k3."""

    needs_ref: ClassVar[bool] = True
    needs_entropy: ClassVar[bool] = False

    def __call__(self, outputs: Outputs, micro: Micro) -> Tensor:
        if micro.ref_logprobs is None:
            raise TypeError("ref_logprobs=None: ReferenceKL needs the reference model's log-probs of every token")
        log_ratio = (outputs.logprobs - micro.ref_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        if self.estimator == "k1":
            return self.coefficient * log_ratio
        if self.estimator == "k2":
            return self.coefficient * log_ratio**2 / 2.0
        return self.coefficient * ((-log_ratio).expm1() + log_ratio)  # exp - 1 would lose small ones in float32


@dataclass(frozen=True)
class EntropyBonus(Checked):
    """-coefficient * entropy of the distribution each trained token was drawn from."""

    coefficient: NotNegative = 0.001
    """Loss less for each nat."""

    needs_ref: ClassVar[bool] = False
    needs_entropy: ClassVar[bool] = True

    def __call__(self, outputs: Outputs, micro: Micro) -> Tensor:
        return -self.coefficient * outputs.entropy


@dataclass(frozen=True)
class NoCorrection:
    """The engine samples from the trainer's policy: nothing to correct."""

    def __call__(self, micro: Micro) -> Tensor:
        return micro.old_logprobs.new_ones(len(micro.old_logprobs))


@dataclass(frozen=True)
class SamplerMismatch(Checked):
    """Corrects an engine whose log-probs differ from the trainer's: min(r, cap), or 0 above the cap.

        token:    r = exp(old_logprobs - rollout_logprobs)
        sequence: r = exp of their sum over the sequence, on each of its tokens

    Source: truncated importance sampling as in verl's rollout correction and TRL's `vllm_importance_sampling_*`. A sum over a
    sequence favours short ones: its spread grows with length. Hence token level by default, unlike TRL.
    """

    level: Literal["token", "sequence"] = "token"
    """Whose ratio the factor is: of each token, or of the sequence."""
    above_cap: Literal["truncate", "mask"] = "truncate"
    """Value of factors above the cap: the cap, or 0."""
    cap: Positive = 2.0
    """Largest factor."""

    def __call__(self, micro: Micro) -> Tensor:
        log_ratio = micro.old_logprobs - micro.rollout_logprobs
        if self.level == "sequence":
            log_ratio = micro.per_token(micro.sum_per_sequence(log_ratio))
        ratio = log_ratio.clamp(max=20.0).exp()
        return ratio.clamp(max=self.cap) if self.above_cap == "truncate" else ratio * (ratio <= self.cap)


Term = ReferenceKL | EntropyBonus
Correction = NoCorrection | SamplerMismatch
