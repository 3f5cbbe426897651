"""A figure: what is seen, what is drawn, and the same numbers as a table; and the words that compare two estimates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from markupsafe import Markup

from fairlen.batch import Floats
from fairlen.diagnostics.report.chart import Form, Series, plain, share
from fairlen.diagnostics.uncertainty import Estimates

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


def sentence(text: str) -> str:
    """With a capital."""
    return text[:1].upper() + text[1:]


def whole(value: float) -> str:
    """A count or a middle of a stretch."""
    return f"{value:.0f}"
