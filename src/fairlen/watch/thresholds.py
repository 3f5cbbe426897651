"""Alarms of a watch, and those that have no null hypothesis: numbers over the last steps that cross a line, named as such."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import numpy as np

from fairlen.audit.conclusion import MANY
from fairlen.audit.log import Log, weighed
from fairlen.audit.statistics.coupling import shares_under
from fairlen.audit.statistics.intervals import length_bins
from fairlen.batch import Bools, Floats, Responses, build_segments, centred_squares, mean_or_nan, sum_by
from fairlen.channels import OBSERVATION, name_channel

PATIENCE, ENOUGH = 3, 32
"""Steps that are averaged, at the start and now; of shares of prompts as many as have so many, where 90% is known to 5 points."""
NEAR = 0.25  # share of a change that a step may have made and still lie before its onset


@dataclass(frozen=True)
class Alarm:
    """Something that a run's user should see, told once."""

    kind: str
    """"effect", about length and correctness, or a threshold, one of THRESHOLDS."""
    step: int
    """At which it was raised."""
    size: float
    """Of an effect the relative difference of length, incorrect over correct, or the share of pairs in which the incorrect
    response is longer, minus a half; of a threshold what crossed it."""
    interval: tuple[float, float] | None
    """95% confidence sequence of the size, which leaves out 0; None for thresholds."""
    text: str
    """What happened, since about when, what it does not mean, and what to do."""
    since: int
    """Estimated step of the onset."""
    quantity: Literal["", "length", "pairs"] = ""
    """Of an effect what `size` is of: pairs only where length alone may lie within its margin."""

    def __str__(self) -> str:
        return f"{self.kind}, step {self.step}: {self.text}"


