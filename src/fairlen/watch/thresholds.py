"""Alarms of a watch. Thresholds are rules without a null hypothesis: a mean over the last steps crosses a fixed bar.

A small batch crosses any bar sooner or later by chance. So a rule looks at windows of at least MIN_PROMPTS prompts, and shares
and lengths also have to differ from a healthy level by MIN_ERRORS standard errors over prompts. A clear case needs fewer prompts,
at a larger standard error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from zlib import crc32

import numpy as np

from fairlen.audit.conclusion import MANY
from fairlen.audit.log import Log, weighed
from fairlen.audit.statistics.coupling import shares_under
from fairlen.audit.statistics.intervals import length_bins
from fairlen.batch import (
    Bools,
    Floats,
    Ints,
    Responses,
    build_segments,
    centred_squares,
    mean_or_nan,
    number_keys,
    sum_by,
)
from fairlen.channels import OBSERVATION, name_channel

MIN_STEPS = 3
"""Smallest number of steps in a window."""
MIN_PROMPTS = 32
"""Smallest number of prompts in a window, counted once per step."""
FEW_PROMPTS = 12
"""Smallest number of prompts in the windows of a clear change of length."""
MAX_STEPS = 64
"""Largest number of steps in a window; a run with one prompt per step fills it."""
MIN_ERRORS = 5.0
"""Smallest distance from a healthy level, in standard errors."""
FEW_FACTOR = 1.6
"""Factor for standard errors over fewer than MIN_PROMPTS prompts, which are uncertain themselves."""
ONSET_SHARE = 0.25
"""Share of a change after which it counts as begun."""


@dataclass(frozen=True)
class Alarm:
    """Something that a run's user should know. Each kind is raised once per run."""

    kind: str
    """Kind of alarm: "effect" for the test of length and correctness, or a threshold, one of THRESHOLDS."""
    step: int
    """Step at which it was raised."""
    size: float
    """Size of an effect (`quantity` names what it measures), or the number that crossed a threshold."""
    interval: tuple[float, float] | None
    """95% interval of an effect's size that holds at every look; None for thresholds."""
    text: str
    """What happened, since when, what it does not mean, and what to do."""
    since: int
    """Estimated step of the onset."""
    quantity: Literal["", "length", "pairs"] = ""
    """Meaning of an effect's size. "length": relative difference of length, incorrect over correct, as the audit estimates it.
    "pairs": share of pairs in which the incorrect response is longer, minus a half."""
    sequences: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """For an effect, the statistics that the test bets on, each with its 95% confidence sequence (value, low, high):
    "clipped_gap", the mean difference of log lengths clipped around the prompt's median, and "order", as for "pairs"."""

    def __str__(self) -> str:
        return f"{self.kind}, step {self.step}: {self.text}"

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Alarm:
        """Rebuild an alarm from `dataclasses.asdict` after JSON. Raises KeyError, TypeError or ValueError for anything else."""
        interval = None if state["interval"] is None else tuple(map(float, state["interval"]))
        sequences = {name: tuple(map(float, values)) for name, values in state["sequences"].items()}
        return cls(**{**state, "interval": interval, "sequences": sequences})


