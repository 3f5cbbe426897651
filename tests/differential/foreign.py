"""One fixed rollout batch for every project.

prompt   0           1            2            3
length   3  7  1  5  9  2   6  4  12 8  3  1   5  5  2 10      83 tokens, at most 12 a response
reward   1  0  0  1  .3 .9 -.2 .4 2  2  0  1   .5 .5 .5 .5     prompt 3 has no variance
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FIXTURE, AUTHORS, PEERS = (Path(__file__).with_name(f"{name}.json") for name in ("foreign", "authors", "peers"))
MAX_LENGTH, GROUP_SIZE = 12, 4
LENGTH = [3, 7, 1, 5, 9, 2, 6, 4, 12, 8, 3, 1, 5, 5, 2, 10]
REWARD = [1.0, 0.0, 0.0, 1.0, 0.3, 0.9, -0.2, 0.4, 2.0, 2.0, 0.0, 1.0, 0.5, 0.5, 0.5, 0.5]
BINARY = [float(reward > 0.45) for reward in REWARD]
"""Verdicts, for methods that have no graded rewards: 1 0 0 1, 0 1 0 0, 1 1 0 1, 1 1 1 1."""
NAMED = {"correct": BINARY, "style": [reward**2 - reward / 3 for reward in REWARD]}
"""Two outcomes of each response, by name."""
READ = [5 + 3 * (row % 3) for row in range(len(LENGTH))]
"""Tokens that each response read."""
GROUP = [row // GROUP_SIZE for row in range(len(LENGTH))]
NUM_TOKENS = sum(LENGTH)


@dataclass(frozen=True)
class Batch:
    """Padded log-probs [N, MAX_LENGTH] in float64 and which of them are a response's; padding holds junk."""

    mask: Tensor
    now: Tensor
    """The leaf to differentiate by."""
    old: Tensor
    """The policy that the rollout batch began with: `now` and noise of the size of the case."""
    rollout: Tensor
    """The engine's, or a reference model's: `old` and noise of size 0.4."""

    def flat(self, values: Tensor) -> Tensor:
        """The tokens of responses back to back, [NUM_TOKENS]."""
        return values[self.mask]

    def spread(self, values: Tensor) -> Tensor:
        """One number a response on each of its tokens, [N, MAX_LENGTH]; 0 elsewhere."""
        return values[:, None] * self.mask


def make_batch(noise: float) -> Batch:
    """The batch, with log ratios of that size; RandomState draws the same in every version of numpy."""
    draw = np.random.RandomState(1)  # of 0 to 9 the one draw with which every clip of every case acts
    shape = (len(LENGTH), MAX_LENGTH)
    now, old, rollout = (torch.from_numpy(draw.standard_normal(shape).round(4)) for _ in range(3))
    mask = torch.arange(MAX_LENGTH)[None] < torch.tensor(LENGTH)[:, None]
    now = -1.5 + 0.3 * now
    old = (now + noise * old).clamp(max=0.0)
    return Batch(mask, now.requires_grad_(), old.detach(), (old + 0.4 * rollout).clamp(max=0.0).detach())
