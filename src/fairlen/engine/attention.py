"""Attention of new tokens over cached rows of different lengths, as transformers' attention interface calls it.

Grouped heads share keys and values without copies of them, and the softmax is at least float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "fairlen_rows"
LIKE_SDPA = ("sdpa", "fairlen_tree")
"""Attentions that ignore the cap on scores; the trainer's along trees is sdpa for everything else."""


def attend_rows(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    *,
    query_positions: Tensor,
    ignores_softcap: bool = False,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend from `query` [N, heads, T, D] to `key` [N, key heads, L, D] and `value` [N, key heads, L, Dv].

    A query at `query_positions` [N, T] sees the columns up to that position, of a sliding window the last ones.
    Return [N, T, heads, Dv].
    """
    softcap = None if ignores_softcap else softcap
    rows, heads, length, dim = query.shape
    scale: float = dim**-0.5 if scaling is None else scaling
    hidden = hidden_columns(query_positions, key.shape[2], sliding_window)
    if query.is_cuda and length > 1 and softcap is None:
        return attend_pieces(query, key, value, hidden, scale), None
    groups = heads // key.shape[1]
    scores = (query * scale).to(key.dtype).reshape(rows, key.shape[1], groups * length, dim) @ key.transpose(2, 3)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.view(rows, key.shape[1], groups, length, -1).masked_fill(hidden[:, None, None], float("-inf"))
    weights = torch.softmax(scores, -1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
    mixed = weights.view(rows, key.shape[1], groups * length, -1) @ value
    return mixed.view(rows, heads, length, -1).transpose(1, 2), None


def attend_pieces(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, scale: float) -> Tensor:
    """Attend as `attend_rows` from several queries a row, by kernels that never hold the scores of a whole prompt."""
    key, value = (heads.repeat_interleave(query.shape[1] // heads.shape[1], 1) for heads in (key, value))
    return scaled_dot_product_attention(query.to(key.dtype), key, value, ~hidden[:, None], scale=scale).transpose(1, 2)


def hidden_columns(positions: Tensor, num_columns: int, window: int | None) -> Tensor:
    """Return whether a query at `positions` [N, T] may not see a column: later, or `window` or more before; [N, T, L]."""
    columns = torch.arange(num_columns, device=positions.device)
    hidden = columns > positions[..., None]
    return hidden if window is None else hidden | (columns <= positions[..., None] - window)


AttentionInterface.register(NAME, attend_rows)
