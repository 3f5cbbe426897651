"""The verdict on a log: an effect of length within prompts, none that matters, or more rollouts needed to know.

docs/audit.md says how it follows from the effects.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fairlen.batch import Bools
from fairlen.diagnostics.log import Log
from fairlen.diagnostics.uncertainty import NOTHING, Estimate
from fairlen.diagnostics.within import Effect, Within, compare_within, find_bar

Status = Literal["none", "effect", "unknown"]
Name = Literal["gap", "order", "bend", "curve"]
TOLD: tuple[Name, ...] = ("gap", "order", "curve", "bend")
"""Effects, of each finding the one first that stands for it."""
RATE = 0.05
"""False discovery rate of a log's findings."""
MIN_PROMPTS = 10
"""Prompts with a better and a worse response below which no interval is trusted."""


@dataclass(frozen=True)
class Margins:
    """The smallest effects that matter: of length relatively, of pairs and accuracy in shares of 1."""

    length: float = 0.10
    share: float = 0.05

    def of(self, name: Name) -> float:
        """Return the margin on the scale of an effect of `Within`."""
        return math.log1p(self.length) if name == "gap" else self.share

    def __str__(self) -> str:
        return f"{self.length:.0%} of length or {100 * self.share:g} points"


@dataclass(frozen=True)
class Conclusion:
    """What a log says about length within prompts."""

    status: Status
    sentence: str
    """The verdict in words."""
    effect: Name | None
    """Of the finding that is the largest relative to its margin, of `none` and `unknown` too."""
    estimate: Estimate
    """Of it: of gap the relative difference of length, incorrect over correct, else a difference of shares."""
    significant: tuple[Name, ...]
    """Effects that stand at the false discovery rate and may be as large as what matters."""
    bar: float
    """P-value up to which findings of this log stand, -1 where none does."""
    num_prompts: int
    """Prompts with a correct and an incorrect response in one step."""
    prompts_needed: int
    """About how many would show the smallest effects that matter in four cases of five; 0 where that cannot be said."""
    margins: Margins = Margins()


def plain_samples(log: Log, with_truncated: bool = False) -> Bools:
    """Return which responses are compared, [R]: plain samples of the policy with a verdict."""
    rows = log.responses.active & (log.responses.round == 0)
    return rows & (with_truncated | ~log.responses.truncated)


def within_log(log: Log, with_truncated: bool = False) -> Within:
    """Return the effects of length within prompts and steps of a log, by default without truncated responses."""
    rows = plain_samples(log, with_truncated)
    table = log.responses.take(rows)
    return compare_within(
        table.prompt, log.clusters[rows], log.correct[rows].astype(np.float64), table.length.astype(np.float64)
    )


def conclude(within: Within, margins: Margins = Margins(), others: tuple[float, ...] = ()) -> Conclusion:
    """Return the verdict on effects within prompts; `others` are p-values of the log's further findings."""
    usable: dict[Name, Effect] = {name: e for name, e in list_effects(within) if e.num_prompts >= MIN_PROMPTS}
    p_values: dict[str, list[float]] = {}
    for name, effect in usable.items():
        p_values.setdefault(measure_of(name), []).append(effect.p_value)
    combined = {measure: combine(*p) for measure, p in p_values.items()}
    bar = find_bar([*combined.values(), *others], RATE)
    small = [name for name, effect in usable.items() if effect.is_within(margins.of(name)) or not effect.exists]
    significant: tuple[Name, ...] = tuple(
        name
        for name, effect in usable.items()
        if combined[measure_of(name)] <= bar and effect.p_value <= RATE and name not in small
    )
    status: Status = "none" if usable and len(small) == len(usable) else "effect" if significant else "unknown"
    existing: tuple[Name, ...] = tuple(name for name, effect in usable.items() if effect.exists)
    among = significant if status == "effect" else existing
    largest = max(among, key=lambda name: abs(usable[name].value) / margins.of(name), default=None)
    alike: list[Name] = [name for name in TOLD if largest and name in among and measure_of(name) == measure_of(largest)]
    told: Name | None = alike[0] if alike else None
    estimate = as_estimate(told, usable[told]) if told else NOTHING
    needed = count_needed(usable, margins)
    found = Conclusion(status, "", told, estimate, significant, bar, within.gap.num_prompts, needed, margins)
    return replace(found, sentence=describe(found, within))


def list_effects(within: Within) -> tuple[tuple[Name, Effect], ...]:
    """Return the effects by name."""
    return ("gap", within.gap), ("order", within.order), ("bend", within.bend), ("curve", within.curve)


def measure_of(name: str) -> str:
    """Return the finding that an effect belongs to: length and order are one, bend and curve are one."""
    return "within.length" if name in ("gap", "order") else "within.bend"


