"""The verdict on a log, as docs/audit.md derives it: an effect of length within prompts, none that matters, or unknown."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np

from fairlen.audit.log import Answer, Log, halfway, plain_samples
from fairlen.audit.statistics.intervals import NOTHING, Estimate
from fairlen.audit.statistics.lengths import split
from fairlen.audit.statistics.streams import mean_advantage
from fairlen.audit.statistics.within import MIN_PROMPTS, Effect, Within, compare_within, find_bar
from fairlen.batch import Floats, Ints, Responses
from fairlen.sampling.stream_metrics import count_continued

Status = Literal["none", "effect", "unknown"]
Name = Literal["gap", "order", "bend", "curve"]
MANY = 0.2  # share of truncated responses from which on that is said first
TOLD: tuple[Name, ...] = ("gap", "order", "curve", "bend")  # effects, of each finding the one first that stands for it
RATE = 0.05  # false discovery rate of a log's findings


@dataclass(frozen=True)
class Margins:
    """The smallest effects that matter: of length relatively, of pairs and accuracy in shares of 1."""

    length: float = 0.10
    share: float = 0.05

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < 1:
                raise ValueError(f"smallest_{name}={value}: give a number between 0 and 1")

    def of(self, name: Name) -> float:
        """Return the margin on the scale of an effect of `Within`."""
        return math.log1p(self.length) if name == "gap" else self.share

    def text(self, noun: str) -> str:
        return f"{self.length:.0%} of {noun} or {100 * self.share:g} points"


@dataclass(frozen=True)
class Quantity:
    """Quantity compared within prompts, and the words for its effects: {0} is a number with its interval, {1} is more or less."""

    noun: str
    measures: tuple[str, str]  # names of its two findings: more or less of it, and the best amount in the middle
    of: Callable[[Responses], Floats]
    words: tuple[str, str]
    subject: str
    gap: str
    order: str
    near: str
    medium: str
    ends: str
    is_more: str  # what is said of the incorrect response of a pair that has more of it

    def measure_of(self, name: str) -> str:
        """Return the finding that an effect belongs to: gap and order are one, bend and curve are one."""
        return self.measures[name not in ("gap", "order")]

    @property
    def median(self) -> str:
        return f"the prompt's median {self.noun.removeprefix('the ')}"


LENGTH = Quantity(
    "length", ("within.length", "within.bend"), lambda table: table.length.astype(np.float64), ("longer", "shorter"),
    "incorrect responses", "are {0} {1} than correct ones to the same prompt", "are the {1} ones in {0} of pairs",
    "a length of {:,.0f}", "medium length", "the shortest and longest", "is longer",
)  # fmt: skip
TURNS = Quantity(
    "the number of turns", ("within.turns", "within.turns_bend"), lambda table: table.num_turns.astype(np.float64),
    ("more turns", "fewer turns"), "incorrect responses", "take {0} {1} than correct ones to the same prompt",
    "take {1} in {0} of pairs", "{:,.1f} turns", "a medium number of turns", "those of the fewest and most", "takes more turns",
)  # fmt: skip
TURN_LENGTH = Quantity(
    "the length of turns", ("within.turn_length", "within.turn_length_bend"), lambda table: table.length / table.num_turns,
    ("longer", "shorter"), "turns of incorrect responses", "are {0} {1} than those of correct ones to the same prompt",
    "are the {1} ones in {0} of pairs", "a length of turns of {:,.1f}", "a medium length of turns",
    "those of the shortest and longest turns", "has longer turns",
)  # fmt: skip
"""Of a response, the mean over its turns."""
TURN_QUANTITIES = (TURNS, TURN_LENGTH)


@dataclass(frozen=True)
class Conclusion:
    status: Status
    sentence: str
    effect: Name | None  # of the finding that is the largest relative to its margin, of `none` and `unknown` too
    estimate: Estimate  # of gap the relative difference of length, incorrect over correct, else a difference of shares
    significant: tuple[Name, ...]  # effects that stand at the false discovery rate and may be as large as what matters
    bar: float  # p-value up to which findings of this log stand, -1 where none does
    num_prompts: int  # prompts with a correct and an incorrect response in one step
    prompts_needed: int
    """About how many would show the smallest effects that matter in four of five logs; 0 if that cannot be said."""
    margins: Margins = Margins()
    quantity: Quantity = LENGTH


MAX_QUESTIONS = 3  # questions of which all combinations of answers are tried; of more, one answer differs at a time


def conclude_log(found: Conclusion, log: Log, truncated: float) -> Conclusion:
    """Return the verdict on a log with everything that is not known of it: it may be unknown, or depend on an answer.

    `found` is the verdict on the effects of its lengths; `truncated` is the share of truncated responses, nan if it is unknown.
    """
    rows = plain_samples(log)
    lengths = log.responses.length[rows]
    if log.obstacle:
        return replace(found, status="unknown", sentence=log.obstacle)
    settled = settle_questions(found, log)
    is_asked = settled is not found
    if found.num_prompts >= MIN_PROMPTS and not is_asked and (usual := find_one_length(lengths)):
        text = f"nearly all responses have one length, {usual:,} {log.unit}: nothing varies, perhaps this is the limit"
        return replace(found, status="unknown", sentence=text)
    found = add_truncation(add_bar(settled, log), truncated)
    return replace(found, sentence="; ".join((found.sentence, *log.caveats)))


def find_one_length(lengths: Ints) -> int:
    """Return the length that at least 19 of 20 responses have; 0 if there is none."""
    if len(lengths) < MIN_PROMPTS:
        return 0
    values, numbers = np.unique(lengths, return_counts=True)
    return int(values[numbers.argmax()]) if numbers.max() >= 0.95 * len(lengths) else 0


Verdict = tuple[str, str, bool]
"""Status, and of an effect its kind and whether it is positive."""


def settle_questions(found: Conclusion, log: Log) -> Conclusion:
    """Return the verdict if all answers to a log's questions lead to it, else an unknown one that asks."""
    questions = log.questions
    if not questions:
        return found
    choices = [tuple(combination) for combination in list_combinations([len(one.answers) for one in questions])]
    conclusions = {choice: conclude_with(found, log, choice) for choice in choices}
    verdicts = {choice: verdict_of(one) for choice, one in conclusions.items()}
    decisive = [place for place in range(len(questions)) if decides(place, verdicts)]
    if not decisive:
        return found
    remedies: dict[Verdict, str] = {}
    for choice in choices:
        if verdicts[choice] not in remedies:
            answers = [questions[place].answers[choice[place]] for place in decisive]
            texts = ", ".join(answer.text for answer in answers)
            remedies[verdicts[choice]] = f"{texts}: {shorten_verdict(conclusions[choice])} ({write_flags(answers)})"
    about = " and ".join(questions[place].about for place in decisive)
    return replace(found, status="unknown", sentence=f"the verdict depends on {about}: {'; '.join(remedies.values())}")


