"""AdamW: torch's own, or bitsandbytes' with moments of 8 bits or paged to the host's memory, and the bytes of its moments."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from fairlen.policy.model import Policy
from fairlen.settings import LARGE
from fairlen.train.run.config import TrainConfig

CLASSES = {"adamw_8bit": "AdamW8bit", "paged_adamw_32bit": "PagedAdamW32bit", "paged_adamw_8bit": "PagedAdamW8bit"}
"""Classes of bitsandbytes.optim by setting, which has transformers' names."""
MIN_8BIT, MIN_PAGED, BLOCK = 4096, 100_000, 256
"""Elements of a tensor from which on bitsandbytes keeps 8 bits or pages, and those that share a scale."""


def choose_learning_rate(policy: Policy) -> float:
    """Return a learning rate by the number of parameters: of the shipped models, of small pretrained ones, of all others.

    1e-6 is the default of TRL and verl; adapters take ten times as much ("LoRA Without Regret", Thinking Machines, 2025).
    """
    size = policy.model.num_parameters()
    return 3e-4 if size < LARGE else 1e-4 if policy.has_adapters else 1e-5 if size < 1e9 else 1e-6


def check_optimizer(config: TrainConfig, device: str) -> None:
    """Raise ValueError where the optimizer is not installed, or cannot run on that device."""
    if config.update.optim == "adamw":
        return
    if config.model.dtype == "float64":
        raise ValueError(f"optim={config.update.optim} computes in float32: give --dtype float32 or bfloat16")
    if config.update.optim.startswith("paged") and device == "cpu":
        raise ValueError(
            f"optim={config.update.optim} pages for CUDA, and the run is on the CPU: leave --optim at adamw"
        )
    try:
        import_module("bitsandbytes")
    except ImportError as error:
        raise ValueError(
            f"optim={config.update.optim} needs bitsandbytes ({error}): pip install 'fairlen[bitsandbytes]', or leave it at adamw"
        ) from None


def build_optimizer(config: TrainConfig, policy: Policy) -> torch.optim.Optimizer:
    weights, device = policy.trained().values(), policy.device.type
    options: dict[str, Any] = dict(
        lr=config.update.learning_rate or choose_learning_rate(policy),
        betas=(0.9, 0.95),
        weight_decay=config.update.weight_decay,
    )
    if config.update.optim == "adamw":  # fused: without a second copy of what it works on
        return torch.optim.AdamW(weights, **options, fused=device == "cuda" or None)
    optim: Any = import_module("bitsandbytes.optim")
    manager = optim.GlobalOptimManager.get_instance()
    manager.initialize()  # it knows parameters of earlier runs by addresses that may be used again
    manager.override_config(embedding_weights(policy.model), "optim_bits", 32)
    return getattr(optim, CLASSES[config.update.optim])(weights, **options)


def embedding_weights(model: nn.Module) -> list[Tensor]:
    """Weights whose moments have 32 bits as in transformers: few of their rows have a gradient."""
    return [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]


def name_of(optimizer: torch.optim.Optimizer) -> str:
    return next((name for name, kind in CLASSES.items() if kind == type(optimizer).__name__), "adamw")


def count_moments(optim: str, weights: Sequence[Tensor], embeddings: Sequence[Tensor], size: int) -> list[int]:
    """Device bytes of each weight's two moments, for elements of `size` bytes."""
    in_full, found = {id(weight) for weight in embeddings}, []
    for weight in weights:
        number = weight.numel()
        is_low = optim.endswith("8bit") and number >= MIN_8BIT and id(weight) not in in_full
        is_elsewhere = optim.startswith("paged") and number >= MIN_PAGED
        scales = 2 * 4 * -(-number // BLOCK) if is_low else 0
        found.append(scales + (0 if is_elsewhere else 2 * number * (1 if is_low else size)))
    return found
