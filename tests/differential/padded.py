"""The same numbers as other libraries want them: padded rows and a mask. Padding is on the right and full of junk."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from fixtures import Batch, plan_of, random_batch, relative
from torch import Tensor

from fairlen.batch import Plan
from fairlen.methods.method import Method
from fairlen.methods.stages.micro import Micro, Outputs


@dataclass(frozen=True)
class Padded:
    """One update, padded to the longest row, [B, L] unless said otherwise."""

    logprobs: Tensor
    entropy: Tensor
    old: Tensor
    rollout: Tensor
    ref: Tensor
    mask: Tensor
    """int64, 1 where a token trains."""
    advantages: Tensor
    """[B]"""
    micro: Micro
    """The same update as fairlen has it."""

    @property
    def num_tokens(self) -> int:
        return int(self.mask.sum())

    def outputs(self) -> Outputs:
        return Outputs(self.logprobs[self.mask.bool()], self.entropy[self.mask.bool()])

    def one_advantage_a_token(self) -> Tensor:
        """[B, L], as verl has them."""
        return self.advantages[:, None] * self.mask


def pad(plan: Plan, seed: int, scale: float) -> Padded:
    """Random log-probs of a plan's rows; log ratios to the old policy have the given scale."""
    draw = torch.Generator().manual_seed(seed)
    rows, longest = len(plan), int(plan.length.max())
    length = torch.from_numpy(plan.length)
    mask = (torch.arange(longest)[None] < length[:, None]).long()

    def noise(size: float) -> Tensor:
        return size * torch.randn(rows, longest, generator=draw, dtype=torch.float64)

    logprobs = -1.5 + noise(0.3)
    old, rollout, ref = logprobs + noise(scale), logprobs + noise(scale + 0.1), logprobs + noise(0.5)
    chosen = mask.bool()
    advantage = torch.from_numpy(plan.advantage)
    micro = Micro(
        length=length, sequence=torch.repeat_interleave(torch.arange(rows), length), advantage=advantage,
        weight=torch.from_numpy(plan.weight), term_weight=torch.from_numpy(plan.term_weight),
        old_logprobs=old[chosen], rollout_logprobs=rollout[chosen], is_on_policy=False, ref_logprobs=ref[chosen],
    )  # fmt: skip
    entropy = noise(1.0).abs().requires_grad_()
    return Padded(logprobs.requires_grad_(), entropy, old, rollout, ref, mask, advantage, micro)


def agree(
    method: Method,
    theirs: Callable[[Padded, Batch], Tensor],
    *,
    scale: float = 0.3,
    tolerance: float = 1e-6,
    seeds: int = 4,
) -> None:
    """Asserts that loss and gradients are those of the other library, on ragged random batches."""
    for seed in range(seeds):
        batch = random_batch(seed)
        padded = pad(plan_of(method, batch), seed, scale)
        leaves = (padded.logprobs, padded.entropy)
        ours, other = method.loss(padded.outputs(), padded.micro).total, theirs(padded, batch)
        assert relative(ours.detach(), other.detach()) < tolerance or abs(ours.item() - other.item()) < 1e-9
        for one, two in zip(
            torch.autograd.grad(ours, leaves, allow_unused=True),
            torch.autograd.grad(other, leaves, allow_unused=True),
            strict=True,
        ):
            if one is not None or two is not None:
                one, two = (torch.zeros_like(padded.mask, dtype=torch.float64) if g is None else g for g in (one, two))
                assert relative(one, two) < tolerance or float((one - two).abs().max()) == 0.0
        assert torch.autograd.grad(method.loss(padded.outputs(), padded.micro).total, leaves[0])[0].abs().max() > 0


def equal_groups(seed: int, num_prompts: int = 5, num_tracks: int = 4) -> tuple[Batch, np.ndarray]:
    """A batch of whole groups with graded rewards, [R]."""
    batch = random_batch(seed, num_prompts, num_tracks)
    reward = np.random.default_rng(seed).standard_normal(num_prompts * num_tracks).round(2)
    reward[:num_tracks] = 0.5  # one group without variance
    return replace(batch, responses=replace(batch.responses, outcome=reward)), reward
