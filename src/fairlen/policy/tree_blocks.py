"""Attention along a forest on CUDA: FlexAttention, compiled, over blocks of 128 x 128 positions in which a token sees another.

In depth-first order a token at q sees that at k where k <= q < until[k], so that blocks follow from the least and the largest
`until` of 128 tokens: neither the host nor the device ever holds an entry for each pair of positions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from fairlen.batch import Ints
from fairlen.engine.transfer import upload

BLOCK = 128
"""Positions of a block's side, as the kernels have it by default."""
LEAST_DIM = 16
"""Tensor cores multiply no narrower heads."""
OPTIONS = {"BACKEND": "TRITON"}
"""One kernel for all lengths: below 128 positions another would be compiled, that of decoding."""


def serves(query: Tensor, value: Tensor) -> bool:
    """Return whether the kernels take these states: on CUDA, single precision at most, heads of at least 16 numbers."""
    fits = min(query.shape[-1], value.shape[-1]) >= LEAST_DIM
    return query.device.type == "cuda" and query.dtype != torch.float64 and fits


def find_blocks(until: Ints) -> tuple[np.ndarray, np.ndarray]:
    """Return of which blocks of queries (row) and keys (column) a part is seen, and which are seen whole, [blocks, blocks]."""
    first = np.arange(0, len(until), BLOCK)
    query, last, least = first[:, None], np.maximum.reduceat(until, first), np.minimum.reduceat(until, first)
    whole = (query > first) & (query + BLOCK <= least)
    return (query >= first) & (query < last) & ~whole, whole


def count_blocks(until: Ints) -> int:
    """Return the blocks that are seen, in part or whole: those of a key are a run from its own to that of its last query."""
    first = np.arange(0, len(until), BLOCK)
    return int(((np.maximum.reduceat(until, first) - 1) // BLOCK - first // BLOCK + 1).sum())


def build_block_mask(until: Ints, device: torch.device) -> BlockMask:
    """Return which token of a forest sees which, as FlexAttention reads it; the host does not wait for the device."""
    ends = upload(until.astype(np.int32), device)

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[key])

    lists = [list_blocks(side, device) for blocks in find_blocks(until) for side in (blocks, blocks.T)]
    of_queries, of_keys = lists[::2], lists[1::2]
    parts = (tensor for pair in (*of_queries, *of_keys) for tensor in pair)
    return BlockMask((len(until), len(until)), *parts, BLOCK_SIZE=(BLOCK, BLOCK), mask_mod=sees)  # pyright: ignore


def list_blocks(blocks: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return for each row how many blocks there are, [1, 1, rows], and which, those first, [1, 1, rows, columns]."""
    order = np.argsort(~blocks, axis=1, kind="stable").astype(np.int32)
    return upload(blocks.sum(1, dtype=np.int32), device)[None, None], upload(order, device)[None, None]


def attend_blocks(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float) -> Tensor:
    """Attend from `query` [1, heads, N, D] to `key`, `value` [1, key heads, N, D or Dv]: [1, N, heads, Dv]."""
    return compile_flex(scale)(query, key, value, mask).transpose(1, 2)


@cache
def compile_flex(scale: float) -> Callable[[Tensor, Tensor, Tensor, BlockMask], Tensor]:
    """Return FlexAttention compiled once for all numbers of positions."""

    def attend(query: Tensor, key: Tensor, value: Tensor, blocks: BlockMask) -> Any:
        options: Any = OPTIONS
        return flex_attention(query, key, value, None, blocks, scale, enable_gqa=True, kernel_options=options)

    return torch.compile(attend, dynamic=True)
