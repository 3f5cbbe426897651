"""Keys and values: the rows that hold them, what the model's layers see of them, and which prefix lies in which row.

Rows 0..slots-1 belong to sequences being decoded, the rows after them keep prefixes to start from: prompts, and
sequences that have ended. All live in one pair of tensors a layer, so that starting a prompt and forking a sequence
are the same copy of a row. Not here: when a row is taken or given up; the scheduler decides.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Cache

from fairlen.batch import TokenIds


class Rows:
    """Keys and values of every row: for each layer two tensors [rows, key heads, columns, D]."""

    def __init__(self, states: list[tuple[Tensor, Tensor]], num_rows: int, num_columns: int) -> None:
        """For layers whose keys and values look like `states`, each [N, key heads, T, D]."""
        self.keys = [zeros_like_heads(key, num_rows, num_columns) for key, _ in states]
        self.values = [zeros_like_heads(value, num_rows, num_columns) for _, value in states]

    def copy(self, sources: Tensor, targets: Tensor, num_columns: int) -> None:
        """Copy the first columns of rows `sources` to rows `targets`, all read before any is written."""
        for tensor in (*self.keys, *self.values):
            tensor[targets, :, :num_columns] = tensor[sources, :, :num_columns]

    def clear(self) -> None:
        """Zero everything: a value that is not finite would outlive masking."""
        for tensor in (*self.keys, *self.values):
            tensor.zero_()


def zeros_like_heads(states: Tensor, num_rows: int, num_columns: int) -> Tensor:
    """Zeros [rows, key heads, columns, D] for heads like those of `states` [N, key heads, T, D].

    On the CPU, memory that no row has used yet is not taken from the system.
    """
    shape = (num_rows, states.shape[1], num_columns, states.shape[3])
    if states.device.type != "cpu":
        return torch.zeros(shape, dtype=states.dtype, device=states.device)
    pages = np.zeros(math.prod(shape) * states.dtype.itemsize, np.uint8)
    return torch.from_numpy(pages).view(states.dtype).view(shape)


class DenseView(Cache):
    """The view of one decoding step: rows 0..N-1, one new column in each."""

    def __init__(self, rows: Rows, slots: Tensor, positions: Tensor, num_columns: int) -> None:
        super().__init__(layers=[])
        self.rows, self.slots, self.positions, self.num_columns = rows, slots, positions, num_columns

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store a column a row [N, key heads, 1, D] and return views of the first columns of the dense rows."""
        keys, values = self.rows.keys[layer_idx], self.rows.values[layer_idx]
        keys[self.slots, :, self.positions] = key_states[:, :, 0]
        values[self.slots, :, self.positions] = value_states[:, :, 0]
        num_rows = key_states.shape[0]
        return keys[:num_rows, :, : self.num_columns], values[:num_rows, :, : self.num_columns]


class ScatteredView(Cache):
    """The view of a prefill: any rows [N], several new columns [N, T] in each."""

    def __init__(self, rows: Rows, targets: Tensor, columns: Tensor, num_columns: int) -> None:
        super().__init__(layers=[])
        self.rows, self.targets, self.columns, self.num_columns = rows, targets, columns, num_columns

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store [N, key heads, T, D] and return copies of the first columns of the rows."""
        keys, values = self.rows.keys[layer_idx], self.rows.values[layer_idx]
        keys[self.targets[:, None], :, self.columns] = key_states.transpose(1, 2)
        values[self.targets[:, None], :, self.columns] = value_states.transpose(1, 2)
        return keys[self.targets, :, : self.num_columns], values[self.targets, :, : self.num_columns]


class Prefixes:
    """Which tokens the kept rows hold; finds the row that shares most with a prefix, gives up the least recently used.

    Between two calls of `settle`, rows that were taken or found whole are pinned, and rows that were taken are found
    only by exactly their tokens, because what they hold is yet to be computed.
    """

    def __init__(self, rows: range) -> None:
        self.free = list(reversed(rows))
        self.tokens: OrderedDict[int, TokenIds] = OrderedDict()
        """Of every row in use, the least recently used first."""
        self.ordered: list[tuple[TokenIds, int]] = []
        """The settled ones, sorted: the longest common prefix with any tokens is with a neighbour of their place."""
        self.taken: dict[TokenIds, int] = {}
        self.pinned: set[int] = set()
        self.reserved: set[int] = set()
        """Rows computed ahead of their first use, pinned until then."""

    def find(self, tokens: TokenIds) -> tuple[int, int]:
        """The row that shares most leading tokens, and how many it shares: (-1, 0) where none does."""
        if tokens in self.taken:
            return self.taken[tokens], len(tokens)
        place = bisect_left(self.ordered, (tokens, -1))
        best, num_shared = -1, 0
        for held, row in self.ordered[max(place - 1, 0) : place + 1]:
            if (shared := count_shared(held, tokens)) > num_shared:
                best, num_shared = row, shared
        if num_shared:
            self.tokens.move_to_end(best)
        if num_shared == len(tokens):
            self.pinned.add(best)
        return best, num_shared

    def take(self, tokens: TokenIds) -> int:
        """A row to hold `tokens`, given up by the least recently used that is not pinned; -1 where all are."""
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

    def hold(self, row: int, tokens: TokenIds) -> bool:
        """Return whether `row` still holds these very `tokens`; if so it is pinned."""
        if self.tokens.get(row) is not tokens:
            return False
        self.tokens.move_to_end(row)
        self.pinned.add(row)
        return True

    def release(self, row: int, tokens: TokenIds) -> None:
        """Give up `row` next, if it still holds these very `tokens`: nobody will start from them any more."""
        if self.tokens.get(row) is tokens:
            self.tokens.move_to_end(row, last=False)

    def settle(self) -> None:
        """Everything taken has been computed: it can be shared in part, and nothing is pinned."""
        for tokens, row in self.taken.items():
            insort(self.ordered, (tokens, row))
        self.taken.clear()
        self.pinned.clear()

    def clear(self) -> None:
        """Free every row."""
        self.free = sorted([*self.free, *self.tokens], reverse=True)
        self.tokens.clear()
        self.ordered.clear()
        self.taken.clear()
        self.pinned.clear()
        self.reserved.clear()


def count_shared(left: TokenIds, right: TokenIds) -> int:
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
