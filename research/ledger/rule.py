"""What decides a claim that is measured: its estimand, the sign and the size that were predicted, and the premise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from research.study.intervals import Result

PREDICTED = ("positive", "negative", "none")


@dataclass(frozen=True)
class Measure:
    """The estimand that decides a claim, and what was predicted of it before the first run."""

    estimand: str
    predicted: str
    """positive, negative or none: which side of 0, or next to it."""
    smallest: float
    """The smallest effect of interest, above 0, in the estimand's unit."""
    why: str
    """Where the smallest effect comes from."""


@dataclass(frozen=True)
class Premise:
    """A bound that the value of an estimand keeps where a claim can be tested at all."""

    estimand: str
    least: float = -math.inf
    most: float = math.inf

    def __str__(self) -> str:
        bounds = ((self.least, "at least"), (self.most, "at most"))
        return " and ".join(f"{words} {bound:g}" for bound, words in bounds if math.isfinite(bound))

    def holds(self, results: Mapping[str, Result]) -> bool:
        """Whether the value lies within the bounds; the interval decides nothing here."""
        return self.least <= results[self.estimand].value <= self.most


def make_measure(entry: Mapping[str, Any]) -> Measure:
    """Return the measure of a table. Raises ValueError where a key is unknown or missing, or a value is none."""
    check_keys("measure", entry, ("estimand", "predicted", "smallest", "why"))
    if entry["predicted"] not in PREDICTED:
        raise ValueError(f"measure.predicted={entry['predicted']!r}: give {', '.join(PREDICTED)}")
    if not is_number(entry["smallest"]) or entry["smallest"] <= 0:
        raise ValueError(f"measure.smallest={entry['smallest']!r}: give a number above 0, in the estimand's unit")
    if not entry["why"]:
        raise ValueError("measure.why is empty: say what the smallest effect is derived from")
    return Measure(entry["estimand"], entry["predicted"], float(entry["smallest"]), entry["why"])


def make_premise(entry: Mapping[str, Any]) -> Premise:
    """Return the premise of a table. Raises ValueError where it bounds nothing."""
    check_keys("premise", entry, ("estimand",), ("least", "most"))
    bounds = {key: entry[key] for key in ("least", "most") if key in entry}
    if not bounds or not all(map(is_number, bounds.values())):
        raise ValueError(f"premise of {entry['estimand']}: give least, most or both, as numbers")
    return Premise(entry["estimand"], **bounds)


def check_keys(name: str, entry: Mapping[str, Any], needed: tuple[str, ...], more: tuple[str, ...] = ()) -> None:
    """Raise ValueError for a table with a key too many or too few."""
    for key in entry:
        if key not in (*needed, *more):
            raise ValueError(f"{name}.{key}: unknown key; there are {', '.join((*needed, *more))}")
    for key in needed:
        if key not in entry:
            raise ValueError(f"{name}.{key} is missing")


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
