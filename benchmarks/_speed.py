"""MFU by the formula of torchtitan, as others publish it: flops over the device's peak in dense bfloat16.

A sequence of T tokens has (6 N + 12 L H T) T flops: N parameters of matrix products, the head's with them (4 for those that are
frozen), L layers, H the hidden size; causal attention counts whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from transformers import PreTrainedModel

PEAKS = {"NVL": 835, "H100 PCIe": 756, "H100": 989, "H200": 989, "B200": 2250, "A100": 312, "RTX 4090": 165}
"""Tflop/s of dense products in bfloat16 by NVIDIA's data sheets, by a part of the device's name; the first that fits."""


def update_flops(model: PreTrainedModel, lengths: Sequence[int]) -> float:
    """Return the flops of an update over sequences of so many tokens by the formula above."""
    weights = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    dense = sum((6 if weight.requires_grad else 4) * weight.numel() for weight in weights)
    config = model.config.get_text_config()
    pairs = 12 * config.num_hidden_layers * config.hidden_size
    return float(sum((dense + pairs * length) * length for length in lengths))


def peak_flops(name: str) -> float | None:
    """Return the peak of a device of this name; None for one that is not in PEAKS."""
    return next((1e12 * peak for part, peak in PEAKS.items() if part in name), None)
