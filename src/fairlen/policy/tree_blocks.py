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
from fairlen.engine.device import upload

BLOCK = 128  # positions of a block's side, as the kernels have it by default


def serves(query: Tensor, value: Tensor) -> bool:
    """Whether the kernels take these states: on CUDA, single precision at most, heads wide enough for tensor cores."""
    return query.device.type == "cuda" and query.dtype != torch.float64 and min(query.shape[-1], value.shape[-1]) >= 16


def find_blocks(until: Ints) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of queries (row) and keys (column) that are seen in part, and those seen whole, [blocks, blocks]."""
    first = np.arange(0, len(until), BLOCK)
    query, last, least = first[:, None], np.maximum.reduceat(until, first), np.minimum.reduceat(until, first)
    whole = (query > first) & (query + BLOCK <= least)
    return (query >= first) & (query < last) & ~whole, whole


def build_block_mask(until: Ints, device: torch.device) -> BlockMask:
    """A forest's mask as FlexAttention reads it; the host does not wait for the device."""
    ends = upload(until.astype(np.int32), device)

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[key])

    some, whole = find_blocks(until)
    lists = (tensor for blocks in (some, whole, some.T, whole.T) for tensor in list_blocks(blocks, device))
    return BlockMask((len(until), len(until)), *lists, BLOCK_SIZE=(BLOCK, BLOCK), mask_mod=sees)  # pyright: ignore


def list_blocks(blocks: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """By row, the number of blocks, [1, 1, rows], and their columns before all others, [1, 1, rows, columns]."""
    if len(blocks) == 1:
        blocks = np.pad(blocks, (0, 1))  # compilers take a size of 1 for a constant, and all others for one kind
    order = np.argsort(~blocks, axis=1, kind="stable").astype(np.int32)
    return upload(blocks.sum(1, dtype=np.int32), device)[None, None], upload(order, device)[None, None]


@cache
def compile_flex(scale: float) -> Callable[[Tensor, Tensor, Tensor, BlockMask], Tensor]:
    """Attention from [1, heads, N, D] to keys and values [1, key heads, N, D or Dv], compiled once for all N."""
    options: Any = {"BACKEND": "TRITON"}  # below 128 positions another kernel would be compiled, that of decoding

    def attend(query: Tensor, key: Tensor, value: Tensor, blocks: BlockMask) -> Any:
        return flex_attention(query, key, value, None, blocks, scale, enable_gqa=True, kernel_options=options)

    return torch.compile(attend, dynamic=True)
