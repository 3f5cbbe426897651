"""Alarms of a watch that have no null hypothesis: numbers over the last steps that cross a line, named as such."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fairlen.audit.conclusion import MANY
from fairlen.audit.log import Log, weighed
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
class Shape:
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
    ) -> Shape:  # fmt: skip
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
    """Return `Shape.weight` of rollouts whose rewards are normalised by prompt; nan of fewer than 20."""
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


def mean_of(steps: Sequence[Shape], name: str) -> float:
    """Return the mean of a number over steps, by their sizes; nan where none has it."""
    known = [(one.size, value) for one in steps if not math.isnan(value := getattr(one, name))]
    return sum(n * x for n, x in known) / sum(n for n, _ in known) if known else math.nan


def find_crossed(steps: Sequence[Shape]) -> Iterator[tuple[str, Crossed]]:
    """Yield the thresholds that the last PATIENCE steps have crossed, by kind."""
    first, last = steps[:PATIENCE], steps[-PATIENCE:]
    if len(last) < PATIENCE:
        return
    now = {name: mean_of(last, name) for name in ("truncated", "missing", "older", "length", "correct", "idle")}
    for kind, (name, line, text, remedy) in LINES.items():
        if now[name] >= line:
            since = next(one.number for one in steps if getattr(one, name) >= line)
            before, longer = mean_of(first, name), mean_of(last, "missing_length")
            yield (
                kind,
                Crossed(
                    now[name], text.format(now=now[name], since=since, before=before, longer=longer), remedy, since
                ),
            )
    yield from find_drift(steps, mean_of(first, "length"), now["length"])
    if min(one.idle for one in last) >= IDLE:
        side, other = ("correct", "harder") if now["correct"] > 0.5 else ("incorrect", "easier")
        text = (
            f"{now['idle']:.0%} of prompts have responses of one outcome, mostly {side}, so that hardly any is compared"
        )
        yield (
            "signal",
            Crossed(now["idle"], text, f"Give {other} problems or more responses to a prompt", last[0].number),
        )
    weights = [one.weight for one in last]
    if all(x > 0 and abs(math.log(x)) >= math.log(UNEVEN) for x in weights):
        ratio = math.exp(sum(map(math.log, weights)) / PATIENCE)
        times = f"{max(ratio, 1 / ratio):.1f} times {'less' if ratio < 1 else 'more'}"
        text = f"a token of the longest tenth of responses weighs {times} than one of the shortest"
        yield "weight", Crossed(ratio, text, EVEN, last[0].number)


def find_drift(steps: Sequence[Shape], start: float, now: float) -> Iterator[tuple[str, Crossed]]:
    """Yield a mean length that is DRIFT times as large as at the start, or as small."""
    if len(steps) <= PATIENCE or min(start, now) <= 0 or abs(math.log(now / start)) < math.log(DRIFT):
        return
    since = next(one.number for one in steps if abs(math.log(max(one.length, 1e-9) / start)) >= math.log(DRIFT) / 2)
    change = f"{max(now / start, start / now):.1f} times as {'long' if now > start else 'short'}"
    correct = [mean_of(part, "correct") for part in (steps[:PATIENCE], steps[-PATIENCE:])]
    text = (
        f"responses are {change} as first ({start:.0f} tokens, then {now:.0f}), since about step {since}; {correct[0]:.0%} were "
        f"correct then, {correct[1]:.0%} are now; a change alone is no fault"
    )
    yield "length", Crossed(now / start, text, READ, since)


READ = "Read a few responses; see which reward or aggregation pays for length: `fairlen methods --compare`"
EVEN = "Where each token should weigh the same, change the aggregation: `fairlen methods --compare`"
LINES: dict[str, tuple[str, float, str, str]] = {
    "truncation": (
        "truncated", MANY, "{now:.0%} of responses end at the limit of generation, {before:.0%} at first, since about step "
        "{since}; length then decides which can be correct", "Raise the limit, or leave truncated responses out of the loss",
    ),
    "verdicts": (
        "missing", MISSING, "{now:.0%} of responses lack a verdict, since about step {since}, and are {longer:.1f} times as "
        "long as all; length then decides which are left", "Look for deadlines and errors of the verifier",
    ),
    "staleness": (
        "older", STALE, "the longest quarter is {now:.1f} updates older than the shortest, since about step {since}; limits "
        "on stale tokens meet long responses first", "Let generation run ahead less, or correct for the sampler's policy",
    ),
}  # fmt: skip
"""By kind of alarm: the number, its line, the text and the remedy."""
THRESHOLDS = (*LINES, "length", "signal", "weight")
"""Kinds of alarm without a test."""
