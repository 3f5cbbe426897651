"""What figures divide columns into: bins of length and stretches of training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlen.batch import Floats, Ints

MAX_WINDOWS = 40
MAX_BINS = 14
FEWEST = 5
"""Rows that a bin of length needs to be drawn."""


@dataclass(frozen=True)
class EdgeBins:
    """Consecutive stretches of a quantity, whatever falls into them; bins.Bins hold about as many sequences each."""

    edges: Floats
    """[N + 1], ascending."""

    def __len__(self) -> int:
        return len(self.edges) - 1

    def place(self, values: Ints | Floats) -> Ints:
        """The bin of each value; those beyond the ends are put into the last one there."""
        return np.clip(np.searchsorted(self.edges, values, side="right") - 1, 0, len(self) - 1)

    def names(self) -> list[str]:
        """As whole numbers: "0 to 9"."""
        pairs = zip(self.edges[:-1], self.edges[1:], strict=True)
        return [f"{low:.0f}" if high - low <= 1 else f"{low:.0f} to {high - 1:.0f}" for low, high in pairs]


def nice_bins(length: Ints) -> EdgeBins:
    """Bins of round widths; doubling ones where a few answers are much longer than the rest."""
    longest = int(length.max(initial=1)) + 1
    middle = float(np.median(length)) if len(length) else 1.0
    if longest > 12 * max(middle, 1.0):
        powers = int(np.ceil(np.log2(longest)))
        first = max(int(np.log2(max(float(np.quantile(length, 0.1)), 1.0))), powers - MAX_BINS + 1)
        doubled = [2**power for power in range(first, powers + 1)]
        return EdgeBins(np.array([0, *doubled], np.float64))
    step = nice_step(longest / MAX_BINS, whole=True)
    return EdgeBins(np.arange(0, longest + step, step, dtype=np.float64)[: int(np.ceil(longest / step)) + 1])


def nice_step(least: float, whole: bool = False) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is at least `least`."""
    power = 10.0 ** np.floor(np.log10(max(least, 1e-12)))
    steps = [power * factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0)]
    good = [s for s in steps if s >= least * (1 - 1e-9) and not (whole and (s < 1 or s % 1))]
    return max(float(good[0]), 1.0) if whole else float(good[0])


def windows(batch: Ints, least: int = 1) -> tuple[Ints, Floats]:
    """Stretches of training of equal numbers of rollout batches: the stretch of each row, and the middle of each stretch.

    At least `least` batches each.
    """
    low, high = int(batch.min(initial=0)), int(batch.max(initial=0))
    width = max(int(np.ceil((high - low + 1) / MAX_WINDOWS)), least)
    window = (batch - low) // width
    number = (high - low) // width + 1
    starts = low + width * np.arange(number)
    ends = np.minimum(starts + width, high + 1)
    return window, (starts + ends + 1) / 2.0


def quantiles_by(values: Ints, bin: Ints, size: int, levels: tuple[float, ...]) -> Floats:
    """[size, levels]; nan for fewer than four values."""
    found = np.full((size, len(levels)), np.nan)
    order = np.argsort(bin, kind="stable")
    ends = np.cumsum(np.bincount(bin, minlength=size))
    for position, part in enumerate(np.split(values[order], ends[:-1])):
        if len(part) >= 4:
            found[position] = np.quantile(part, levels)
    return found
