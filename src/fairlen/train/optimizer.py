"""AdamW, its learning rate by the model, and the bytes of its moments."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fairlen.policy.model import Policy
from fairlen.settings import LARGE
from fairlen.train.run.config import TrainConfig


def choose_learning_rate(policy: Policy) -> float:
    """Return a learning rate by the number of parameters: of the shipped models, of small pretrained ones, of all others.

    1e-6 is the default of TRL and verl; adapters take ten times as much ("LoRA Without Regret", Thinking Machines, 2025).
    """
    size = policy.model.num_parameters()
    return 3e-4 if size < LARGE else 1e-4 if policy.has_adapters else 1e-5 if size < 1e9 else 1e-6


def build_optimizer(config: TrainConfig, policy: Policy) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        policy.trained().values(),
        lr=config.update.learning_rate or choose_learning_rate(policy),
        betas=(0.9, 0.95),
        weight_decay=config.update.weight_decay,
        fused=policy.device.type == "cuda" or None,  # without a second copy of what it works on
    )


def count_moments(weights: Iterable[Tensor]) -> int:
    """Bytes of the two moments of each weight, which have its type."""
    return 2 * sum(weight.nbytes for weight in weights)
