"""Bins of length that hold about as many sequences each; equal lengths are never apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlen.batch import Ints

NUM_BINS = 10
LEAST = 30
"""Fewest sequences in a bin."""


@dataclass(frozen=True)
class Bins:
    """[K] bins of [N] sequences, from the shortest."""

    index: Ints
    """Bin of each sequence, [N]."""
    low: Ints
    """Shortest length in the bin."""
    high: Ints
    """Longest length in the bin."""
    count: Ints

    def __len__(self) -> int:
        return len(self.count)


def length_bins(length: Ints, num_bins: int = NUM_BINS, least: int = LEAST) -> Bins:
    """Quantile bins of lengths [N]; fewer than `num_bins` where there are too few sequences or too many ties.

    A bin ends at the first length at which it has its share of what is left, so that no bin has fewer than `least` sequences
    unless all of them together do. No bin of no sequences.
    """
    values, count = np.unique(length, return_counts=True)
    if not len(values):
        none = np.zeros(0, np.int64)
        return Bins(none, none, none, none)
    ends = choose_ends(count, max(1, min(num_bins, len(length) // least)), least)
    index = np.searchsorted(values[ends], length)
    starts = np.concatenate([[0], ends[:-1] + 1])
    return Bins(index, values[starts], values[ends], np.bincount(index, minlength=len(ends)))


def choose_ends(count: Ints, num_bins: int, least: int) -> Ints:
    """Positions of the last distinct length of each bin, given how often each occurs."""
    total, done, left, ends = np.cumsum(count), 0, num_bins, []
    size = int(total[-1])
    while left > 1 and size - done >= 2 * least:
        share = max((size - done) / left, least)
        place = int(np.searchsorted(total, done + share - 1e-9))
        if size - int(total[place]) < least:
            break
        ends.append(place)
        done, left = int(total[place]), left - 1
    return np.array([*ends, len(count) - 1], np.int64)