def combine(*p_values: float) -> float:
    """Return one p-value of several tests of one finding (Simes 1986); nan is no test."""
    known = sorted(p for p in p_values if not math.isnan(p))
    return min((p * len(known) / place for place, p in enumerate(known, 1)), default=math.nan)


def as_estimate(name: Name, effect: Effect) -> Estimate:
    """Return an effect with its 95% interval: of log lengths as a relative difference."""
    numbers = (effect.value, *effect.interval())
    return Estimate(*(math.expm1(min(x, 50.0)) if name == "gap" else x for x in numbers))


def count_needed(usable: dict[Name, Effect], margins: Margins) -> int:
    """Return about how many prompts would show effects as large as the margins in four cases of five."""
    ratios = [(e.smallest / margins.of(name)) ** 2 * e.num_prompts for name, e in usable.items() if e.exists]
    finite = [ratio for ratio in ratios if math.isfinite(ratio)]
    return math.ceil(max(finite, default=0.0))


def describe(found: Conclusion, within: Within) -> str:
    """Return the verdict in one sentence."""
    if found.effect and found.status == "effect":
        clauses = {measure: text for measure, _, text in describe_effects(within, found.significant)}
        is_small = abs(vars(within)[found.effect].value) < found.margins.of(found.effect)
        caveat = f"; it may be smaller than what matters, {found.margins}" if is_small else ""
        return clauses[measure_of(found.effect)] + caveat
    if found.num_prompts < MIN_PROMPTS:
        few = f"{found.num_prompts} prompt{'s have' if found.num_prompts != 1 else ' has'}"
        return f"{few} a correct and an incorrect response in one step; fewer than {MIN_PROMPTS} are too few to conclude from"
    if found.status == "none":
        word = "longer" if within.gap.value >= 0 else "shorter"
        text = f"no effect of length within prompts, on average over them, as large as {found.margins}: incorrect responses are "
        return f"{text}{show_gap(within.gap, word)} {word} than correct ones to the same prompt"
    shown = f"{math.expm1(min(within.gap.smallest, 50.0)):.0%} of length or "
    shown += f"{100 * max(within.order.smallest, within.bend.smallest):.0f} points"
    text = f"these rollouts would show an effect of {shown}; for one of {found.margins} about {found.prompts_needed:,} "
    return f"{text}prompts with correct and incorrect responses are needed, and {found.num_prompts:,} are there"


def describe_effects(within: Within, names: tuple[Name, ...]) -> Iterator[tuple[str, Name, str]]:
    """Yield the measure, the effect that stands for it, and a clause, of the effects named; length and order are one."""
    if "gap" in names or "order" in names:
        name: Name = "gap" if "gap" in names else "order"
        word = "longer" if vars(within)[name].value > 0 else "shorter"
        parts = {
            "gap": f"are {show_gap(within.gap, word)} {word} than correct ones to the same prompt",
            "order": f"are the {word} ones in {show_share(within.order, word)} of pairs",
        }
        order: tuple[Name, ...] = ("gap", "order") if name == "gap" else ("order",)
        yield "within.length", name, "incorrect responses " + " and ".join(parts[one] for one in order)
    if "curve" in names:
        accuracy = "highest" if within.curve.value > 0 else "lowest"
        side, points = ("lower", 1) if within.curve.value > 0 else ("higher", -1)
        low, high = sorted(100 * points * bound for bound in within.curve.interval())
        lost = f"{100 * abs(within.curve.value):.0f} [{low:.0f}, {high:.0f}] points {side}"
        yield "within.bend", "curve", (
            f"accuracy is {accuracy} near a length of {within.best_length:,.0f}, and {lost} one standard deviation "
            "of length away"
        )  # fmt: skip
    elif "bend" in names:
        often, where, word = "more", "farther from", "longer"
        if within.bend.value < 0:
            often, where, word = "less", "closer to", "shorter"
        text = f"responses of medium length are {often} often correct than the shortest and longest to the same prompt together: "
        text += f"in {show_share(within.bend, word)} of pairs the incorrect one is {where} the prompt's median length"
        yield "within.bend", "bend", text


def show_gap(found: Effect, word: str = "longer") -> str:
    """Return a difference of log lengths as a percentage with its 95% interval, for "longer" or "shorter"."""
    side = 1 if word == "longer" else -1
    value, low, high = (side * math.expm1(min(x, 50.0)) for x in (found.value, *found.interval()))
    return f"{value:.0%} [{min(low, high):.0%}, {max(low, high):.0%}]"


def show_share(found: Effect, word: str = "longer") -> str:
    """Return a share of pairs as a percentage with its 95% interval, of those on that side."""
    side = 1 if word == "longer" else -1
    low, high = sorted(min(max(0.5 + side * bound, 0.0), 1.0) for bound in found.interval())
    return f"{0.5 + side * found.value:.0%} [{low:.0%}, {high:.0%}]"
