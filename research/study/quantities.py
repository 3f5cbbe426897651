"""Single numbers, or one a held-out problem, of a finished run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fairlen.batch import Floats

Kept = dict[str, Any]
"""What is kept of a run (extract.py)."""
Quantity = Callable[[Kept], Floats]
COLLAPSE = 0.1
"""Accuracy below the best before it from which on a run counts as collapsed."""


def number(value: float | None) -> Floats:
    """One number, nan where there is none."""
    return np.array([np.nan if value is None else float(value)])


def series(run: Kept, part: str, name: str) -> Floats:
    """A metric of every rollout batch or update; nan where it does not exist."""
    return np.array([np.nan if x is None else float(x) for x in run[part].get(name, [])], np.float64)


def accuracies(run: Kept) -> Floats:
    """Of every problem at every evaluation, [E, P]."""
    return np.array([np.array(one["right"]) / one["samples"] for one in run["evaluations"]])


def last(run: Kept) -> Floats:
    """Accuracy at the end, [P]."""
    return accuracies(run)[-1]


def place_of_best(run: Kept) -> int:
    """The evaluation of highest accuracy; the first of equal ones."""
    return int(np.argmax(accuracies(run).mean(1)))


def best(run: Kept) -> Floats:
    """Accuracy at the run's best evaluation, [P]; chosen afterwards, so too high."""
    return accuracies(run)[place_of_best(run)]


def early(run: Kept) -> Floats:
    """Accuracy at the evaluation nearest to a quarter of the run, the one before training apart, [P]."""
    return accuracies(run)[nearest(run, 0.25, first=1)]


def nearest(run: Kept, share: float, first: int = 0) -> int:
    """The evaluation nearest to a share of the tokens generated."""
    spent = np.array([one["generated"] for one in run["evaluations"]], np.float64)
    away = np.abs(spent - share * spent[-1])
    return first + int(np.argmin(away[first:]))


def falls(run: Kept) -> Floats:
    """How much accuracy fell, added up over the evaluations nearest to each quarter of the run's tokens, [1]."""
    curve = accuracies(run).mean(1)[[nearest(run, share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]]
    return number(float(np.maximum(-np.diff(curve), 0.0).sum()))


def length_at(place: int) -> Quantity:
    """Mean tokens of held-out answers at an evaluation, [P]."""
    return lambda run: np.array(run["evaluations"][place]["length"], np.float64)


def length_at_best(run: Kept) -> Floats:
    """The same at the run's best evaluation."""
    return length_at(place_of_best(run))(run)


def quarter(part: str, name: str, which: int) -> Quantity:
    """Mean of a metric over a quarter of a run, 0 to 3, [1]."""

    def measure(run: Kept) -> Floats:
        values = np.array_split(series(run, part, name), 4)[which]
        known = values[np.isfinite(values)]
        return number(float(known.mean()) if len(known) else None)

    return measure


def loss(run: Kept) -> Floats:
    """Mean of the loss over updates, with its sign, [1]."""
    return number(float(np.nanmean(series(run, "updates", "loss/total"))))


def size_of_loss(run: Kept) -> Floats:
    """Mean size of the loss over updates, [1]."""
    return number(float(np.nanmean(np.abs(series(run, "updates", "loss/total")))))


def kept(*path: str) -> Quantity:
    """A number that is kept as it is; nan where it is not there, [1]."""

    def read(run: Kept) -> Floats:
        found: Any = run
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        return number(found)

    return read


def samples_per_second(run: Kept) -> Floats:
    """What the paper counts: both pieces of every pair formed, or responses; for each second of collecting and training."""
    pairs = series(run, "batches", "pairs/formed")
    count = 2.0 * pairs.sum() if len(pairs) else series(run, "batches", "responses/verified").sum()
    return number(float(count) / run["training_seconds"])


def tokens_per_prompt(run: Kept) -> Floats:
    """Generated tokens for each prompt asked."""
    return number(run["generated"] / float(series(run, "batches", "prompts/asked").sum()))


def trained_share(run: Kept) -> Floats:
    """Trained tokens of advantage not 0 for each generated token."""
    return number(run["trained_signed"] / run["generated"] if "trained_signed" in run else None)


def collapse(run: Kept) -> Floats:
    """Updates until accuracy stays below the best before it by COLLAPSE, or the end of the run."""
    curve = accuracies(run).mean(1)
    updates = [one["update"] for one in run["evaluations"]]
    is_down = [bool(curve[i] <= curve[: i + 1].max() - COLLAPSE + 1e-9) for i in range(len(curve))]
    start = len(curve)
    while start > 0 and is_down[start - 1]:
        start -= 1
    return number(float(updates[min(start, len(curve) - 1)]))


def num_updates(run: Kept) -> Floats:
    """Updates of the run."""
    return number(float(run["evaluations"][-1]["update"]))


def between(one: str, other: str, name: str = "cosine") -> Quantity:
    """Mean over updates of a column under one band minus that under another, where both accept something, [1]."""

    def measure(run: Kept) -> Floats:
        pairs = zip(run["directions"][one], run["directions"][other], strict=True)
        found = [a[name] - b[name] for a, b in pairs if a[name] is not None and b[name] is not None]
        return number(float(np.mean(found)) if found else None)

    return measure


def violations(bound: str) -> Quantity:
    """Share of updates, of all bands, whose rho exceeds a bound; an infinite bound is never exceeded, [1]."""

    def measure(run: Kept) -> Floats:
        rows = [row for rows in run["directions"].values() for row in rows if row["rho"] is not None]
        over = [row[bound] is not None and row["rho"] > row[bound] + 1e-9 for row in rows]
        return number(float(np.mean(over)) if over else None)

    return measure
