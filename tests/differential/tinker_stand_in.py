"""What a loop needs of the package `tinker` 0.38, without its server: its types, and a client that trains one small table.

The losses are those that its documentation gives: sums over all tokens of ratio * advantage, clipped for `ppo`; the clipped ratio
held, times log-prob and advantage, for `cispo`. `forward_backward_custom` differentiates the caller's loss by the log-probs and
sends the slopes on, as theirs does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

KINDS = {"target_tokens": torch.int64, "logprobs": torch.float32, "advantages": torch.float32}
CLIPS = {"ppo": (0.8, 1.2), "cispo": (0.0, 4.0)}
"""Bounds of the ratio where the caller gives none."""


class TensorData:
    """A tensor on its way to the server."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def to_torch(self) -> Tensor:
        return self.tensor


class ModelInput:
    """Tokens that the model reads."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    @classmethod
    def from_ints(cls, tokens: list[int]) -> ModelInput:
        return cls(tokens)

    def to_ints(self) -> list[int]:
        return self.tokens


@dataclass
class Datum:
    """One sequence; lists among `loss_fn_inputs` become tensors of 32 bits."""

    model_input: ModelInput
    loss_fn_inputs: dict[str, Any]

    def __post_init__(self) -> None:
        pairs = self.loss_fn_inputs.items()
        self.loss_fn_inputs = {key: TensorData(torch.tensor(values, dtype=KINDS[key])) for key, values in pairs}


class TrainingClient:
    """A policy whose next token depends on the last one alone: a table [V, V] of logits, whose `grad` adds up."""

    def __init__(self, table: Tensor) -> None:
        self.table = table.requires_grad_()

    def log_probs(self, datum: Any) -> Tensor:
        """Nats of each target token."""
        logits = self.table[datum.model_input.to_ints()].log_softmax(-1)
        return logits.gather(1, datum.loss_fn_inputs["target_tokens"].to_torch()[:, None])[:, 0]

    def forward_backward(self, data: list[Any], loss_fn: str, loss_fn_config: dict[str, float] | None = None) -> None:
        low, high = CLIPS.get(loss_fn, (0.0, 0.0))
        low, high = (
            (loss_fn_config or {}).get("clip_low_threshold", low),
            (loss_fn_config or {}).get("clip_high_threshold", high),
        )
        for datum in data:
            now, old, advantage = (
                self.log_probs(datum),
                *(datum.loss_fn_inputs[k].to_torch() for k in ("logprobs", "advantages")),
            )
            ratio = (now - old).exp()
            gain = {
                "importance_sampling": ratio * advantage,
                "ppo": torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage),
                "cispo": ratio.clamp(low, high).detach() * now * advantage,
            }[loss_fn]
            (-gain.sum()).backward()

    def forward_backward_custom(self, data: list[Any], loss_fn: Callable[..., tuple[Tensor, dict[str, float]]]) -> None:
        leaves = [self.log_probs(datum).detach().requires_grad_() for datum in data]
        loss_fn(data, leaves)[0].backward()
        for datum, leaf in zip(data, leaves, strict=True):
            self.log_probs(datum).backward(leaf.grad)
