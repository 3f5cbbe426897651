"""A stage with state, as a user writes one: PPO's bound, as wide as twice the mean |log ratio| of the updates so far."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fairlen.methods.micro import Micro, Outputs, Sums, TokenLoss, state


@dataclass(frozen=True)
class MovingClip:
    choice = "surrogate"
    rate: float = 0.5
    """Weight of the newest update."""
    width: float = state(0.2)
    num_updates: int = state(0)

    def __call__(self, logprobs: Tensor, micro: Micro) -> TokenLoss:
        ratio, advantage = (logprobs - micro.old_logprobs).exp(), micro.per_token(micro.advantage)
        bounded = ratio.clamp(1.0 - self.width, 1.0 + self.width)
        loss = -torch.minimum(ratio * advantage, bounded * advantage)
        inside = bounded == ratio
        return TokenLoss(loss, ratio.detach(), (bounded * advantage < ratio * advantage) & ~inside, inside)

    def observe(self, outputs: Outputs, micro: Micro) -> dict[str, float]:
        if micro.is_on_policy:
            return {"tokens": 0.0, "distance": 0.0}
        distance = (outputs.logprobs.detach() - micro.old_logprobs).abs().double().sum()
        return {"tokens": float(micro.length.sum()), "distance": float(distance)}

    def update(self, sums: Sums) -> MovingClip:
        if sums["tokens"] == 0:
            return self
        width = (1.0 - self.rate) * self.width + self.rate * 2.0 * sums["distance"] / sums["tokens"]
        return replace(self, width=width, num_updates=self.num_updates + 1)
