"""Random-weight models in the public shapes of Qwen3: bytes that a decoding step reads, arithmetic of an update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

HEADS = {
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
}
SHAPES: dict[str, dict[str, int]] = {
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, **HEADS},
    "1.7B": {"hidden_size": 2048, "intermediate_size": 6144, **HEADS},
    "tiny": {
        "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512,
    },
}  # fmt: skip
NEVER = 1
"""A token that `forbid` makes impossible: as EOS it ends nothing, and every length is its budget."""


@dataclass(frozen=True)
class Counts:
    """The sizes of a model."""

    body: int
    """Parameters of the matrix products of all layers."""
    head: int
    """Parameters of the output layer; tied or not, a step reads them once, and of an input embedding a row a token."""
    attention: int
    """Layers * heads * dimension of a head: multiplications of a token's query with one key, over all layers."""
    cached: int
    """Numbers that the keys and values of one position hold, over all layers."""

    def decode_bytes(self, rows: int, positions: float, itemsize: int) -> float:
        """Bytes to read for one token in each of `rows` that attends to `positions`: the weights once, and keys and values."""
        return itemsize * (self.body + self.head + rows * positions * self.cached)

    def update_flops(self, prompt: int, lengths: Sequence[int], shared: bool) -> float:
        """Of forward and backward of one group: 6 a parameter and token, 12 a pair of tokens that attend to each other.

        Only tokens of responses reach the head. `shared`: the prompt is computed once. Padding and what is computed a second
        time are not counted: they are work, not use.
        """
        ends = [prompt + length for length in lengths]
        prompts = 1 if shared else len(ends)
        tokens = prompts * prompt + sum(lengths)
        pairs = (prompts * prompt**2 + sum(end**2 - prompt**2 for end in ends)) / 2
        return 6 * self.body * tokens + 6 * self.head * sum(lengths) + 12 * self.attention * pairs


def count(model: PreTrainedModel) -> Counts:
    """The counts of a model of one of our shapes."""
    config: Any = model.config
    linear = [module.weight.numel() for module in model.model.modules() if isinstance(module, nn.Linear)]
    cached = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    attention = config.num_hidden_layers * config.num_attention_heads * config.head_dim
    return Counts(sum(linear), model.lm_head.weight.numel(), attention, cached)


def shape_of(shape: str) -> Qwen3Config:
    """The public config of a shape, without tokens that mean anything."""
    return Qwen3Config(
        **SHAPES[shape], tie_word_embeddings=True, max_position_embeddings=40_960, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        architectures=["Qwen3ForCausalLM"],
    )  # fmt: skip


def build_model(shape: str, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Random weights from a fixed seed."""
    torch.manual_seed(0)
    with device:
        return AutoModelForCausalLM.from_config(shape_of(shape), dtype=dtype).eval()


def forbid(model: PreTrainedModel, token: int) -> None:
    """Gives a token the probability 0, by a bias of the output layer."""
    bias = torch.zeros_like(model.lm_head.weight[:, 0])
    bias[token] = -1e4
    model.lm_head.bias = nn.Parameter(bias, requires_grad=False)
