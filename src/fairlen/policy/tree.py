"""Rows of tokens that share prefixes, as a forest: every (prefix, token) has one place.

Sorted rows have what they share next to each other. Laid out in that order, without what a row shares with the one before
it, they are a forest in depth-first preorder: what follows a token lies between it and `until`, so that two numbers a token
say who sees whom. Numpy only; not here: masks and attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fairlen.batch import Ints

LEAST_SHARED = 8
"""A shorter common prefix is repeated: a first token that all rows have would make one tree of all trees."""


@dataclass(frozen=True)
class SortedRows:
    """Rows in the order that puts common prefixes next to each other."""

    rows: Sequence[Ints]
    """Token ids, at least one each."""
    order: Ints
    """Positions in `rows`."""
    shared: Ints
    """For each in that order, leading tokens that it shares with the one before it; 0 where a tree begins."""

    def split(self, max_tokens: int) -> Iterator[slice]:
        """Parts of the order that make forests of at most `max_tokens`; one row may have more."""
        new = self.new_tokens
        begin, taken = 0, 0
        for place, row in enumerate(self.order):
            if taken and taken + new[place] > max_tokens:
                yield slice(begin, place)
                begin, taken = place, len(self.rows[row])  # a prefix that was shared is there again
            else:
                taken += new[place]
        yield slice(begin, len(self.order))

    @property
    def new_tokens(self) -> list[int]:
        """For each in the order, tokens that those before it do not have."""
        return [len(self.rows[row]) - shared for row, shared in zip(self.order, self.shared.tolist(), strict=True)]

    def tree_sizes(self, part: slice) -> list[int]:
        """Tokens of each tree that a part of the order makes."""
        shared = np.concatenate(([0], self.shared[part][1:]))
        new = np.array([len(self.rows[row]) for row in self.order[part]]) - shared
        return np.add.reduceat(new, np.flatnonzero(shared == 0)).tolist()

    def forest(self, part: slice) -> Forest:
        """The forest of a part of the order; its paths are in that order."""
        rows = [self.rows[row] for row in self.order[part]]
        return build_forest(rows, [0, *self.shared[part][1:].tolist()])


@dataclass(frozen=True)
class Forest:
    """Tokens in depth-first preorder, [N]."""

    tokens: Ints
    depth: Ints
    """Tokens before it on its path: the position in its row, [N]."""
    parent: Ints
    """Where the token before it is, -1 at a root, [N]."""
    until: Ints
    """One past the last token that follows it on some row; those from it to here see it, [N]."""
    starts: Ints
    """Where each tree begins, and the end, [trees + 1]."""
    paths: tuple[Ints, ...]
    """For each row where its tokens are."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return int(self.depth.max()) + 1


def sort_rows(rows: Sequence[Ints], least_shared: int = LEAST_SHARED) -> SortedRows:
    """Sorts rows of token ids, and counts what neighbours share; less than `least_shared` tokens count as none."""
    keys = [row.astype(">u4").tobytes() for row in rows]  # bytes of this order compare as the tokens do
    order = sorted(range(len(rows)), key=keys.__getitem__)
    shared = np.zeros(len(rows), np.int64)
    for place in range(1, len(order)):
        count = count_shared(rows[order[place - 1]], rows[order[place]])
        shared[place] = count if count >= least_shared else 0
    return SortedRows(rows, np.array(order, np.int64), shared)


def count_shared(one: Ints, other: Ints) -> int:
    """Leading tokens that two rows have in common."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length


def build_forest(rows: Sequence[Ints], shared: Sequence[int]) -> Forest:
    """The forest of sorted rows, each sharing so many leading tokens with the one before it."""
    lengths = [len(row) for row in rows]
    num_tokens = sum(lengths) - sum(shared)
    depth, parent, until = np.empty(num_tokens, np.int64), np.arange(-1, num_tokens - 1), np.empty(num_tokens, np.int64)
    places = np.arange(num_tokens)
    paths, starts, path, end = [], [], places[:0], 0
    for length, common in zip(lengths, shared, strict=True):
        begin, end = end, end + length - common
        until[path[common:]] = begin  # what the new row does not share is over
        depth[begin:end] = places[common:length]
        if end > begin:
            parent[begin] = path[common - 1] if common else -1
        if not common:
            starts.append(begin)
        path = np.concatenate((path[:common], places[begin:end]))
        paths.append(path)
    until[path] = end
    tokens = np.concatenate([row[common:] for row, common in zip(rows, shared, strict=True)])
    return Forest(tokens, depth, parent, until, np.array([*starts, num_tokens]), tuple(paths))
