"""Keys and values in rows, and attention of new tokens over them.

Rows are first those of sequences being decoded, then kept prompts and ended sequences to start from.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from mmap import mmap
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, Cache

from fairlen.engine.device import upload
from fairlen.files.limits import GIB
from fairlen.rollouts import TokenIds

WORK = GIB  # bytes of a CUDA device left free of rows, for prefills and libraries
NAME = "fairlen_rows"
LIKE_SDPA = ("sdpa", "fairlen_tree")
"""Attentions that ignore the cap on scores; the trainer's along trees is sdpa for everything else."""
KEPT_BYTES = GIB  # bytes of kept rows by default, where they are at least as many as slots
MAX_GATHERED = 100  # columns up to which copying all rows at once is faster than one after the other


def fit_rows(num_bytes: int, num_slots: int, num_kept: int, memory: int) -> tuple[int, int]:
    """Slots and kept rows of `num_bytes` each that fit into `memory`: as asked, else four to one. Raises ValueError below two."""
    fitting = memory // num_bytes
    if num_slots + num_kept <= fitting:
        return num_slots, num_kept
    if fitting < 2:
        raise ValueError(
            f"engine=embedded: keys and values of one sequence take {num_bytes / GIB:.2f} GiB and it needs room for two, but "
            f"{max(memory, 0) / GIB:.2f} GiB are left for them: give a smaller --max-response-length, --dtype bfloat16, "
            "--lora-rank 32 or --engine vllm"
        )
    slots = min(num_slots, max(4 * fitting // 5, 1))
    return slots, min(num_kept, fitting - slots)


def num_kept_rows(row_bytes: int, num_slots: int) -> int:
    """As many rows as fit into KEPT_BYTES, but one to eight a slot."""
    return min(max(KEPT_BYTES // row_bytes, num_slots), 8 * num_slots)


def position_bytes(states: list[tuple[Tensor, Tensor]]) -> int:
    """Bytes of one position of keys and values [N, key heads, T, D]."""
    return sum(tensor.shape[1] * tensor.shape[3] * tensor.dtype.itemsize for pair in states for tensor in pair)


def estimate_position_bytes(config: Any, itemsize: int) -> int:
    """Bytes of one position of keys and values, by a text config."""
    _, key_heads, dim = heads_of(config)
    return 2 * config.num_hidden_layers * key_heads * dim * itemsize


def heads_of(config: Any) -> tuple[int, int, int]:
    """Heads of queries, heads of keys, and their dimension, by a text config."""
    heads = config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return heads, getattr(config, "num_key_value_heads", None) or heads, dim


class Rows:
    """Keys and values of every row: for each layer two tensors [rows, key heads, columns, D]."""

    def __init__(self, states: Iterable[tuple[Tensor, Tensor]], num_rows: int, num_columns: int) -> None:
        """Allocate rows for layers with keys and values like `states`, each [N, key heads, T, D]."""
        self.layers = [[zeros_like_heads(heads, num_rows, num_columns) for heads in pair] for pair in states]

    def copy(self, sources: Sequence[int], targets: Sequence[int], num_columns: Sequence[int]) -> None:
        """Copy the first `num_columns` of each source to its target; all are read before any is written."""
        device = self.layers[0][0].device
        is_long = max(num_columns) > MAX_GATHERED and device.type == "cpu"
        if is_long and not set(sources) & set(targets):  # no more than there is, and nothing between
            for tensor in self.tensors:
                for source, target, count in zip(sources, targets, num_columns, strict=True):
                    tensor[target, :, :count] = tensor[source, :, :count]
            return
        read, written = upload(np.array([sources, targets]), device)
        for tensor in self.tensors:
            tensor[written, :, : max(num_columns)] = tensor[read, :, : max(num_columns)]

    @property
    def tensors(self) -> list[Tensor]:
        return [tensor for layer in self.layers for tensor in layer]


def zeros_like_heads(states: Tensor, num_rows: int, num_columns: int) -> Tensor:
    """Zeros [rows, key heads, columns, D]; a CPU's memory is taken when it is first written, where malloc would clear it."""
    shape = (num_rows, states.shape[1], num_columns, states.shape[3])
    if states.device.type != "cpu":
        return torch.zeros(shape, dtype=states.dtype, device=states.device)
    return torch.frombuffer(mmap(-1, math.prod(shape) * states.dtype.itemsize), dtype=states.dtype).view(shape)


class View(Cache):
    """The cache of one forward pass: rows `targets` [N], whose new keys and values go to `columns` [N, T]."""

    def __init__(self, rows: Rows, targets: Tensor, columns: Tensor, num_columns: int, is_dense: bool = False) -> None:
        """`is_dense`: the rows are 0..N-1, and read without a copy."""
        super().__init__(layers=[])
        self.rows, self.targets, self.columns, self.num_columns = rows, targets, columns, num_columns
        self.written, self.is_dense = targets[:, None], is_dense

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        seen = slice(key_states.shape[0]) if self.is_dense else self.targets
        keys, values = self.rows.layers[layer_idx]
        keys[self.written, :, self.columns] = key_states.transpose(1, 2).to(keys.dtype)
        values[self.written, :, self.columns] = value_states.transpose(1, 2).to(values.dtype)
        return keys[seen, :, : self.num_columns], values[seen, :, : self.num_columns]


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

    A query at `query_positions` [N, T] sees the columns up to that position, of a sliding window the last ones. Return
    [N, T, heads, Dv]. As transformers' attention interface calls it; grouped heads share keys and values without copies of them,
    and the softmax is at least float32.
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


class Prefixes:
    """Kept rows by their tokens: finds the longest common prefix, evicts the least recently used.

    Until the next `settle`, rows that were taken or found whole are pinned, and rows that were taken are found only by
    exactly their tokens, as their keys and values are yet to be computed.
    """

    def __init__(self, rows: range) -> None:
        self.rows = rows
        self.clear()

    def clear(self) -> None:
        self.free = list(reversed(self.rows))
        self.tokens: OrderedDict[int, TokenIds] = OrderedDict()  # by row, the least recently used first
        self.ordered: list[tuple[TokenIds, int]] = []
        """Settled rows, sorted: the longest common prefix with any tokens is with a neighbour of their place."""
        self.taken: dict[TokenIds, int] = {}
        self.pinned: set[int] = set()
        self.reserved: set[int] = set()  # rows computed ahead of their first use, pinned until then

    def find(self, tokens: TokenIds) -> tuple[int, int]:
        """Find the row that shares most leading tokens, and their number: (-1, 0) for none."""
        if tokens in self.taken:
            return self.taken[tokens], len(tokens)
        place = bisect_left(self.ordered, (tokens, -1))
        neighbours = self.ordered[max(place - 1, 0) : place + 1]
        num_shared, row = max(((count_shared(held, tokens), row) for held, row in neighbours), default=(0, -1))
        if not num_shared:
            return -1, 0
        self.tokens.move_to_end(row)
        if num_shared == len(tokens):
            self.pinned.add(row)
        return row, num_shared

    def take(self, tokens: TokenIds) -> int:
        """Assign `tokens` a free row, or the least recently used that is not pinned; -1 where all are."""
        if not self.free:
            victim = next((row for row in self.tokens if row not in self.pinned and row not in self.reserved), -1)
            if victim < 0:
                return -1
            del self.ordered[bisect_left(self.ordered, (self.tokens.pop(victim), victim))]
            self.free.append(victim)
        row = self.free.pop()
        self.tokens[row] = tokens
        self.taken[tokens] = row
        self.pinned.add(row)
        return row

    def release(self, tokens: TokenIds) -> None:
        """Make the row of exactly `tokens`, if any, the first to be evicted."""
        place = bisect_left(self.ordered, (tokens, -1))
        if place < len(self.ordered) and self.ordered[place][0] == tokens:
            self.tokens.move_to_end(self.ordered[place][1], last=False)

    def settle(self) -> None:
        """Mark all rows as computed, to be shared in part, and none as pinned."""
        for tokens, row in self.taken.items():
            insort(self.ordered, (tokens, row))
        self.taken.clear()
        self.pinned.clear()


def count_shared(left: TokenIds | bytes, right: TokenIds | bytes) -> int:
    """Length of the longest common prefix."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


AttentionInterface.register(NAME, attend_rows)
