"""A trust region without a clip of the ratio: a token is masked by how far its probability moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fairlen.checks import Bound, Checked, NotNegative
from fairlen.methods.stages.micro import Micro, TokenLoss
from fairlen.methods.stages.surrogate import OFF, token_ratio

if TYPE_CHECKING:
    from torch import Tensor

TINY = 1e-8
"""Keeps the logarithm of 1 - probability finite."""


@dataclass(frozen=True)
class DivergenceMask(Checked):
    """-w A, w = min(rho, cap), on the tokens whose distribution has not moved too far to the side that the advantage pushes to.

        tv:  masked where A > 0 and p - q > high, or A <= 0 and q - p > low,        p, q = exp(logprob), exp(old logprob)
        kl:  masked where A > 0, p > q and KL > high, or A <= 0, p < q and KL > low,   KL of (q, 1 - q) from (p, 1 - p)

    A rare token may change its ratio by much before its probability moves, so that the mask silences frequent tokens, of any
    length, where a clip silences rare ones.
    Source: DPPO (arXiv:2602.04879, equations 13 and 14), as in verl 0.9.1, SkyRL and prime-rl.
    """

    low: NotNegative = 0.2
    """Largest fall of the probability, or divergence on that side."""
    high: NotNegative = 0.2
    """Largest rise, or divergence on that side."""
    divergence: Literal["tv", "kl"] = "tv"
    """Distance: total variation of the binary distribution token or not, or its KL divergence."""
    sides: Literal["advantage", "both"] = "advantage"
    """Moves that are masked: to the side that the advantage pushes to, or to both (prime-rl's ipo)."""
    moved_from: Literal["old", "sampled"] = "old"
    """Policy that the distance is from: the old one by the trainer's arithmetic, or as the engine sampled from it."""
    cap: Bound = OFF
    """Largest weight; a token beyond it still trains; inf is off."""
    value: Literal["ratio", "logprob"] = "ratio"
    """Value of the loss, -w A or -w A logprob; the gradient is one."""

    def __call__(self, logprobs: Tensor, micro: Micro) -> TokenLoss:
        now, advantage = logprobs.detach(), micro.per_token(micro.advantage)
        before = micro.old_logprobs if self.moved_from == "old" else micro.rollout_logprobs
        rises, falls = self.find_moved(now, before)
        masked = rises | falls if self.sides == "both" else rises.where(advantage > 0, falls)
        ratio = token_ratio(now, micro)
        weight = ratio.clamp(max=self.cap) * advantage * (~masked).to(ratio.dtype)
        factor = logprobs if self.value == "logprob" else 1.0 + logprobs - now
        return TokenLoss(-weight * factor, ratio, masked & (advantage != 0), ~rises & ~falls)

    def find_moved(self, now: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Where the probability of a token rose too far, and where it fell too far, [T] each."""
        p, q = now.exp(), before.exp()
        if self.divergence == "tv":
            return p - q > self.high, q - p > self.low
        distance = q * (before - now) + (1.0 - q) * ((1.0 - q + TINY) / (1.0 - p + TINY)).log()
        return (p > q) & (distance > self.high), (p < q) & (distance > self.low)