@dataclass(frozen=True)
class StepSummary:
    """Numbers of one rollout batch, or the means of several; nan if unknown."""

    number: int
    size: int
    """Number of responses."""
    length: float
    """Mean tokens per response."""
    correct: float
    """Share of correct responses among those with a verdict."""
    truncated: float
    """Share of responses that the limit ended."""
    idle: float
    """Share of prompts whose responses (two or more) all have one outcome."""
    missing: float
    """Share of responses without a verdict."""
    missing_length: float
    """Mean tokens of responses without a verdict, over the mean of all."""
    older: float
    """Mean age of the longest quarter of responses minus that of the shortest quarter, in updates."""
    weight: float
    """Mean weight of a token in the longest responses over that in the shortest, under the aggregation in use."""
    channels: Mapping[str, float] = field(default_factory=dict)
    """Mean tokens per response of each channel."""
    num_prompts: int = 0
    compared: int = 0
    """Number of prompts with at least two responses."""
    length_error: float = math.nan
    """Standard error of `length` over prompts; nan if the step has one prompt. The next two likewise."""
    truncated_error: float = math.nan
    missing_error: float = math.nan
    fingerprint: int = 0
    """Checksum of the lengths and outcomes, in any order."""
    num_late: int = 0
    """Number of responses of this or an earlier step that arrived while this was the newest step."""
    late_length: float = 0.0
    """Mean tokens of those responses."""

    @property
    def lost(self) -> float:
        """Share of responses that were dropped, lack a verdict, or arrived late."""
        return (self.missing * self.size + self.num_late) / (self.size + self.num_late)

    @property
    def lost_length(self) -> float:
        """Mean tokens of those responses, over the mean of the counted ones."""
        num_missing = self.missing * self.size
        missing_tokens = self.missing_length * self.length * num_missing if num_missing else 0.0
        num_lost = num_missing + self.num_late
        return (missing_tokens + self.late_length * self.num_late) / num_lost / self.length if num_lost else math.nan


def summarize_step(number: int, table: Responses, age: Floats | None, knows_limit: bool, rule: str) -> StepSummary:
    """Return the numbers of a rollout batch.

    Args:
        number: Number of the step.
        table: Responses, [N].
        age: Updates since the weights that generated each response, [N]; None if unknown.
        knows_limit: Whether `table.truncated` is known.
        rule: Name of the aggregation in use; empty if unknown.
    """
    length = table.length.astype(np.float64)
    has_verdict = ~np.isnan(table.outcome)
    mean_length = float(length.mean())
    prompt = number_keys(table.prompt)
    is_idle = find_idle_prompts(table)
    truncated = table.truncated.astype(np.float64)
    return StepSummary(
        number=number,
        size=len(table),
        length=mean_length,
        correct=mean_or_nan(table.correct[has_verdict]),
        truncated=float(truncated.mean()) if knows_limit else math.nan,
        idle=mean_or_nan(is_idle),
        missing=float(1.0 - has_verdict.mean()),
        missing_length=mean_or_nan(length[~has_verdict]) / mean_length,
        older=math.nan if age is None else compare_ages(length, age),
        weight=compare_weights(table.take(has_verdict), rule) if rule else math.nan,
        channels={name: float(tokens.mean()) for name, tokens in table.channels.items()},
        num_prompts=int(prompt.max()) + 1,
        compared=len(is_idle),
        length_error=find_error(prompt, length),
        truncated_error=find_error(prompt, truncated),
        missing_error=find_error(prompt, (~has_verdict).astype(np.float64)),
        fingerprint=find_fingerprint(table),
    )


def find_fingerprint(table: Responses) -> int:
    """Return a checksum of the lengths and outcomes that does not depend on their order."""
    rows = np.column_stack([table.length, table.outcome])
    order = np.lexsort(rows.T)
    return crc32(rows[order].tobytes())


def find_error(prompt: Ints, values: Floats) -> float:
    """Return the standard error of the mean of values [N] over prompts [N], dense from 0; nan for a single prompt."""
    num_prompts = int(prompt.max()) + 1
    if num_prompts < 2:
        return math.nan
    totals = sum_by(prompt, values - values.mean(), num_prompts)
    variance = (totals**2).sum() * num_prompts / (num_prompts - 1)
    return math.sqrt(variance) / len(values)


