"""Layers that an update runs compiled, where its sequences are rows: one graph for all layers and all shapes of rows.

Norms, activations and residual sums become few kernels instead of many. Outside of updates layers are as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from fairlen.console import warn
from fairlen.policy.layout import small_batch
from fairlen.policy.model import Policy
from fairlen.policy.pack import pack
from fairlen.settings import LARGE


@dataclass(frozen=True)
class CompiledLayers:
    """Layers of a model, and what to call in their place."""

    layers: tuple[nn.Module, ...] = ()
    calls: tuple[Callable[..., Any], ...] = ()

    @contextmanager
    def used(self, when: bool = True) -> Iterator[None]:
        """Run them compiled within, forward and backward: with checkpointing, backward goes forward once more."""
        try:
            if when:
                self.set(self.calls)
            yield
        finally:
            self.set((None,) * len(self.layers))

    def set(self, calls: tuple[Callable[..., Any] | None, ...]) -> None:
        """Call these: what `nn.Module.compile` sets, which has no way back."""
        for layer, call in zip(self.layers, calls, strict=True):
            layer._compiled_call_impl = call  # pyright: ignore[reportAttributeAccessIssue]


def compile_layers(policy: Policy, wanted: Literal["auto", "on", "off"]) -> CompiledLayers:
    """Return the layers to compile; "auto" takes those of large models on CUDA. None, with a warning, where that goes wrong.

    Log-probs and a gradient are compared with those of uncompiled layers, for several rows at once and for one.
    """
    gains = policy.device.type == "cuda" and policy.model.num_parameters() > LARGE
    if wanted == "off" or (wanted == "auto" and not gains):
        return CompiledLayers()
    layers = tuple(module for module in policy.model.modules() if isinstance(module, GradientCheckpointingLayer))
    found = CompiledLayers(layers, tuple(torch.compile(layer._call_impl, dynamic=True) for layer in layers))
    expected = differentiate(policy)
    try:
        with found.used():
            error = max(map(find_error, differentiate(policy), expected))
    except Exception as broken:  # compilers raise errors of any class
        warn(f"layers are not compiled: {(str(broken).strip() or repr(broken)).splitlines()[0]}")
        return CompiledLayers()
    tolerance = 2 * torch.finfo(torch.bfloat16 if policy.autocast else torch.float32).eps ** 0.5
    if not error <= tolerance:
        warn(
            f"layers are not compiled: compiled they differ by {error:.1e} of the largest number (tolerance {tolerance:.1e})"
        )
        return CompiledLayers()
    return found


def differentiate(policy: Policy) -> list[Tensor]:
    """Return log-probs of a small batch in one micro-batch and in one for each row, and gradients of their sums."""
    rollouts, plan = small_batch(policy)
    weight = min(policy.trained().values(), key=Tensor.numel)
    was_training, found = policy.model.training, []
    policy.model.train()
    try:
        for max_tokens in (1 << 20, 1):
            packs = pack(rollouts, plan, max_tokens, trees=False, device=policy.device)
            logprobs = torch.cat([policy.forward(packed.inputs).logprobs for packed in packs])
            gradient = torch.autograd.grad(logprobs.sum(), weight, allow_unused=True)[0]
            found += [logprobs.detach(), torch.zeros_like(weight) if gradient is None else gradient]
    finally:
        policy.model.train(was_training)
    return found


def find_error(one: Tensor, other: Tensor) -> float:
    """Return the largest difference in units of the largest number, or infinity where something is not a number."""
    error = (one - other).abs().max() / other.abs().max().clamp(min=1e-6)
    return float(error.nan_to_num(nan=torch.inf))
