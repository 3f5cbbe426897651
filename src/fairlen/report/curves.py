"""Curves of everything that a run logs, in the sections of metrics.py, each with its unit and meaning."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from fairlen.batch import Floats
from fairlen.console import first_of
from fairlen.metrics import SECTIONS, Metric, find_metric
from fairlen.report import figure
from fairlen.report.figure import Figure, Section, Table, plain
from fairlen.report.run import RecordedRun, column

TITLES = {name: title for title, metrics in SECTIONS.items() for one in metrics for name in one.names.split()}
FIRST, OTHERS = "The update", "Other"
MAX_CURVES = 150
SAME = 1e-12  # a spread that rounding makes
X = ("update", "rollout_batch")


def curves_section(run: RecordedRun) -> list[Section]:
    """Return every number of metrics.jsonl over training, one that never changes as a row; nothing of a run without updates."""
    found, fixed = defaultdict[str, list[Figure]](list), list[tuple[str, ...]]()
    names = list(dict.fromkeys(name for entry in run.updates for name in entry if name not in X))
    for name in names[:MAX_CURVES]:
        x, y = column(run.updates, "rollout_batch") + 1, column(run.updates, name)
        x, y = x[np.isfinite(y)], y[np.isfinite(y)]
        known = find_metric(name)
        if len(y) and np.ptp(y) > SAME:
            found[TITLES.get(name, OTHERS)].append(curve(name, known, x, y))
        elif len(y):
            fixed.append((name, plain(float(y[0])), known.unit, known.meaning))
    if not found and not fixed:
        return []
    groups = [(title, found[title]) for title in dict.fromkeys((FIRST, *SECTIONS, OTHERS)) if found[title]]
    if fixed:
        says = "Numbers that were the same in every update."
        groups.append(("Constant", [Figure("", says, table=Table(("name", "value", "unit", "meaning"), fixed))]))
    lead = "Each number of metrics.jsonl, as docs/metrics.md of fairlen defines it."
    if len(names) > MAX_CURVES:
        lead += f" Not shown: {', '.join(first_of(names[MAX_CURVES:], 5))}."
    return [Section("logged", "Everything logged", lead, groups=groups)]


def curve(name: str, known: Metric, x: Floats, y: Floats) -> Figure:
    """Draw a metric: means of stretches of training, in a band from the lowest to the highest."""
    window, middle = figure.windows(x.astype(np.int64))
    count = np.bincount(window, minlength=len(middle))
    mean = np.bincount(window, y, minlength=len(middle)) / np.where(count, count, np.nan)
    low, high = np.full(len(middle), np.inf), np.full(len(middle), -np.inf)
    np.minimum.at(low, window, y)
    np.maximum.at(high, window, y)
    low, high = (np.where(count > 1, end, np.nan) for end in (low, high))
    series = [figure.Series("", middle, mean, "plain", low, high)]
    frame = figure.Frame(figure.span_axis(float(middle[-1])), figure.nice_axis(figure.ends_of(series)), "rollout batch")
    rows = [(figure.whole(at), figure.interval(of, plain)) for at, *of in zip(middle, mean, low, high, strict=True)]
    band = " Band: from the lowest to the highest of several updates." if (count > 1).any() else ""
    look = f"To look for: {known.look}." if known.look else ""
    return Figure(
        name,
        ": ".join(filter(None, (known.unit, known.meaning))),
        figure.lines(frame, series, f"{name} over training"),
        Table(("rollout batch", name), rows),
        look + band,
    )