@dataclass(frozen=True)
class Shape:
    """Shape of one rollout batch, or the mean of several; nan where nothing tells."""

    number: int
    size: int
    length: float  # mean tokens of a response
    correct: float  # share among responses with a verdict
    truncated: float
    idle: float  # share of prompts with several responses of which all have one outcome
    missing: float  # share of responses without a verdict
    missing_length: float  # mean tokens of responses without a verdict, over that of all
    older: float  # mean age of the longest quarter minus that of the shortest, in updates
    weight: float
    """Mean weight of a token among the longest responses over one among the shortest, by the aggregation in use."""
    channels: Mapping[str, float] = field(default_factory=dict)  # mean tokens of a response by channel
    compared: int = 0  # prompts with several responses

    @classmethod
    def of(cls, number: int, table: Responses, age: Floats | None, knows_limit: bool, rule: str) -> Shape:
        """Describe a rollout batch; `age` [N] in updates, `rule` the aggregation in use."""
        length, has_verdict = table.length.astype(np.float64), ~np.isnan(table.outcome)
        order, quarter = np.argsort(length, kind="stable"), max(len(length) // 4, 1)
        idle = find_idle(table)
        return cls(
            number, len(table), float(length.mean()), mean_or_nan(table.correct[has_verdict]),
            float(table.truncated.mean()) if knows_limit else math.nan, mean_or_nan(idle),
            float(1.0 - has_verdict.mean()), mean_or_nan(length[~has_verdict]) / float(length.mean()),
            math.nan if age is None else float(age[order[-quarter:]].mean() - age[order[:quarter]].mean()),
            weigh(table.take(has_verdict), rule) if rule else math.nan,
            {name: float(tokens.mean()) for name, tokens in table.channels.items()}, len(idle),
        )  # fmt: skip


def find_idle(table: Responses) -> Bools:
    """Return of each prompt with several responses whether all have one outcome."""
    rows = table.active_rows()
    count, total, squares = (sum_by(rows.prompt, rows.outcome**power, rows.num_prompts) for power in (0, 1, 2))
    spread = centred_squares(count, total, squares)
    return (spread <= 1e-9 * np.maximum(squares, 1e-12))[count > 1]


def weigh(table: Responses, rule: str) -> float:
    """Return `Shape.weight` of rollouts whose rewards are normalised by prompt; nan of too few."""
    log = Log("watch", "tokens", table, np.zeros(len(table), np.int64), build_segments(table, table.length))
    rows = weighed(replace(log, known=frozenset({"correct"})))
    bins = (length_bins(of) for of in (rows.segments.length, rows.segments.num_turns))
    return shares_under(rule, rows, *bins).long_to_short if len(rows.segments) else math.nan


def average(steps: Sequence[Shape]) -> Shape:
    """Return the mean of steps by their sizes, of each number over those that have it."""
    weights = np.array([one.size for one in steps], np.float64)
    means = {}
    for name in (one.name for one in fields(Shape) if one.type == "float"):
        values = np.array([getattr(one, name) for one in steps])
        known = ~np.isnan(values)
        means[name] = float(np.average(values[known], weights=weights[known])) if known.any() else math.nan
    names = dict.fromkeys(name for one in steps for name in one.channels)
    channels = {n: float(np.average([one.channels.get(n, 0.0) for one in steps], weights=weights)) for n in names}
    return replace(steps[-1], **means, channels=channels)


@dataclass(frozen=True)
class Line:
    """A number that an alarm is raised about, from steps as they are now and as they were first."""

    number: Callable[[Shape, Shape], float]
    bar: float
    text: str
    """What happened; {x} is the number."""
    remedy: str
    is_ratio: bool = False
    """Whether one over the number counts as well."""
    of_prompts: bool = False
    """Whether it is a share of prompts, which ENOUGH of them have to show."""

    def describe_bar(self) -> str:
        if self.is_ratio:
            return f"a factor of {self.bar:g}"
        return f"{self.bar:.0%}" if self.bar < 1 else f"{self.bar:g} update"

    def is_crossed(self, x: float) -> bool:
        return x >= self.bar or (self.is_ratio and 0 < x <= 1 / self.bar)


LINES = {
    "truncation": Line(
        lambda now, first: now.truncated, MANY,
        "{x:.0%} of responses end at the limit of generation, {first.truncated:.0%} at first; they are so many since about step "
        "{since}; length then decides which can be correct", "Read a few: text that repeats needs no higher limit. Otherwise "
        "raise the limit (TRL's max_completion_length)",
    ),
    "verdicts": Line(
        lambda now, first: now.missing, 0.1,
        "{x:.0%} of responses were dropped or lack a verdict, since about step {since}, and are {now.missing_length:.1f} times "
        "as long as all; length then decides which are left", "Look for deadlines and errors of the verifier, and limits on age",
    ),
    "staleness": Line(
        lambda now, first: now.older, 1.0,
        "the longest quarter is {x:.1f} updates older than the shortest, since about step {since}; limits on stale tokens meet "
        "long responses first", "Let generation run ahead less, or correct for the sampler's policy",
    ),
    "length": Line(
        lambda now, first: now.length / first.length, 2.0,
        "responses are {x:.2g} times as long as at first (a mean of {first.length:.0f}, then {now.length:.0f}{most}), since "
        "about step {since}; {first.correct:.0%} were correct at first, {now.correct:.0%} are now; a change alone is no fault",
        "Read a few responses, and look for a reward or an aggregation that favours {side} ones: `fairlen methods --compare` "
        "shows what yours does", is_ratio=True,
    ),
    "signal": Line(
        lambda now, first: now.idle, 0.9,
        "{x:.0%} of prompts have responses of one outcome, since about step {since}, so that hardly any is compared; "
        "{now.correct:.0%} are correct", "Give problems that the model solves sometimes, or more responses to a prompt",
        of_prompts=True,
    ),
    "weight": Line(
        lambda now, first: now.weight, 3.0,
        "a token of the longest responses weighs {x:.2g} times one of the shortest, since about step {since}",
        "Where each token should weigh the same, change the aggregation: `fairlen methods --compare`", is_ratio=True,
    ),
}  # fmt: skip
THRESHOLDS = tuple(LINES)
"""Kinds of alarm without a test."""


def describe_change(now: Shape, first: Shape) -> str:
    """Return which channel of what was generated has changed most, where there are several."""
    own = ((name, tokens) for name, tokens in now.channels.items() if name != OBSERVATION)
    pairs = {name: (first.channels.get(name, 0.0), tokens) for name, tokens in own}
    name = max(pairs, key=lambda one: abs(pairs[one][1] - pairs[one][0]), default="")
    return "; most in {}: {:.0f}, then {:.0f}".format(name_channel(name), *pairs[name]) if len(pairs) > 1 else ""


def find_since(line: Line, steps: Sequence[Shape], first: Shape, x: float) -> int:
    """Return the step after the last one whose number had gone less than NEAR of the way from the first ones to x."""
    start = line.number(first, first)
    level = start * (x / start) ** NEAR if line.is_ratio and start > 0 else start + NEAR * (x - start)
    before = [at for at, one in enumerate(steps) if (line.number(one, first) - level) * (x - start) < 0]
    return steps[min(before[-1] + 1, len(steps) - 1) if before else 0].number


def choose_last(steps: Sequence[Shape], least: int) -> Sequence[Shape]:
    """Return the last PATIENCE steps, or as many of the last ENOUGH as have `least` prompts with several responses; or none."""
    total = 0
    for size, one in enumerate(reversed(steps[-ENOUGH:]), 1):
        total += one.compared
        if size >= PATIENCE and total >= least:
            return steps[-size:]
    return ()


def find_crossed(steps: Sequence[Shape], kinds: Container[str]) -> Iterator[Alarm]:
    """Yield an alarm for each threshold of these kinds that the mean of the last steps has crossed."""
    first = average(steps[:PATIENCE])
    for kind, line in LINES.items():
        last = choose_last(steps, ENOUGH * line.of_prompts) if kind in kinds else ()
        if last and line.is_crossed(x := line.number(now := average(last), first)):
            since = find_since(line, steps, first, x)
            what = line.text.format(x=x, now=now, first=first, since=since, most=describe_change(now, first))
            rule = f"A threshold, no test: the mean of {len(last)} steps passed {line.describe_bar()}"
            remedy = line.remedy.format(side="longer" if x > 1 else "shorter")
            yield Alarm(kind, now.number, x, None, f"{what}. {rule}. {remedy}", since)
