"""The rule that gives a measured claim its status, from the sign and the size that were predicted before the first run.

Positive (for negative, the mirror image), with the smallest effect of interest d > 0 and the 95% interval [low, high]:

    contradicted        high < -d
    excluded here       high < d
    reproduced          low > 0 and value >= d; a primary claim also needs p < 0.05 after Holm's correction
    sign shown          low > 0 and value < d
    undecided           everything else

None: reproduced where -d < low and high < d; contradicted where low > d or high < -d. Silent, for a method against itself:
reproduced where low <= 0 <= high, contradicted else. Before all this a claim is open while a run is missing, not testable here
where the whole interval of a premise lies outside its bounds, and undecided where a part of it does. After it, a sign that the
Benjamini-Hochberg procedure does not pass over all directional claims is undecided; so is a cause where an arm without it shows
the effect all the same; and a claim whose design leaves something open is at most what its limit says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from research.study.intervals import Result, quantile, two_sided

PREDICTED = ("positive", "negative", "none", "silent")
DIRECTIONAL = PREDICTED[:2]
SIGN = "sign shown, size undecided"
EXCLUDED = "excluded here"
HOLM = "that over all"
"""Said of what does not pass Holm's correction over all directional claims."""
LIMITS = (SIGN, "undecided")
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
class Limit:
    """The most that a claim may be called whatever its figure, for what its design leaves open."""

    status: str
    why: str

    def __post_init__(self) -> None:
        if self.status not in LIMITS:
            raise ValueError(f"status={self.status!r}: give {' or '.join(LIMITS)}")


@dataclass(frozen=True)
class Corrected:
    """A claim's p values after correction for several claims; 1 is no evidence, and what is not corrected is 0."""

    holm: float | None = None
    """Over the paper's primary claims; None of a claim that is not primary."""
    rate: float = 0.0
    """The false discovery rate at which it passes over all directional claims (Benjamini-Hochberg)."""
    every: float = 0.0
    """Holm's over all of them, which decides nothing and is said."""
    num: int = 0
    """Directional claims."""


@dataclass(frozen=True)
class Finding:
    """What became of a claim, and why in a sentence without a full stop; empty where the status says all."""

    status: str
    reason: str = ""


def judge(
    measure: Measure,
    premise: Sequence[Premise],
    results: Mapping[str, Result],
    corrected: Corrected | None = None,
    planned: Mapping[str, int] = NOTHING,
    arms: Sequence[Premise] = (),
    limit: Limit | None = None,
) -> Finding:
    """Return the status of a measured claim; `planned` is the number of seeds that are to be run, by estimand, and `arms` are
    what holds where the cause that a claim names is left out."""
    found = judge_figure(measure, premise, results, planned)
    if found.status not in ("reproduced", "contradicted", SIGN):
        return found
    corrected = corrected or Corrected()
    if measure.predicted in DIRECTIONAL and corrected.rate >= LEVEL:
        return Finding(
            "undecided", f"over {corrected.num} directional claims the false discovery rate is {corrected.rate:.2g}"
        )
    if found.status != "reproduced":
        return found if limit is None or found.status == limit.status else Finding(limit.status, limit.why)
    for arm in arms:
        if not (results.get(arm.estimand) and arm.holds(results[arm.estimand])):
            return Finding("undecided", f"no arm separates the cause: {describe_premise(arm, results[arm.estimand])}")
    if corrected.holm is not None and corrected.holm >= LEVEL:
        return Finding("undecided", f"after Holm's correction over the paper's primary claims p = {corrected.holm:.2g}")
    if limit:
        return Finding(limit.status, limit.why)
    said = (
        []
        if corrected.holm is None
        else [f"Holm's correction over the paper's primary claims p = {corrected.holm:.2g}"]
    )
    said += [f"{HOLM} {corrected.num} directional claims p = {corrected.every:.2g}"] if corrected.every >= LEVEL else []
    return Finding("reproduced", f"after {', after '.join(said)}" if said else "")


def judge_figure(
    measure: Measure, premise: Sequence[Premise], results: Mapping[str, Result], planned: Mapping[str, int]
) -> Finding:
    """Return the status that a claim's interval and its premises give."""
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
    if is_none:
        return (
            Finding("reproduced")
            if -smallest < low and high < smallest
            else Finding("undecided", explain(measure, result))
        )
    if high < smallest:
        return Finding(EXCLUDED, explain(measure, result))
    if low > 0:
        return Finding("reproduced") if value >= smallest else Finding(SIGN, explain(measure, result))
    return Finding("undecided", explain(measure, result))


def describe_premise(premise: Premise, result: Result) -> str:
    """Return what a premise asks for, and what was found."""
    interval = f" [{show(result.low)}, {show(result.high)}]" if result.has_interval else ""
    return f"`{premise.estimand}` is {show(result.value)}{interval}, needed is {premise}"


def explain(measure: Measure, result: Result) -> str:
    """Say why an effect is undecided, and what as many seeds would have seen."""
    _, low, high = measure.toward(result)
    smallest = show(measure.smallest)
    if measure.predicted != "none" and high < measure.smallest:
        sign = "the interval has the opposite sign" if high < 0 else "the interval is below it"
        return f"an effect of {smallest} as predicted is excluded: {sign}"
    seen = f"{result.seeds} seeds would have seen {show(detectable(measure, result))} {result.unit}".rstrip()
    seen += f" with {POWER:.0%} power"
    if measure.predicted == "none":
        return f"the interval reaches beyond {smallest}; {seen}"
    if low > 0:
        return f"the sign is as predicted, the estimate below the smallest effect of interest, {smallest}; {seen}"
    return seen


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


def discovery_rates(values: Mapping[str, float]) -> dict[str, float]:
    """Return the false discovery rate at which each p value passes: p times their number over its rank, never above a later's."""
    rates, least = {}, 1.0
    for rank, (id, p) in reversed([*enumerate(sorted(values.items(), key=lambda pair: pair[1]), 1)]):
        rates[id] = least = min(least, p * len(values) / rank)
    return rates


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
