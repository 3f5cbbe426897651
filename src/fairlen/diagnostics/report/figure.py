"""A figure: what is seen, what is drawn, and the same numbers as a table; what its columns are divided into, and its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from markupsafe import Markup

from fairlen.batch import Floats, Ints
from fairlen.diagnostics.report.chart import Form, Series, nice_step, plain, share
from fairlen.diagnostics.uncertainty import Estimates

BATCH = "rollout batch"
MAX_WINDOWS = 40
MAX_BINS = 14
MIN_ROWS = 5
"""In a bin of length that is drawn."""
INTERVAL = "Bands and whiskers are 95% intervals over prompts."


@dataclass(frozen=True)
class Table:
    """Numbers as text."""

    head: tuple[str, ...]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Figure:
    """One chart with its words."""

    title: str
    """What is seen."""
    says: str
    """What is drawn, with units."""
    chart: Markup | None = None
    table: Table | None = None
    note: str = ""
    """Uncertainty, and what to look for."""


@dataclass(frozen=True)
class Section:
    """Figures under one heading."""

    id: str
    title: str
    lead: str
    figures: list[Figure] = field(default_factory=list)


def column(entries: Sequence[dict[str, Any]], name: str) -> Floats:
    """A metric of some entries; nan where it is absent or not a number."""
    values = [entry.get(name) for entry in entries]
    return np.array([float(v) if isinstance(v, (int, float)) else np.nan for v in values], np.float64)


def interval(estimate: Sequence[float], form: Form) -> str:
    """(0.5, 0.4, 0.6) as 0.5 [0.4, 0.6]; no brackets where there is no interval."""
    value, low, high = map(float, estimate)
    if not np.isfinite(value):
        return "-"
    return f"{form(value)} [{form(low)}, {form(high)}]" if np.isfinite(low) else form(value)


def intervals(found: Estimates, form: Form = share) -> list[str]:
    """Every estimate as text."""
    return [interval(values, form) for values in zip(found.value, found.low, found.high, strict=True)]


def as_series(label: str, x: Floats, found: Estimates, tone: Any, mark: Any = "line", form: Form = share) -> Series:
    """Estimates as something to draw."""
    return Series(label, x, found.value, tone, found.low, found.high, mark, form)


def change(name: str, series: Series, form: Form = plain) -> str:
    """ "accuracy rose from 50% to 93%", between the first and last value; a change within the intervals is none."""
    rows = np.flatnonzero(np.isfinite(series.y))
    if len(rows) < 2:
        return f"{name} was {form(float(series.y[rows[0]]))}" if len(rows) else f"{name}: nothing was measured"
    first, last = rows[0], rows[-1]
    before, after = float(series.y[first]), float(series.y[last])
    if form(before) == form(after) or overlap(series, first, last):
        return f"{name} shows no clear change: {form(before)} at first, {form(after)} in the end"
    return f"{name} {'rose' if after > before else 'fell'} from {form(before)} to {form(after)}"


def overlap(series: Series, first: int, last: int) -> bool:
    """Whether two intervals have a value in common."""
    if series.low is None or series.high is None or not np.isfinite([series.low[first], series.low[last]]).all():
        return False
    return bool(max(series.low[first], series.low[last]) <= min(series.high[first], series.high[last]))


def ends_of(series: Sequence[Series]) -> list[Floats]:
    """Return all numbers that an axis must hold."""
    return [values for one in series for values in (one.y, one.low, one.high) if values is not None]


def sentence(text: str) -> str:
    """Return a text with a capital."""
    return text[:1].upper() + text[1:]


def whole(value: float) -> str:
    """Format a count or a middle of a stretch."""
    return f"{value:.0f}"


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

    def count(self, values: Ints, weights: Floats | Ints | None = None) -> Floats:
        """Return how many values, or how much weight, each bin holds."""
        return np.bincount(self.place(values), weights, len(self)).astype(np.float64)

    def middle(self) -> Floats:
        """Return the middle of each bin, of an axis from 0 to 1."""
        return (np.arange(len(self)) + 0.5) / len(self)

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