def list_combinations(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield which answer each question has: all combinations, or if there are many those with one answer that differs."""
    if len(sizes) <= MAX_QUESTIONS:
        yield from product(*map(range, sizes))
        return
    first = (0,) * len(sizes)
    yield first
    for place, size in enumerate(sizes):
        yield from ((*first[:place], answer, *first[place + 1 :]) for answer in range(1, size))


def decides(place: int, verdicts: dict[tuple[int, ...], Verdict]) -> bool:
    """Return whether the answer at one place changes a verdict while all others stay."""
    seen: dict[tuple[int, ...], Verdict] = {}
    for choice, verdict in verdicts.items():
        others = (*choice[:place], *choice[place + 1 :])
        if seen.setdefault(others, verdict) != verdict:
            return True
    return False


def conclude_with(found: Conclusion, log: Log, choice: tuple[int, ...]) -> Conclusion:
    """Return the verdict on a log whose questions have the chosen answers; `found` is that with all first ones."""
    if not any(choice):
        return found
    length, correct = log.responses.length, log.correct
    excluded = np.zeros(len(log), np.bool_)
    for question, place in zip(log.questions, choice, strict=True):
        answer = question.answers[place]
        length = length if answer.shorter is None else length - answer.shorter
        excluded = excluded if answer.excluded is None else excluded | answer.excluded
        correct = correct if answer.correct is None else answer.correct
    rows = plain_samples(log) & ~excluded
    sizes = np.maximum(length[rows], 1).astype(np.float64)
    within = compare_within(log.strata[rows], log.clusters[rows], correct[rows].astype(np.float64), sizes)
    return conclude(within, found.margins, quantity=found.quantity)


def verdict_of(found: Conclusion) -> Verdict:
    if found.status != "effect" or not found.effect:
        return found.status, "", False
    return found.status, found.quantity.measure_of(found.effect), found.estimate.value > 0


def shorten_verdict(found: Conclusion) -> str:
    """Return a verdict without the clauses that explain it."""
    if found.status == "unknown":
        return "too little to conclude from"
    return "no effect of length" if found.status == "none" else found.sentence.split("; ")[0]


def write_flags(answers: Sequence[Answer]) -> str:
    """Return the flags that give some answers, one for each option."""
    options = dict.fromkeys(answer.option for answer in answers)
    values = {option: ",".join(answer.value for answer in answers if answer.option == option) for option in options}
    return " ".join(f"{option} {shlex.quote(value)}" for option, value in values.items())


def add_bar(found: Conclusion, log: Log) -> Conclusion:
    """Return a conclusion whose sentence begins with the reward above which a response counts as correct, where we chose it."""
    outcome = log.responses.outcome[log.responses.active]
    if "correct" in log.known or len(np.unique(outcome)) <= 2:
        return found
    text = f"correct here is a reward above {halfway(outcome):.3g}, half of its range (--columns correct=COLUMN>NUMBER: another)"
    length = log.responses.length[log.responses.active].astype(np.float64)
    if np.ptp(length) > 0 and abs(np.corrcoef(outcome, length)[0, 1]) > 0.99:
        text += ", and that reward is a function of length"
    return replace(found, sentence=f"{text}: {found.sentence}")


def add_truncation(found: Conclusion, share: float) -> Conclusion:
    """Return a conclusion whose sentence says first, or last, how many responses a limit ended, or (nan) that it is unknown."""
    if math.isnan(share):
        return replace(found, sentence=f"{found.sentence}; whether responses were truncated is unknown")
    at_limit = f"{share:.{0 if share >= 0.01 else 1}%} of responses end at the limit"
    if share > MANY:
        return replace(found, sentence=f"{at_limit}; of the others: {found.sentence}")
    end = f"{at_limit} and are left out" if share else "no response was truncated"
    return replace(found, sentence=f"{found.sentence}; {end}")


def add_grouping(found: Conclusion, log: Log) -> Conclusion:
    """Return a conclusion whose sentence says what responses must agree in; unknown if that has to be answered first."""
    if log.question:
        nothing = {"effect": None, "estimate": NOTHING, "significant": ()}
        return replace(found, status="unknown", sentence=log.question, **nothing)
    return replace(found, sentence=f"{found.sentence}; {log.grouping}") if log.grouping else found


def within_log(log: Log, with_truncated: bool = False, quantity: Quantity = LENGTH) -> Within:
    """Return the effects of a quantity within prompts and steps of a log, by default without truncated responses."""
    rows = plain_samples(log, with_truncated)
    table = log.responses.take(rows)
    correct = log.correct[rows].astype(np.float64)
    return compare_within(log.strata[rows], log.clusters[rows], correct, quantity.of(table))


def find_usable(within: Within) -> dict[Name, Effect]:
    return {name: effect for name, effect in list_effects(within) if effect.num_prompts >= MIN_PROMPTS}


def p_values_of(within: Within, quantity: Quantity = LENGTH) -> dict[str, float]:
    p_values: dict[str, list[float]] = {}
    for name, effect in find_usable(within).items():
        p_values.setdefault(quantity.measure_of(name), []).append(effect.p_value)
    return {measure: combine(*p) for measure, p in p_values.items()}


def conclude(
    within: Within, margins: Margins = Margins(), p_values: Sequence[float] = (), quantity: Quantity = LENGTH
) -> Conclusion:
    """Return the verdict on effects within prompts; `p_values` are of all findings of the log, by default of these effects."""
    usable, combined, measure_of = find_usable(within), p_values_of(within, quantity), quantity.measure_of
    tested = [p for p in p_values or combined.values() if not math.isnan(p)]
    bar = find_bar(tested, RATE)
    levels = find_levels(len(tested))
    small = [name for name, effect in usable.items() if effect.is_within(margins.of(name)) or not effect.exists]
    stand: list[Name] = [n for n, e in usable.items() if combined[measure_of(n)] <= bar and e.p_value <= RATE]
    is_echo = not within.aligned.p_value <= RATE or within.aligned.value * within.bend.value <= 0
    if is_echo and {"gap", "order"} & set(stand):  # a shift alone is not told a second time
        stand = [name for name in stand if name != "bend"]
    significant: tuple[Name, ...] = tuple(name for name in stand if name not in small)
    status: Status = "none" if usable and len(small) == len(usable) else "effect" if significant else "unknown"
    existing: tuple[Name, ...] = tuple(name for name, effect in usable.items() if effect.exists)
    among = significant if status == "effect" else existing
    largest = max(among, key=lambda name: abs(usable[name].value) / margins.of(name), default=None)
    alike: list[Name] = [name for name in TOLD if largest and name in among and measure_of(name) == measure_of(largest)]
    told: Name | None = alike[0] if alike else None
    estimate = as_estimate(told, usable[told]) if told else NOTHING
    needed = count_needed(usable, margins, levels)
    found = Conclusion(status, "", told, estimate, significant, bar, within.gap.num_prompts, needed, margins, quantity)
    return replace(found, sentence=describe_verdict(found, within, levels))


def list_effects(within: Within) -> tuple[tuple[Name, Effect], ...]:
    return ("gap", within.gap), ("order", within.order), ("bend", within.bend), ("curve", within.curve)


def combine(*p_values: float) -> float:
    """Return one p-value of several tests of one finding (Simes 1986); nan is no test."""
    known = sorted(p for p in p_values if not math.isnan(p))
    return min((p * len(known) / place for place, p in enumerate(known, 1)), default=math.nan)


def as_estimate(name: Name, effect: Effect) -> Estimate:
    """Return an effect with its 95% interval: of log lengths as a relative difference."""
    return Estimate(*(math.expm1(min(x, 50.0)) if name == "gap" else x for x in effect.estimate))


def find_levels(num_findings: int) -> dict[Name, float]:
    """Return the p-value that each effect needs to make its finding significant, if no other finding of the log is.

    A log with `num_findings` findings asks RATE / num_findings of the first one. A finding combines two effects (`combine`): it
    is significant if both reach that bar, or if one of them reaches half of it. The share of pairs in which the incorrect
    response is longer comes with a difference of length, so it needs the bar. The other effects can come alone and need half.
    """
    bar = RATE / max(num_findings, 1)
    return {"gap": bar / 2, "order": bar, "bend": bar / 2, "curve": bar / 2}


def count_needed(usable: dict[Name, Effect], margins: Margins, levels: dict[Name, float]) -> int:
    """Return about how many prompts would show effects as large as the margins, in four of five logs.

    Args:
        usable: Effects by name.
        margins: The smallest effects that matter.
        levels: p-value that each effect needs, see `find_levels`.

    Returns:
        The number of prompts with a pair; 0 if one prompt has nearly all of the weight, so that nothing can be said.
    """
    existing: dict[Name, Effect] = {name: effect for name, effect in usable.items() if effect.exists}
    if any(effect.freedom < 2 for effect in existing.values()):
        return 0
    ratios = [(e.detectable_at(levels[name]) / margins.of(name)) ** 2 * e.num_prompts for name, e in existing.items()]
    finite = [ratio for ratio in ratios if math.isfinite(ratio)]
    return math.ceil(max(finite, default=0.0))


def describe_verdict(found: Conclusion, within: Within, levels: dict[Name, float]) -> str:
    """Return the sentence of a verdict; `levels` are the p-values that effects need, see `find_levels`."""
    quantity, margins = found.quantity, found.margins.text(found.quantity.noun)
    if found.effect and found.status == "effect":
        clauses = {measure: text for measure, _, text in describe_effects(within, found.significant, quantity)}
        is_small = abs(vars(within)[found.effect].value) < found.margins.of(found.effect)
        caveat = f"; it may be smaller than what matters, {margins}" if is_small else ""
        return clauses[quantity.measure_of(found.effect)] + caveat
    if found.num_prompts < MIN_PROMPTS:
        few = f"{found.num_prompts} prompt{'s have' if found.num_prompts != 1 else ' has'}"
        return f"{few} a correct and an incorrect response in one step; fewer than {MIN_PROMPTS} are too few to conclude from"
    if found.status == "none":
        side = 1 if within.gap.value >= 0 else -1
        text = f"no effect of {quantity.noun} within prompts, on average over them, as large as {margins}: {quantity.subject} "
        return text + quantity.gap.format(show_size("gap", within.gap.estimate, side), quantity.words[side < 0])
    if not found.prompts_needed:
        return f"nearly all of what {found.num_prompts:,} prompts say is one prompt's: the others are too few to conclude from"
    gap, points = find_detectable(within, levels)
    shown = f"{math.expm1(min(gap, 50.0)):.0%} of {quantity.noun} or {100 * points:.0f} points"
    text = f"these rollouts would show an effect of {shown}"
    if found.prompts_needed <= found.num_prompts:
        return f"{text}, and show none, but do not exclude one of {margins}: more prompts decide"
    return (
        f"{text}; for one of {margins} about {found.prompts_needed:,} prompts with correct and incorrect responses are needed, "
        f"and {found.num_prompts:,} are there"
    )


def find_detectable(within: Within, levels: dict[Name, float]) -> tuple[float, float]:
    """Return the difference of log lengths, and of shares of pairs, that four of five logs like this one would show."""
    gap = within.gap.detectable_at(levels["gap"])
    points = max(within.order.detectable_at(levels["order"]), within.bend.detectable_at(levels["bend"]))
    return gap, points


def describe_effects(
    within: Within, names: tuple[Name, ...], quantity: Quantity = LENGTH
) -> Iterator[tuple[str, Name, str]]:
    """Yield the measure, the effect that stands for it, and a clause, of the effects named; gap and order are one."""
    if "gap" in names or "order" in names:
        name: Name = "gap" if "gap" in names else "order"
        side = 1 if vars(within)[name].value > 0 else -1
        word = quantity.words[side < 0]
        told: tuple[Name, ...] = ("gap", "order") if name == "gap" else ("order",)
        clauses = (vars(quantity)[one].format(show_size(one, vars(within)[one].estimate, side), word) for one in told)
        yield quantity.measures[0], name, f"{quantity.subject} {' and '.join(clauses)}"
    if "curve" in names:
        accuracy = "highest" if within.curve.value > 0 else "lowest"
        side, points = ("lower", 1) if within.curve.value > 0 else ("higher", -1)
        low, high = sorted(100 * points * bound for bound in within.curve.interval())
        lost = f"{100 * abs(within.curve.value):.0f} [{low:.0f}, {high:.0f}] points {side}"
        near = quantity.near.format(within.best_length)
        text = f"accuracy is {accuracy} near {near}, and {lost} one standard deviation of {quantity.noun} away"
        yield quantity.measures[1], "curve", text
    elif "bend" in names:
        often, where, side = "more", "farther from", 1
        if within.bend.value < 0:
            often, where, side = "less", "closer to", -1
        text = f"responses of {quantity.medium} are {often} often correct than {quantity.ends} to the same prompt together: "
        text += f"in {show_size('bend', within.bend.estimate, side)} of pairs the incorrect one is {where} {quantity.median}"
        yield quantity.measures[1], "bend", text


def show_size(name: Name, found: Estimate, side: int) -> str:
    """Return the size of an effect with its interval as a percentage: by how much more, side 1, or less, -1; or of pairs."""

    def to_side(x: float) -> float:
        size = side * math.expm1(min(x, 50.0)) if name == "gap" else min(max(0.5 + side * x, 0.0), 1.0)
        return round(size, 2) + 0.0  # no "-0%"

    value, *ends = map(to_side, found)
    return f"{Estimate(value, *sorted(ends)):.0%}"


@dataclass(frozen=True)
class ByOutcome:
    conclusion: Conclusion
    within: Within  # without truncated responses, as the verdict is
    mean: Estimate
    correct: Estimate
    incorrect: Estimate


@dataclass(frozen=True)
class TurnReport:
    number: ByOutcome  # turns of a response
    length: ByOutcome  # mean length of its turns
    another_turn: Estimate
    """Net advantage on another turn, a response: the sum of advantages over turns that another one followed."""


def report_turns(log: Log, effects: Sequence[Within], conclusions: Sequence[Conclusion]) -> TurnReport:
    """Return what a log says about turns, of effects and verdicts on each of TURN_QUANTITIES."""
    rows = plain_samples(log, with_truncated=True)
    table, correct = log.responses.take(rows), log.correct[rows]
    number, length = (
        ByOutcome(conclusion, within, *split(log.clusters[rows], quantity.of(table), correct)[:3])
        for quantity, within, conclusion in zip(TURN_QUANTITIES, effects, conclusions, strict=True)
    )
    return TurnReport(number, length, mean_advantage(log, count_continued(log.responses, log.segments)).estimate)
