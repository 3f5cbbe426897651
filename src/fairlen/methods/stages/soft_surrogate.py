"""Surrogates that silence no token: a clipped weight, a gate, a kernel. Contract and words are those of surrogate.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairlen.checks import check_clip, check_positive
from fairlen.methods.micro import Micro, TokenLoss
from fairlen.methods.stages.surrogate import bound_log, sequence_log_ratio, token_ratio, unbounded

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DetachedClip:
    """Weighs the log-prob by the clipped ratio without a gradient through it: -sg[clip(rho)] A logprob. No token is silenced.

    Source: CISPO (arXiv:2506.13585, equations 4 and 5). `clip_high` is not published there; 4, so a largest weight of 5, is
    ScaleRL's (TRL writes it as epsilon_high=5). `clip_low` 1 means no lower bound, as in the paper.
    """

    clip_low: float = 1.0
    """Lower bound of the weight, below 1; 1 is none."""
    clip_high: float = 4.0
    """Upper bound of the weight, above 1."""

    def __post_init__(self) -> None:
        check_clip(self)

    def __call__(self, logprobs: Tensor, micro: Micro) -> TokenLoss:
        ratio = token_ratio(logprobs.detach(), micro)
        held = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high)
        loss = -held * micro.per_token(micro.advantage) * logprobs
        return TokenLoss(loss=loss, ratio=ratio, clipped=ratio != ratio, inside=held == ratio)


@dataclass(frozen=True)
class SoftGate:
    """A smooth gate instead of a clip: -(4 / tau) sigmoid(tau (rho - 1)) A, tau by the sign of the advantage.

    Source: SAPO (arXiv:2511.20347, equations 5 and 6).
    """

    tau_positive: float = 1.0
    """Steepness of the gate for positive advantages."""
    tau_negative: float = 1.05
    """For negative ones."""

    def __post_init__(self) -> None:
        check_positive(self, "tau_positive", "tau_negative")

    def __call__(self, logprobs: Tensor, micro: Micro) -> TokenLoss:
        ratio = token_ratio(logprobs, micro)
        advantage = micro.per_token(micro.advantage)
        tau = (advantage > 0).to(ratio.dtype) * (self.tau_positive - self.tau_negative) + self.tau_negative
        return unbounded(-(tau * (ratio - 1.0)).sigmoid() * 4.0 / tau * advantage, ratio.detach())


@dataclass(frozen=True)
class GammaKernel:
    """Weighs the log-prob by a smooth kernel of the sequence's full ratio W: -sg[W^c1 exp(c2 (1 - W))] A logprob.

    Source: VESPO (arXiv:2602.10693; (c1, c2) = (2, 3) for advantages of at least 0, (3, 2) below). The kernel is 1 at W = 1.
    """

    power_positive: float = 2.0
    """c1 for advantages of at least 0."""
    decay_positive: float = 3.0
    """c2 for advantages of at least 0."""
    power_negative: float = 3.0
    """c1 below 0."""
    decay_negative: float = 2.0
    """c2 below 0."""

    def __post_init__(self) -> None:
        check_positive(self, "power_positive", "decay_positive", "power_negative", "decay_negative")

    def __call__(self, logprobs: Tensor, micro: Micro) -> TokenLoss:
        log_ratio = bound_log(sequence_log_ratio(logprobs.detach(), micro))
        positive = (micro.advantage >= 0).to(log_ratio.dtype)
        power = positive * (self.power_positive - self.power_negative) + self.power_negative
        decay = positive * (self.decay_positive - self.decay_negative) + self.decay_negative
        kernel = (power * log_ratio + decay * (1.0 - log_ratio.exp())).exp()
        loss = -micro.per_token(kernel * micro.advantage) * logprobs
        return unbounded(loss, micro.per_token(log_ratio.exp()))
