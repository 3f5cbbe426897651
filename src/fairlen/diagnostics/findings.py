"""What the measures of a log amount to, in plain words: one small function a finding, which returns nothing where there is none.

A finding needs a 95% interval that excludes no effect. `size` puts them in order: of a ratio its logarithm, of lengths the share
of their mean, of shares the difference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fairlen.diagnostics.acceptance import Acceptance
from fairlen.diagnostics.coupling import Coupling
from fairlen.diagnostics.lengths import Lengths
from fairlen.diagnostics.tracks import StreamReport
from fairlen.diagnostics.uncertainty import Estimate
from fairlen.diagnostics.weights import WeightMass

ROUNDING = 1e-6
"""Effects below it are rounding."""
LEAST_SPREAD = 0.25
"""Of lengths within a sign, over their mean: less is not worth a word."""
LEAST_IDLE = 0.1
"""Share of groups without contrast that every run has."""
LEAST_REPEATED = 0.02


@dataclass(frozen=True)
class Finding:
    """One effect of length, or of what goes with it."""

    text: str
    effect_size: float
    """The number in the text, with its 95% interval."""
    low: float
    high: float
    advice: str
    """What to try."""
    measure: str
    """The measure that it comes from."""
    size: float
    """How large the effect is, on a scale that all findings share; no effect is 0."""


def tells(found: Estimate, none: float = 0.0) -> bool:
    """Whether the interval excludes no effect, by more than rounding."""
    return found.low > none + ROUNDING or found.high < none - ROUNDING


def number(found: Estimate, style: str = ".3g", unit: str = "") -> str:
    """1.9x [1.7x, 2.1x]"""
    value, low, high = (f"{x:{style}}{unit}" for x in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]"


def make(text: str, found: Estimate, size: float, measure: str, advice: str) -> Finding:
    return Finding(text, found.value, found.low, found.high, advice, measure, abs(size))


def size_of(found: Estimate) -> Estimate:
    """A negative number and its interval without the sign."""
    return found if found.value >= 0 else Estimate(-found.value, -found.high, -found.low)


def incorrect_and_correct(found: Lengths, unit: str) -> Finding | None:
    """Wrong answers longer, or shorter, than right ones."""
    if not tells(found.difference):
        return None
    word = "longer" if found.difference.value > 0 else "shorter"
    text = f"wrong answers are {number(size_of(found.difference))} {unit} {word} than right ones"
    text += f": {found.wrong.value:.3g} against {found.right.value:.3g}"
    if word == "longer":
        advice = (
            "where a token mean weighs them so, `+balanced` keeps both sides equal; `+toplambda` shortens right answers of easy "
            "prompts only"
        )
    else:
        advice = (
            "lengths will grow with accuracy: watch the budget; under a token mean `+balanced` keeps both sides equal"
        )
    return make(text, found.difference, found.difference.value / found.mean.value, "lengths.difference", advice)


def gap_within_groups(found: Coupling, unit: str) -> Finding | None:
    """The same among answers to one prompt, where difficulty cannot explain it."""
    if not tells(found.gap):
        return None
    word = "longer" if found.gap.value > 0 else "shorter"
    text = f"among answers to one prompt, those below its mean are {number(size_of(found.gap), '.0%')} {word} than those above"
    text += f" ({size_of(found.gap_tokens).value:.3g} {unit})"
    return make(
        text, found.gap, found.gap.value, "coupling.gap", "`+balanced`; a token mean turns this into unequal weight"
    )


def token_mean(mass: WeightMass) -> Finding | None:
    """Unequal weight of the two signs under a token mean."""
    found = mass.negative_to_positive
    if not tells(found, 1.0) or found.value <= 0:
        return None
    text = f"a token mean gives wrong answers {number(found, '.2f', 'x')} the weight of right ones here"
    return make(text, found, math.log(found.value), "weights.token_mean.negative_to_positive", "`+balanced` removes it")


def sequence_mean(found: Coupling, mass: WeightMass) -> Finding | None:
    """Tokens of long answers weigh less than those of short ones of the same sign under a sequence mean."""
    spread = found.variation_within_sign
    if not spread.low > LEAST_SPREAD:
        return None
    text = f"lengths of one sign spread by {number(spread, '.0%')} of their mean"
    if len(mass.per_token) > 1 and mass.per_token[0] > 0:
        text += f": a sequence mean gives a token of the longest answers {mass.per_token[-1] / mass.per_token[0]:.2g}x the weight"
        text += " of one of the shortest"
    return make(text, spread, spread.value - LEAST_SPREAD, "coupling.variation_within_sign",
                "a token mean such as `dapo`'s, or `+balanced`, which keeps the signs equal too")  # fmt: skip


def sign_length(found: Coupling) -> Finding | None:
    """Advantages that go with length."""
    if not tells(found.sign_length):
        return None
    side = "long answers have the lower" if found.sign_length.value < 0 else "long answers have the higher"
    text = f"{side} advantages: sum A L / sum L = {number(found.sign_length)}, where a token mean should start from 0"
    advice = "`+balanced`, or a sequence mean such as `grpo`'s, whose sum is 0"
    return make(text, found.sign_length, found.sign_length.value, "coupling.sign_length", advice)


def truncation(wrong: Estimate, right: Estimate, difference: Estimate) -> Finding | None:
    """Wrong answers that the budget made wrong."""
    if not difference.low > ROUNDING:
        return None
    text = f"{number(wrong, '.0%')} of wrong answers were truncated, {right.value:.0%} of right ones"
    advice = "a larger budget, `+overlong_filter` (leave them out) or `+overlong` (a soft penalty before the end)"
    return make(text, wrong, difference.value, "shares.truncated_incorrect", advice)


def accuracy_by_length(short: Estimate, long: Estimate, difference: Estimate) -> Finding | None:
    """Accuracy that falls, or rises, with length."""
    if not tells(difference):
        return None
    word = "falls" if difference.value < 0 else "rises"
    points = Estimate(*(100 * x for x in (difference.value, difference.low, difference.high)))
    text = f"accuracy {word} with length: {short.value:.0%} of the shortest answers are right, {long.value:.0%} of the longest, "
    text += f"{number(points, '+.0f')} points"
    advice = (
        "look at long answers for repetition" if word == "falls" else "penalties of length would cost accuracy here"
    )
    return make(text, difference, difference.value, "shares.accuracy_long_minus_short", advice)


def growth(found: Lengths, unit: str) -> Finding | None:
    """Answers that become longer, or shorter, over training."""
    span = float(found.batch[-1] - found.batch[0]) if len(found.batch) else 0.0
    if not tells(found.trend) or not span:
        return None
    word = "grow" if found.trend.value > 0 else "shrink"
    text = f"answers {word} by {number(size_of(found.trend))} {unit} a step, "
    text += f"{size_of(found.trend).value * span:.3g} over steps {found.batch[0]} to {found.batch[-1]}"
    advice = (
        "compare with accuracy; `+gr3` or `+toplambda` press against length" if word == "grow" else "watch accuracy"
    )
    return make(text, found.trend, found.trend.value * span / found.mean.value, "lengths.trend", advice)


def idle_groups(idle: Estimate, all_correct: Estimate, all_incorrect: Estimate) -> Finding | None:
    """Groups that teach nothing, because all answers are right or all wrong."""
    if not idle.low > LEAST_IDLE:
        return None
    text = f"{number(idle, '.0%')} of groups have no contrast: all right {all_correct.value:.0%}, all wrong {all_incorrect.value:.0%}"
    advice = "`+dynamic` samples others instead; easier or harder prompts, or more answers each"
    return make(text, idle, idle.value - LEAST_IDLE, "shares.idle_groups", advice)


def acceptance_by_length(found: Acceptance) -> Finding | None:
    """A bound that lets lengths through unequally."""
    p_value = found.p_value if math.isnan(found.p_value_prompts) else found.p_value_prompts
    if found.undefined or not tells(found.lre) or not (found.lre.value > found.floor and p_value < 0.05):
        return None
    share = found.share.value
    text = f"the bound accepts {share[0]:.0%} of the shortest answers and {share[-1]:.0%} of the longest: "
    text += f"length reweighting error {number(found.lre)}, of which noise {found.floor:.2g}, p = {p_value:.2g}"
    advice = "`fspo`, whose band grows with the root of length; where it is that one, `fspo_centred` or `fspo_v3`"
    return make(text, found.lre, found.lre.value, "acceptance.lre", advice)


def optimism(found: StreamReport) -> Finding | None:
    """Survivors valued by the best of what came later."""
    if not tells(found.optimism):
        return None
    text = f"`max` values survivors {number(found.optimism)} above what is unbiased, a pair"
    advice = "`eqlen_unbiased`, or --set sampling.survivor_reward=halving"
    return make(text, found.optimism, found.optimism.value, "streams.optimism", advice)


def pressure(found: StreamReport) -> Finding | None:
    """Advantages at ends of answers that do not add up to nothing."""
    if not tells(found.pressure):
        return None
    side = "against" if found.pressure.value < 0 else "towards"
    text = f"advantages press {side} stopping: {number(found.pressure)} an answer at its end"
    return make(
        text, found.pressure, found.pressure.value, "streams.pressure", "`eqlen_unbiased`, whose sum is 0 on average"
    )


def duplicates(found: Estimate) -> Finding | None:
    """Answers that repeat another one of their group."""
    if not found.low > LEAST_REPEATED:
        return None
    text = f"{number(found, '.0%')} of answers repeat an earlier one to the same prompt word for word"
    return make(text, found, found.value, "shares.duplicate", "a higher temperature, or harder prompts")
