"""The rule that gives a measured claim its status, from the sign and the size that were predicted before the first run.

Positive (for negative, the mirror image), with the smallest effect of interest d > 0 and the 95% interval [low, high]:

    reproduced          low > 0 and value >= d; a primary claim also needs p < 0.05 after Holm's correction
    contradicted        high < -d
    undecided           everything else

None: reproduced where -d < low and high < d; contradicted where low > d or high < -d. Before all this a claim is open while a
figure is missing, and not testable here where the value of a premise lies outside its bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from research.study.intervals import Result, quantile, two_sided

PREDICTED = ("positive", "negative", "none")
LEVEL = 0.05
POWER = 0.8


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


@dataclass(frozen=True)
class Finding:
    """What became of a claim."""

    status: str
    reason: str = ""
    """One sentence without a full stop; empty where the status says all."""


def judge(
    measure: Measure, premise: Sequence[Premise], results: Mapping[str, Result], adjusted: float | None = None
) -> Finding:
    """Return the status of a measured claim; `adjusted` is the p value of a primary claim after Holm's correction."""
    lacking = [f"`{one.estimand}`: no run yet" for one in premise if one.estimand not in results]
    if lack := lacks(results.get(measure.estimand)):
        lacking.insert(0, f"`{measure.estimand}`: {lack}")
    if lacking:
        return Finding("open", "; ".join(lacking))
    failed = [one for one in premise if not one.holds(results)]
    if failed:
        text = "; ".join(f"`{one.estimand}` is {show(results[one.estimand].value)}, needed is {one}" for one in failed)
        return Finding("not testable here", f"the premise does not hold: {text}")
    result = results[measure.estimand]
    value, low, high = toward(measure, result)
    if measure.predicted == "none":
        return judge_none(measure, result, adjusted)
    if high < -measure.smallest:
        return Finding("contradicted", f"the whole interval is beyond {show(measure.smallest)} on the other side")
    if low <= 0 or value < measure.smallest:
        return Finding("undecided", explain(measure, result))
    return confirm(adjusted)


def judge_none(measure: Measure, result: Result, adjusted: float | None) -> Finding:
    """Return the status of a claim that there is no effect."""
    if max(-result.high, result.low) > measure.smallest:
        return Finding("contradicted", f"the whole interval is beyond {show(measure.smallest)} on one side")
    if max(result.high, -result.low) >= measure.smallest:
        return Finding("undecided", f"the interval reaches beyond {show(measure.smallest)}")
    return confirm(adjusted)


def confirm(adjusted: float | None) -> Finding:
    """Return reproduced, but for a primary claim whose p value does not survive the correction."""
    if adjusted is None:
        return Finding("reproduced")
    text = f"p = {adjusted:.2g} after Holm's correction over the paper's primary claims"
    return Finding("reproduced" if adjusted < LEVEL else "undecided", text)


def explain(measure: Measure, result: Result) -> str:
    """Say why an effect is undecided, and what as many seeds would have seen."""
    _, low, high = toward(measure, result)
    smallest = show(measure.smallest)
    seen = f"{result.seeds} seeds would have seen {show(detectable(result))} {result.unit}".rstrip()
    seen += f" with {POWER:.0%} power"
    if low > 0:
        return f"the sign is as predicted, the estimate below the smallest effect of interest, {smallest}; {seen}"
    if high < measure.smallest and low > -measure.smallest:
        return f"no effect of {smallest} or more, of either sign, is in the interval; {seen}"
    if high < 0:
        return f"the sign is the other one, and effects below {smallest} are in the interval; {seen}"
    return seen


def toward(measure: Measure, result: Result) -> tuple[float, float, float]:
    """Return value, low and high with the predicted side as the positive one."""
    if measure.predicted == "negative":
        return -result.value, -result.high, -result.low
    return result.value, result.low, result.high


def lacks(result: Result | None) -> str:
    """Return what a figure lacks to decide anything; empty if nothing."""
    if result is None:
        return "no run yet"
    return "" if result.has_interval else f"no interval: {result.seeds} seeds are too few, or have no spread"


def detectable(result: Result) -> float:
    """Return the effect that as many seeds of this spread show with the power: standard errors times two quantiles of t."""
    error = (result.high - result.low) / 2 / quantile(0.975, result.seeds - 1)
    return error * (quantile(0.975, result.seeds - 1) + quantile(POWER, result.seeds - 1))


def p_value(measure: Measure, result: Result | None) -> float:
    """Return the p value of a claim for Holm's correction: 1 where there is no figure or the estimate has the other sign.

    For a claim that there is no effect, twice the larger of the two one-sided p values against the smallest effect.
    """
    if result is None or not result.has_interval:
        return 1.0
    if measure.predicted != "none":
        return result.p if toward(measure, result)[0] > 0 else 1.0
    above = beyond(measure.smallest - result.value, result.high - result.value, result.seeds)
    below = beyond(measure.smallest + result.value, result.value - result.low, result.seeds)
    return max(above, below)


def beyond(distance: float, reach: float, seeds: int) -> float:
    """Return twice the one-sided p value of an effect at a distance, from the reach of the 95% interval on its side."""
    freedom = seeds - 1
    return two_sided(distance / reach * quantile(0.975, freedom), freedom) if distance > 0 else 1.0


def adjust(values: Mapping[str, float]) -> dict[str, float]:
    """Return p values after Holm's correction: the smallest times their number, the next times one less, never falling."""
    adjusted, largest = {}, 0.0
    for rank, (id, p) in enumerate(sorted(values.items(), key=lambda pair: pair[1])):
        largest = max(largest, min(1.0, p * (len(values) - rank)))
        adjusted[id] = largest
    return adjusted


def show(number: float) -> str:
    """Return three significant digits, and no exponent within reason."""
    return f"{number:.3g}"
