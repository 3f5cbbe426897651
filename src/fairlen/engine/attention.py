"""Attention of new tokens over cached rows, as transformers' attention interface calls it.

Rows have different lengths; a query sees the columns up to its own position. Grouped heads share keys and values
without copies of them, and the softmax is at least float32. Not here: any state; what a call needs comes in as
arguments.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from fairlen.engine import ragged

CAPPED, UNCAPPED = "fairlen_rows", "fairlen_rows_uncapped"
"""Names under which the two variants are registered."""
LIKE_SDPA = ("sdpa", "fairlen_tree")
"""The trainer's attention along trees is sdpa for everything else."""


def attend_rows(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    *,
    query_positions: Tensor,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attends from `query` [N, heads, T, D] to `key` [N, key heads, L, D] and `value` [N, key heads, L, Dv].

    A query at `query_positions` [N, T] sees the columns up to that position, of a sliding window the last ones; `s_aux`
    [heads] are learned sinks. Returns [N, T, heads, Dv].
    """
    rows, heads, length, dim = query.shape
    scale: float = dim**-0.5 if scaling is None else scaling
    if s_aux is None and ragged.is_available(query, key, value):
        window = ragged.UNBOUNDED if sliding_window is None else sliding_window
        return ragged.attend(query, key, value, query_positions, scale, softcap or 0.0, window)[:, None], None
    groups = heads // key.shape[1]
    scores = (query * scale).reshape(rows, key.shape[1], groups * length, dim) @ key.transpose(2, 3)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    hidden = hidden_columns(query_positions, key.shape[2], sliding_window)
    scores = scores.view(rows, key.shape[1], groups, length, -1).masked_fill(hidden[:, None, None], float("-inf"))
    weights = softmax_with_sinks(scores, s_aux).to(value.dtype)
    mixed = weights.view(rows, key.shape[1], groups * length, -1) @ value
    return mixed.view(rows, heads, length, -1).transpose(1, 2), None


def softmax_with_sinks(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax over the last dimension of `scores` [N, key heads, groups, T, L], each head's sink taking its share."""
    precise = torch.promote_types(scores.dtype, torch.float32)
    if sinks is None:
        return torch.softmax(scores, -1, dtype=precise)
    sink = sinks.to(precise).view(1, *scores.shape[1:3], 1, 1).expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores.to(precise), sink], -1), -1)[..., :-1]


def hidden_columns(positions: Tensor, num_columns: int, window: int | None) -> Tensor:
    """Whether a query at `positions` [N, T] may not see a column: later, or `window` or more before; [N, T, L]."""
    columns = torch.arange(num_columns, device=positions.device)
    hidden = columns > positions[..., None]
    return hidden if window is None else hidden | (columns <= positions[..., None] - window)


def attend_rows_uncapped(*states: Any, softcap: float | None = None, **options: Any) -> tuple[Tensor, None]:
    """`attend_rows` without the cap on scores."""
    return attend_rows(*states, softcap=None, **options)


def counterpart(attention: str) -> str:
    """The variant with the arithmetic of a module that uses `attention`: sdpa ignores the cap on scores."""
    return UNCAPPED if attention in LIKE_SDPA else CAPPED


AttentionInterface.register(CAPPED, attend_rows)
AttentionInterface.register(UNCAPPED, attend_rows_uncapped)
