"""Alarms of a watch that have no null hypothesis: numbers over the last steps that cross a line, named as such."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fairlen.audit.conclusion import MANY
from fairlen.audit.log import Log, weighed
from fairlen.audit.method_in_use import InUse
from fairlen.audit.statistics.coupling import token_weights
from fairlen.batch import Floats, Responses, build_segments, centred_squares, mean_or_nan, sum_by

PATIENCE = 3
"""Steps that are averaged, at the start and now."""
DRIFT = 2.0
"""Times as long or as short as at the start."""
IDLE = 0.9
"""Share of prompts with several responses of which all have one outcome."""
MISSING = 0.1
"""Share of responses without a verdict."""
STALE = 1.0
"""Updates by which the longest quarter of responses is older than the shortest."""
UNEVEN = 3.0
"""Times the weight of a token in the shortest tenth of responses over one in the longest, or the reverse."""


@dataclass(frozen=True)
class Step:
    """Shape of one rollout batch; nan where nothing tells."""

    number: int
    size: int
    length: float
    """Mean tokens of a response."""
    correct: float
    """Share among responses with a verdict."""
    truncated: float
    idle: float
    missing: float
    missing_length: float
    """Mean tokens of responses without a verdict, over that of all."""
    older: float
    """Mean age of the longest quarter minus that of the shortest, in updates."""
    channels: Mapping[str, float] = field(default_factory=dict)
    """Mean tokens of a response by channel."""
    weight: float = math.nan
    """Mean weight of a token in the longest tenth of responses over one in the shortest, by the aggregation in use."""

    @classmethod
    def of(
        cls, number: int, table: Responses, age: Floats | None, channels: Mapping[str, Floats], knows_limit: bool, rule: str = ""
    ) -> Step:  # fmt: skip
        """Describe a rollout batch; `age` [N] in updates, `channels` [N] each in tokens, `rule` the aggregation in use."""
        length, has_verdict = table.length.astype(np.float64), ~np.isnan(table.outcome)
        order = np.argsort(length, kind="stable")
        quarter = max(len(length) // 4, 1)
        return cls(
            number, len(table), float(length.mean()), mean_or_nan(table.correct[has_verdict]),
            float(table.truncated.mean()) if knows_limit else math.nan, find_idle(table),
            float(1.0 - has_verdict.mean()), mean_or_nan(length[~has_verdict]) / float(length.mean()),
            math.nan if age is None else float(age[order[-quarter:]].mean() - age[order[:quarter]].mean()),
            {name: float(tokens.mean()) for name, tokens in channels.items()}, weigh(table, rule) if rule else math.nan,
        )  # fmt: skip


def find_idle(table: Responses) -> float:
    """Return the share of prompts with several verdicts whose outcomes are all the same."""
    rows = table.active_rows()
    size = rows.num_prompts
    count, total, squares = (sum_by(rows.prompt, rows.outcome**power, size) for power in (0, 1, 2))
    spread = centred_squares(count, total, squares)
    return mean_or_nan((spread <= 1e-9 * np.maximum(squares, 1e-12))[count > 1])


def weigh(table: Responses, rule: str) -> float:
    """Return `Step.weight` of rollouts whose rewards are normalised by prompt; nan of fewer than 20."""
    rows = table.take(~np.isnan(table.outcome))
    tenth = len(rows) // 10
    if tenth < 2:
        return math.nan
    batch, known = np.zeros(len(rows), np.int64), frozenset({"correct"})
    found = weighed(Log("watch", "tokens", rows, batch, build_segments(rows, rows.length), known=known))
    weight, length = token_weights(rule, found), found.segments.length.astype(np.float64)
    order = np.argsort(length, kind="stable")
    short, long = (float(np.average(weight[of], weights=length[of])) for of in (order[:tenth], order[-tenth:]))
    return long / short if short > 0 else math.nan


@dataclass(frozen=True)
class Crossed:
    """A number beyond its line."""

    size: float
    text: str
    remedy: str
    since: int


def mean_of(steps: Sequence[Step], name: str) -> float:
    """Return the mean of a number over steps, by their sizes; nan where none has it."""
    known = [(one.size, value) for one in steps if not math.isnan(value := getattr(one, name))]
    return sum(n * x for n, x in known) / sum(n for n, _ in known) if known else math.nan


def find_truncation(steps: Sequence[Step], method: InUse | None) -> Crossed | None:
    now, first = mean_of(steps[-PATIENCE:], "truncated"), mean_of(steps[:PATIENCE], "truncated")
    if len(steps) < PATIENCE or not now > MANY:
        return None
    since = next(one.number for one in steps if one.truncated > MANY)
    return Crossed(
        now, f"{now:.0%} of responses end at the limit of generation, {first:.0%} at the start, since about step {since}; "
        "length then decides which responses can be correct",
        "Raise the limit of generation, or leave truncated responses out of the loss", since,
    )  # fmt: skip


def find_drift(steps: Sequence[Step], method: InUse | None) -> Crossed | None:
    now, first = mean_of(steps[-PATIENCE:], "length"), mean_of(steps[:PATIENCE], "length")
    if len(steps) <= PATIENCE or first <= 0 or now <= 0 or abs(math.log(now / first)) < math.log(DRIFT):
        return None
    times = max(now / first, first / now)
    since = next(one.number for one in steps if abs(math.log(max(one.length, 1e-9) / first)) >= math.log(DRIFT) / 2)
    word = "long" if now > first else "short"
    correct = f"{mean_of(steps[:PATIENCE], 'correct'):.0%} were correct then, {mean_of(steps[-PATIENCE:], 'correct'):.0%} are now"
    return Crossed(
        now / first, f"responses are {times:.1f} times as {word} as at first ({first:.0f} tokens, then {now:.0f}), since about "
        f"step {since}; {correct}; a change alone is no fault",
        "Read a few responses; see which reward or aggregation pays for length: `fairlen methods --compare`", since,
    )  # fmt: skip


def find_silence(steps: Sequence[Step], method: InUse | None) -> Crossed | None:
    last = steps[-PATIENCE:]
    if len(steps) < PATIENCE or not min(one.idle for one in last) >= IDLE:
        return None
    side = "correct" if mean_of(last, "correct") > 0.5 else "incorrect"
    remedy = "harder" if side == "correct" else "easier"
    return Crossed(
        mean_of(last, "idle"), f"{mean_of(last, 'idle'):.0%} of prompts have responses of one outcome, mostly {side}, so that "
        "hardly any is compared", f"Give {remedy} problems or more responses to a prompt", last[0].number,
    )  # fmt: skip


def find_missing(steps: Sequence[Step], method: InUse | None) -> Crossed | None:
    last = steps[-PATIENCE:]
    if len(steps) < PATIENCE or not (now := mean_of(last, "missing")) >= MISSING:
        return None
    since = next(one.number for one in steps if one.missing >= MISSING)
    return Crossed(
        now, f"{now:.0%} of responses lack a verdict and are {mean_of(last, 'missing_length'):.1f} times as long as all; length "
        "then decides which are left", "Look for deadlines and errors of the verifier", since,
    )  # fmt: skip


def find_staleness(steps: Sequence[Step], method: InUse | None) -> Crossed | None:
    now = mean_of(steps[-PATIENCE:], "older")
    if len(steps) < PATIENCE or not now >= STALE:
        return None
    since = next(one.number for one in steps if one.older >= STALE)
    return Crossed(
        now, f"the longest quarter is {now:.1f} updates older than the shortest, since about step {since}; limits on "
        "stale tokens meet long responses first", "Let generation run ahead less, or correct for the sampler's policy", since,
    )  # fmt: skip


def find_weight(steps: Sequence[Step], method: InUse | None) -> Crossed | None:
    last = [one.weight for one in steps[-PATIENCE:]]
    if len(last) < PATIENCE or not all(x > 0 and abs(math.log(x)) >= math.log(UNEVEN) for x in last):
        return None
    now = math.exp(sum(map(math.log, last)) / len(last))
    side = "less" if now < 1 else "more"
    return Crossed(
        now, f"a token of the longest tenth of responses weighs {max(now, 1 / now):.1f} times {side} than one of the shortest",
        "Where each token should weigh the same, change the aggregation: `fairlen methods --compare`", steps[-PATIENCE].number,
    )  # fmt: skip


THRESHOLDS: dict[str, Callable[[Sequence[Step], InUse | None], Crossed | None]] = {
    "truncation": find_truncation,
    "length": find_drift,
    "signal": find_silence,
    "verdicts": find_missing,
    "staleness": find_staleness,
    "weight": find_weight,
}
"""By kind of alarm."""