def compare_ages(length: Floats, age: Floats) -> float:
    """Return the mean age of the longest quarter of responses minus that of the shortest quarter."""
    order = np.argsort(length, kind="stable")
    quarter = max(len(length) // 4, 1)
    return float(age[order[-quarter:]].mean() - age[order[:quarter]].mean())


def find_idle_prompts(table: Responses) -> Bools:
    """Return, for each prompt with several responses, whether all of them have one outcome."""
    rows = table.active_rows()
    count, total, squares = (sum_by(rows.prompt, rows.outcome**power, rows.num_prompts) for power in (0, 1, 2))
    variation = centred_squares(count, total, squares)
    return (variation <= 1e-9 * np.maximum(squares, 1e-12))[count > 1]


def compare_weights(table: Responses, rule: str) -> float:
    """Return `StepSummary.weight`, with rewards normalised by prompt; nan if no response is active."""
    log = Log("watch", "tokens", table, np.zeros(len(table), np.int64), build_segments(table, table.length))
    rows = weighed(replace(log, known=frozenset({"correct"})))
    if not len(rows.segments):
        return math.nan
    return shares_under(
        rule, rows, length_bins(rows.segments.length), length_bins(rows.segments.num_turns)
    ).long_to_short


MEANS = ("length", "correct", "truncated", "idle", "missing", "missing_length", "older", "weight")
"""Numbers of a step that a window averages."""


def average_steps(steps: Sequence[StepSummary]) -> StepSummary:
    """Return the mean of steps, weighted by their sizes. Each number is averaged over the steps that know it."""
    sizes = np.array([step.size for step in steps], np.float64)
    means: dict[str, float] = {}
    for name in MEANS:
        values = np.array([getattr(step, name) for step in steps])
        known = ~np.isnan(values)
        means[name] = float(np.average(values[known], weights=sizes[known])) if known.any() else math.nan
    errors = {f"{name}_error": combine_errors(steps, name) for name in ("length", "truncated", "missing")}
    names = dict.fromkeys(name for step in steps for name in step.channels)
    channels = {
        name: float(np.average([step.channels.get(name, 0.0) for step in steps], weights=sizes)) for name in names
    }
    num_late = sum(step.num_late for step in steps)
    late_tokens = sum(step.num_late * step.late_length for step in steps)
    return replace(
        steps[-1], size=int(sizes.sum()), channels=channels, num_late=num_late, late_length=late_tokens / max(num_late, 1),
        **means, **errors,
    )  # fmt: skip


def combine_errors(steps: Sequence[StepSummary], name: str) -> float:
    """Return the standard error of a mean over steps. If a step has a single prompt, the variation between steps decides."""
    sizes = np.array([step.size for step in steps], np.float64)
    errors = np.array([getattr(step, f"{name}_error") for step in steps])
    if not np.isnan(errors).any():
        return float(np.sqrt((sizes**2 * errors**2).sum()) / sizes.sum())
    values = np.array([getattr(step, name) for step in steps])
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


@dataclass(frozen=True)
class ThresholdRule:
    """Rule for one kind of alarm. Functions take the last steps and the first steps of the run, both as means."""

    number: Callable[[StepSummary, StepSummary], float]
    """Number that is compared with the bar."""
    bar: float
    text: Callable[[float, StepSummary, StepSummary, str], str]
    """What happened; further arguments are the number and words for the onset."""
    remedy: str
    error: Callable[[StepSummary, StepSummary], float] = lambda now, first: 0.0
    """Standard error of the number, or of its logarithm if it is a ratio."""
    is_ratio: bool = False
    """Whether the inverse of the number is compared as well."""
    is_share: bool = False
    """Whether the number is a share of responses, whose noise is known at a healthy level: a clear case needs fewer prompts."""

    @property
    def healthy(self) -> float:
        """Healthy level: no change for a ratio, else half of the bar."""
        return 1.0 if self.is_ratio else self.bar / 2

    def describe_bar(self) -> str:
        if self.is_ratio:
            return f"a factor of {self.bar:g}"
        return f"{self.bar:.0%}" if self.bar < 1 else f"{self.bar:g} update"

    def is_crossed(self, x: float, error: float) -> bool:
        """Return whether a number is beyond the bar, and away from the healthy level by more than noise of this error."""
        is_beyond = x >= self.bar or (self.is_ratio and 0 < x <= 1 / self.bar)
        if not is_beyond:
            return False
        distance = abs(math.log(x)) if self.is_ratio else x - self.healthy
        return not distance < MIN_ERRORS * error  # an unknown error (nan) does not block the alarm


def describe_length(x: float, now: StepSummary, first: StepSummary, since: str) -> str:
    changes = [f"mean {first.length:.0f} → {now.length:.0f}{describe_channel(now, first)}"]
    if not math.isnan(first.correct + now.correct):
        changes.append(f"accuracy {first.correct:.0%} → {now.correct:.0%}")
    return f"responses are {x:.2g} times as long as at the start ({'; '.join(changes)}), {since}. A change alone is no fault"


SELECTED = 1.15
"""Ratio of the lengths of lost responses to those of others from which on the loss is a selection by length."""


def describe_lost(x: float, now: StepSummary, first: StepSummary, since: str) -> str:
    late = f", {now.num_late:,} of them because they arrived after their step was counted" if now.num_late else ""
    text = f"{x:.0%} of responses were dropped, lack a verdict or arrived late{late}, {since}"
    if math.isnan(now.lost_length):
        return text
    length = f"{text}. They are {now.lost_length:.1f} times as long as the others"
    is_selection = not 1 / SELECTED < now.lost_length < SELECTED
    return f"{length}, so length decides which responses count" if is_selection else length


def find_length_error(now: StepSummary, first: StepSummary) -> float:
    """Return the standard error of the log of the ratio of mean lengths."""
    return math.hypot(now.length_error / now.length, first.length_error / first.length)


RULES = {
    "truncation": ThresholdRule(
        lambda now, first: now.truncated, MANY,
        lambda x, now, first, since: f"{x:.0%} of responses are cut at the limit of generation ({first.truncated:.0%} at the "
        f"start), {since}. A response that is cut can hardly be correct",
        "Read a few: text that repeats needs no higher limit. Otherwise raise the limit (TRL's max_completion_length)",
        lambda now, first: now.truncated_error, is_share=True,
    ),
    "verdicts": ThresholdRule(
        lambda now, first: now.lost, 0.1, describe_lost,
        "Look for deadlines and errors of the verifier, and for limits on age",
        lambda now, first: now.missing_error, is_share=True,
    ),
    "staleness": ThresholdRule(
        lambda now, first: now.older, 1.0,
        lambda x, now, first, since: f"the longest quarter of responses is {x:.1f} updates older than the shortest, {since}. "
        "Limits on stale tokens drop long responses first",
        "Let generation run ahead less, or correct for the sampler's policy",
    ),
    "length": ThresholdRule(
        lambda now, first: now.length / first.length, 2.0, describe_length,
        "Read a few responses, and look for a reward or an aggregation that favours {side} ones: `fairlen methods --compare` "
        "shows what yours does", find_length_error, is_ratio=True,
    ),
    "signal": ThresholdRule(
        lambda now, first: now.idle, 0.9,
        lambda x, now, first, since: f"{x:.0%} of prompts have responses of one outcome only, {since}, so few are compared; "
        f"{now.correct:.0%} of responses are correct",
        "Use problems that the model solves sometimes, or more responses per prompt",
    ),
    "weight": ThresholdRule(
        lambda now, first: now.weight, 3.0,
        lambda x, now, first, since: f"a token of the longest responses weighs {x:.2g} times one of the shortest, {since}",
        "If each token should weigh the same, change the aggregation: `fairlen methods --compare`", is_ratio=True,
    ),
}  # fmt: skip
THRESHOLDS = tuple(RULES)
"""Kinds of alarm without a test."""


def describe_channel(now: StepSummary, first: StepSummary) -> str:
    """Return the generated channel that changed most, if there are several."""
    changes = {
        name: (first.channels.get(name, 0.0), tokens) for name, tokens in now.channels.items() if name != OBSERVATION
    }
    if len(changes) < 2:
        return ""
    name = max(changes, key=lambda channel: abs(changes[channel][1] - changes[channel][0]))
    before, after = changes[name]
    return f", most of it in {name_channel(name)}: {before:.0f} → {after:.0f}"


def find_since(rule: ThresholdRule, steps: Sequence[StepSummary], first: StepSummary, x: float) -> int:
    """Return the step after the last one whose number had made less than ONSET_SHARE of the change from the start to x."""
    start = rule.number(average_steps(steps[:MIN_STEPS]), first)
    if rule.is_ratio and start > 0:
        level = start * (x / start) ** ONSET_SHARE
    else:
        level = start + ONSET_SHARE * (x - start)
    before = [at for at, step in enumerate(steps) if (rule.number(step, first) - level) * (x - start) < 0]
    position = min(before[-1] + 1, len(steps) - 1) if before else 0
    return steps[position].number


@dataclass(frozen=True)
class Windows:
    """Means of the last and of the first steps, and how many steps the last are."""

    now: StepSummary
    first: StepSummary
    num_steps: int


def count_window(num_prompts: Sequence[int], least: int) -> int:
    """Return how many of the first steps make a window: MIN_STEPS with `least` prompts. 0 if MAX_STEPS are not enough."""
    total = 0
    for count, number in enumerate(num_prompts[:MAX_STEPS], 1):
        total += number
        if count >= MIN_STEPS and total >= least:
            return count
    return 0


def find_windows(steps: Sequence[StepSummary], field: str, least: int) -> Windows | None:
    """Return the first and the last steps with at least `least` prompts; None if there are too few.

    `field` is what counts the prompts: "num_prompts" or "compared".
    """
    num_last = count_window([getattr(step, field) for step in steps[: -MAX_STEPS - 1 : -1]], least)
    if not num_last:
        return None
    num_first = count_window([getattr(step, field) for step in steps[:MAX_STEPS]], least)
    # the first steps may need more than MAX_STEPS if few of their prompts were compared
    return Windows(average_steps(steps[-num_last:]), average_steps(steps[: num_first or MAX_STEPS]), num_last)


def find_crossed(steps: Sequence[StepSummary], kinds: Container[str]) -> Iterator[Alarm]:
    """Yield an alarm for each threshold of these kinds that the mean of the last steps has crossed."""
    if len(steps) < MIN_STEPS:
        return
    of_responses = find_windows(steps, "num_prompts", MIN_PROMPTS)
    of_prompts = find_windows(steps, "compared", MIN_PROMPTS)
    of_few = find_windows(steps, "num_prompts", FEW_PROMPTS)
    shortest = Windows(average_steps(steps[-MIN_STEPS:]), average_steps(steps[:MIN_STEPS]), MIN_STEPS)
    num_prompts = sum(step.num_prompts for step in steps[-MIN_STEPS:])
    for kind, rule in RULES.items():
        if kind not in kinds:
            continue
        candidates: list[tuple[Windows, float]] = []
        windows = of_prompts if kind == "signal" else of_responses
        if windows:
            candidates.append((windows, rule.error(windows.now, windows.first)))
        if rule.is_share:
            # the largest error that a healthy share can have: all responses to a prompt are alike
            error = math.sqrt(rule.healthy * (1 - rule.healthy) / num_prompts)
            candidates.append((shortest, error))
        if kind == "length" and of_few:
            candidates.append((of_few, FEW_FACTOR * rule.error(of_few.now, of_few.first)))
        for windows, error in candidates:
            x = rule.number(windows.now, windows.first)
            if rule.is_crossed(x, error):
                yield describe_crossed(kind, x, steps, windows)
                break


def describe_crossed(kind: str, x: float, steps: Sequence[StepSummary], windows: Windows) -> Alarm:
    """Return the alarm of a threshold that the number x has crossed."""
    rule = RULES[kind]
    since = find_since(rule, steps, windows.first, x)
    onset = "from the start" if since == steps[0].number else f"since about step {since}"
    # a ratio is to the first window; of other numbers that window may overlap with the last one
    first = windows.first if rule.is_ratio else average_steps(steps[:MIN_STEPS])
    what = rule.text(x, windows.now, first, onset)
    test = (
        f"This is a threshold, not a test: the mean of the last {windows.num_steps} steps passed {rule.describe_bar()}"
    )
    remedy = rule.remedy.format(side="longer" if x > 1 else "shorter")
    return Alarm(kind, windows.now.number, x, None, f"{what}. {test}. {remedy}", since)
