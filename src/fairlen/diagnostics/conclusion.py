"""The verdict on a log: an effect of length within prompts, none that matters, or more rollouts needed to know.

Of the three effects of `within.py` one is called where it stands at a false discovery rate of 5% over all three. `none` is
stronger than the absence of that: the 90% intervals of all three lie within the smallest effects that matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fairlen.diagnostics.log import Log
from fairlen.diagnostics.within import Effect, Within, are_discoveries, compare_within

Status = Literal["none", "effect", "unknown"]
Name = Literal["gap", "order", "bend"]
SMALLEST_LENGTH, SMALLEST_SHARE = 0.10, 0.05
"""The smallest effects that matter: of length relatively, of pairs and accuracy in shares of 1."""
MIN_PROMPTS = 10
"""Prompts with a better and a worse response below which no interval is trusted."""


@dataclass(frozen=True)
class Margins:
    """The smallest effects that matter."""

    length: float = SMALLEST_LENGTH
    share: float = SMALLEST_SHARE

    def of(self, name: Name) -> float:
        """Return the margin on the scale of an effect of `Within`: log length, or a share of pairs."""
        return math.log1p(self.length) if name == "gap" else self.share


@dataclass(frozen=True)
class Conclusion:
    """What a log says about length within prompts."""

    status: Status
    effect: Name | None
    """The largest one relative to its margin, among those that are significant; of `none` and `unknown` among all three."""
    found: Effect | None
    significant: tuple[Name, ...]
    within: Within
    margins: Margins

    @property
    def prompts_needed(self) -> int:
        """Return about how many prompts with a pair would show the smallest effects that matter, in four cases of five."""
        effects = ((self.within.gap, "gap"), (self.within.order, "order"), (self.within.bend, "bend"))
        ratios = [e.smallest / self.margins.of(name) for e, name in effects if math.isfinite(e.smallest)]
        return math.ceil(self.within.gap.num_prompts * max(ratios, default=math.nan) ** 2) if ratios else 0

    def describe(self, worse: str = "incorrect", better: str = "correct") -> str:
        """Return the verdict in one sentence."""
        within, few = self.within, self.within.gap.num_prompts
        if self.status == "effect":
            return " and ".join(describe_effects(within, self.significant, worse, better))
        if few < MIN_PROMPTS:
            return (
                f"{few} prompts have a {better} and an {worse} response in one step; "
                f"fewer than {MIN_PROMPTS} are too few to conclude from"
            )
        lengths, points = f"{self.margins.length:.0%} of length", f"{100 * self.margins.share:g} points"
        if self.status == "none":
            return (
                f"no effect of length within prompts as large as {lengths} or {points}: {worse} responses are "
                f"{show_gap(within.gap)} longer than {better} ones to the same prompt, the longer ones in "
                f"{show_share(within.order)} of pairs"
            )
        return (
            f"these rollouts could show {math.expm1(within.gap.smallest):.0%} of length or "
            f"{100 * max(within.order.smallest, within.bend.smallest):.0f} points; {lengths} and {points} need about "
            f"{self.prompts_needed:,} prompts with {better} and {worse} responses, {few:,} are there"
        )


def describe_effects(within: Within, names: tuple[Name, ...], worse: str, better: str) -> list[str]:
    """Return a clause for each effect; length and order are one."""
    clauses = []
    if "gap" in names or "order" in names:
        word = "longer" if (within.gap if "gap" in names else within.order).value > 0 else "shorter"
        clauses.append(
            f"{worse} responses are {show_gap(within.gap, word)} {word} than {better} ones to the same prompt, "
            f"the {word} ones in {show_share(within.order, word)} of pairs"
        )
    if "bend" in names:
        where = "medium length" if within.bend.value > 0 else "extreme length, short or long,"
        far = "farther from" if within.bend.value > 0 else "closer to"
        word = "longer" if within.bend.value > 0 else "shorter"
        clauses.append(
            f"responses of {where} are the best of their prompt: in {show_share(within.bend, word)} of pairs the {worse} "
            f"one is {far} the prompt's median length"
        )
    return clauses


def show_gap(found: Effect, word: str = "longer") -> str:
    """Return a difference of log lengths as a percentage with its 95% interval, for "longer" or "shorter"."""
    side = 1 if word == "longer" else -1
    low, high = sorted(math.expm1(side * bound) for bound in found.interval())
    return f"{math.expm1(side * found.value):.0%} [{low:.0%}, {high:.0%}]"


def show_share(found: Effect, word: str = "longer") -> str:
    """Return a share of pairs as a percentage with its 95% interval, of those on that side."""
    side = 1 if word == "longer" else -1
    low, high = sorted(min(max(0.5 + side * bound, 0.0), 1.0) for bound in found.interval())
    return f"{0.5 + side * found.value:.0%} [{low:.0%}, {high:.0%}]"


def conclude(within: Within, margins: Margins = Margins()) -> Conclusion:
    """Return the verdict on three effects."""
    effects: dict[Name, Effect] = {"gap": within.gap, "order": within.order, "bend": within.bend}
    usable = {name: e for name, e in effects.items() if e.num_prompts >= MIN_PROMPTS}
    called = are_discoveries([e.p_value for e in usable.values()])
    significant = tuple(name for name, is_called in zip(usable, called, strict=True) if is_called)
    is_none = len(usable) == len(effects) and all(e.is_within(margins.of(name)) for name, e in usable.items())
    status = "none" if is_none else "effect" if significant else "unknown"
    among = significant if status == "effect" else tuple(usable)
    largest = max(among, key=lambda name: abs(usable[name].value) / margins.of(name), default=None)
    return Conclusion(status, largest, usable[largest] if largest else None, significant, within, margins)


def conclude_log(log: Log, margins: Margins = Margins(), with_truncated: bool = False) -> Conclusion:
    """Return the verdict on a log: of plain samples of the policy, without those that were truncated unless asked for."""
    rows = log.responses.active & (log.responses.round == 0)
    rows &= with_truncated | ~log.responses.truncated
    table = log.responses.take(rows)
    outcome = log.correct[rows].astype(np.float64)
    return conclude(compare_within(table.prompt, table.prompt, outcome, table.length.astype(np.float64)), margins)
