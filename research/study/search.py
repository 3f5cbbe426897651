"""The search that every variant gets: its width at one learning rate, where it has one to search, then its learning rate.

Judged by held-out accuracy at the end, the mean over the seeds of the search, on problems that the study is not judged by. A grid
is widened by one value on the side of the best until the best is inside. Of equal values the one nearest to the middle wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from research.study.evidence import Evidence, RunTables
from research.study.plan import FACTORS, RATES, START, Plan, Search

Score = Callable[[float, float], float | None]
"""Of a rate and a factor; None where it was not run."""


@dataclass(frozen=True)
class Settings:
    """A learning rate, and a factor of the published width."""

    rate: float
    factor: float


@dataclass(frozen=True)
class Outcome:
    """Where a search is: what it needs next, or what it chose."""

    missing: tuple[Settings, ...] = ()
    chosen: Settings | None = None
    edges: tuple[str, ...] = ()
    """Of the widest grids, where the best lies on one."""


def search(kind: Search, score: Score) -> Outcome:
    """Return what a search needs next, given what is known."""
    factor, edges = START[1], []
    if kind == "rate+width":
        missing, factor = climb(FACTORS, START[1], lambda value: score(START[0], value))
        if missing:
            return Outcome(tuple(Settings(START[0], value) for value in missing))
        edges += ["width"] if factor in (FACTORS[0], FACTORS[-1]) else []
    missing, rate = climb(RATES, START[0], lambda value: score(value, factor))
    if missing:
        return Outcome(tuple(Settings(value, factor) for value in missing))
    edges += ["rate"] if rate in (RATES[0], RATES[-1]) else []
    return Outcome(chosen=Settings(rate, factor), edges=tuple(edges))


def climb(grid: Sequence[float], start: float, score: Callable[[float], float | None]) -> tuple[list[float], float]:
    """Return values that are still to be tried, or none and the best."""
    middle = grid.index(start)
    low, high = middle - 1, middle + 1
    while True:
        places = sorted(range(low, high + 1), key=lambda place: (abs(place - middle), place))
        known = {place: score(grid[place]) for place in places}
        if missing := [grid[place] for place, value in known.items() if value is None]:
            return missing, start
        best = max(places, key=lambda place: known[place] or 0.0)
        if best == low and low > 0:
            low -= 1
        elif best == high and high < len(grid) - 1:
            high += 1
        else:
            return [], grid[best]


def final_accuracy(run: RunTables) -> float:
    """Return held-out accuracy at the end of a run, which is 0 of one that diverged."""
    table = run.evaluations
    last = table["update"] == table["update"].max()
    return float(table["right"][last].sum() / table["samples"][last].sum())


def search_table(evidence: Evidence, plan: Plan | None = None) -> dict[str, dict[str, Any]]:
    """Return what was tried and chosen, by world and variant: rate, factor, mean accuracy, and the number of seeds of each."""
    found: dict[str, dict[str, Any]] = {}
    for variant in (plan or Plan()).variants:
        scores: dict[Settings, list[float]] = {}
        for number, run in enumerate(evidence.runs):
            wanted = ("search", variant.world, variant.text, variant.label)
            if (run.role, run.world, run.variant, run.label) == wanted and variant.search:
                scores.setdefault(Settings(run.rate, run.factor), []).append(
                    final_accuracy(evidence.run_tables(number))
                )
        if scores:
            means = {settings: float(np.mean(values)) for settings, values in scores.items()}
            outcome = search(variant.search, lambda rate, factor, m=means: m.get(Settings(rate, factor)))
            tried = sorted((s.rate, s.factor, round(means[s], 6), len(scores[s])) for s in scores)
            chosen = {"rate": outcome.chosen.rate, "factor": outcome.chosen.factor} if outcome.chosen else {}
            found[variant.name] = {**chosen, "edges": list(outcome.edges), "tried": [list(row) for row in tried]}
    return found
