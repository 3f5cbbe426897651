"""The rule that gives a measured claim its status, from the sign and the size that were predicted before the first run.

Positive (for negative, the mirror image), with the smallest effect of interest d > 0 and the 95% interval [low, high]:

    reproduced          low > 0 and value >= d; a primary claim also needs p < 0.05 after Holm's correction
    contradicted        high < -d
    undecided           everything else

None: reproduced where -d < low and high < d; contradicted where low > d or high < -d. Silent, for a method against itself:
reproduced where low <= 0 <= high, contradicted else. Before all this a claim is open while a run is missing, not testable here
where the whole interval of a premise lies outside its bounds, and undecided where a part of it does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from research.study.intervals import Result, quantile, two_sided

PREDICTED = ("positive", "negative", "none", "silent")
LEVEL = 0.05
NOTHING: Mapping[str, int] = {}
POWER = 0.8


@dataclass(frozen=True)
class Measure:
    """The estimand that decides a claim, what was predicted of it, and the smallest effect of interest with its source."""

    estimand: str
    predicted: str
    smallest: float
    why: str

    def __post_init__(self) -> None:
        if self.predicted not in PREDICTED:
            raise ValueError(f"predicted={self.predicted!r}: give {', '.join(PREDICTED)}")
        if not (is_number(self.smallest) and 0 < self.smallest < math.inf):
            raise ValueError(f"smallest={self.smallest!r}: give a number above 0, in the estimand's unit")

    def toward(self, result: Result) -> tuple[float, float, float]:
        """Return value, low and high with the predicted side as the positive one."""
        if self.predicted == "negative":
            return -result.value, -result.high, -result.low
        return result.value, result.low, result.high


@dataclass(frozen=True)
class Premise:
    """A bound that an estimand keeps where a claim can be tested at all."""

    estimand: str
    least: float | None = None
    most: float | None = None

    def __post_init__(self) -> None:
        bounds = [bound for bound in (self.least, self.most) if bound is not None]
        if not bounds or not all(map(is_number, bounds)):
            raise ValueError(f"{self.estimand}: give least, most or both, as numbers")

    def __str__(self) -> str:
        bounds = ((self.least, "at least"), (self.most, "at most"))
        return " and ".join(f"{words} {bound:g}" for bound, words in bounds if bound is not None)

    def holds(self, result: Result) -> bool | None:
        """Return whether the whole interval keeps the bounds; None where a part of it does."""
        low, high = (result.low, result.high) if result.has_interval else (result.value, result.value)
        least, most = (
            bound if bound is not None else no for bound, no in ((self.least, -math.inf), (self.most, math.inf))
        )
        return True if low >= least and high <= most else False if high < least or low > most else None


@dataclass(frozen=True)
class Finding:
    """What became of a claim, and why in a sentence without a full stop; empty where the status says all."""

    status: str
    reason: str = ""


def judge(
    measure: Measure,
    premise: Sequence[Premise],
    results: Mapping[str, Result],
    adjusted: float | None = None,
    planned: Mapping[str, int] = NOTHING,
) -> Finding:
    """Return the status of a measured claim; `adjusted` is the p value of a primary claim after Holm's correction, `planned`
    the number of seeds that are to be run, by estimand."""
    for id in (measure.estimand, *(one.estimand for one in premise)):
        found, wanted = results.get(id), planned.get(id, 0)
        if found is None or found.runs < wanted:
            return Finding("open", f"`{id}`: {f'{found.runs} of {wanted} seeds were run' if found else 'no run yet'}")
    held = {one: one.holds(results[one.estimand]) for one in premise}
    text = "; ".join(describe_premise(one, results[one.estimand]) for one, is_held in held.items() if not is_held)
    if False in held.values():
        return Finding("not testable here", f"the premise does not hold: {text}")
    if None in held.values():
        return Finding("undecided", f"whether the premise holds is not decided: {text}")
    result = results[measure.estimand]
    if not result.has_interval:
        return Finding("open", f"`{measure.estimand}`: {result.seeds} seeds are too few, or have no spread")
    value, low, high = measure.toward(result)
    smallest, is_none = measure.smallest, measure.predicted == "none"
    if measure.predicted == "silent":
        return Finding("reproduced") if low <= 0 <= high else Finding("contradicted", "the interval excludes 0")
    if high < -smallest or (is_none and low > smallest):
        return Finding(
            "contradicted", f"the whole interval is beyond {show(smallest)} on {'one' if is_none else 'the other'} side"
        )
    if (-smallest < low and high < smallest) if is_none else (low > 0 and value >= smallest):
        text = "" if adjusted is None else f"after Holm's correction over the paper's primary claims p = {adjusted:.2g}"
        return Finding("reproduced" if adjusted is None or adjusted < LEVEL else "undecided", text)
    return Finding("undecided", explain(measure, result))


def describe_premise(premise: Premise, result: Result) -> str:
    """Return what a premise asks for, and what was found."""
    interval = f" [{show(result.low)}, {show(result.high)}]" if result.has_interval else ""
    return f"`{premise.estimand}` is {show(result.value)}{interval}, needed is {premise}"


def explain(measure: Measure, result: Result) -> str:
    """Say why an effect is undecided, and what as many seeds would have seen."""
    _, low, high = measure.toward(result)
    smallest = show(measure.smallest)
    seen = f"{result.seeds} seeds would have seen {show(detectable(measure, result))} {result.unit}".rstrip()
    seen += f" with {POWER:.0%} power"
    if measure.predicted == "none":
        return f"the interval reaches beyond {smallest}; {seen}"
    if low > 0:
        return f"the sign is as predicted, the estimate below the smallest effect of interest, {smallest}; {seen}"
    if high < 0:
        return f"the predicted effect is excluded; the opposite one is there, and may be smaller than {smallest}"
    return f"an effect of {smallest} as predicted is excluded; {seen}" if high < measure.smallest else seen


def detectable(measure: Measure, result: Result) -> float:
    """Return the effect that as many seeds of this spread reproduce with the power; where none is predicted, the margin."""
    error = (result.high - result.low) / 2 / quantile(0.975, result.seeds - 1)
    return effect_seen(result.seeds, error, measure.smallest, measure.predicted)


def effect_seen(seeds: int, error: float, smallest: float = 0.0, predicted: str = "positive") -> float:
    """Return the effect that is reproduced with the power where the mean over seeds has this standard error: the interval is to
    exclude 0, and the estimate to reach the smallest effect. For no effect: the margin within which the interval lies."""
    freedom = seeds - 1
    if predicted == "none":
        return (quantile(0.975, freedom) + quantile((1 + POWER) / 2, freedom)) * error
    return max(
        (quantile(0.975, freedom) + quantile(POWER, freedom)) * error, smallest + quantile(POWER, freedom) * error
    )


def p_value(measure: Measure, result: Result | None) -> float:
    """Return the p value of a claim for Holm's correction: 1 where there is no figure or the estimate has the other sign.

    For a claim that there is no effect, twice the larger of the two one-sided p values against the smallest effect.
    """
    if result is None or not result.has_interval:
        return 1.0
    if measure.predicted != "none":
        return result.p if measure.toward(result)[0] > 0 else 1.0
    above = beyond(measure.smallest - result.value, result.high - result.value, result.seeds - 1)
    below = beyond(measure.smallest + result.value, result.value - result.low, result.seeds - 1)
    return max(above, below)


def beyond(distance: float, reach: float, freedom: int) -> float:
    """Return twice the one-sided p value of an effect at a distance, from the reach of the 95% interval on its side."""
    return two_sided(distance / reach * quantile(0.975, freedom), freedom) if distance > 0 else 1.0


def adjust(values: Mapping[str, float]) -> dict[str, float]:
    """Return p values after Holm's correction: the smallest times their number, the next times one less, never falling."""
    adjusted, largest = {}, 0.0
    for rank, (id, p) in enumerate(sorted(values.items(), key=lambda pair: pair[1])):
        adjusted[id] = largest = max(largest, min(1.0, p * (len(values) - rank)))
    return adjusted


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def show(number: float) -> str:
    """Return three significant digits, and no exponent within reason."""
    return f"{number:.3g}"
