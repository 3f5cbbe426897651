"""Input of all measures, from any framework: responses, their segments, what updates did to those, and which rows count.

Index sets as in batch.py, over all rollout batches of a log: **R** responses, **B** segments, **P** prompts, and **U** sequences
of updates (a segment once for each update that it was part of). Prompts and groups have their own numbers in every rollout batch.
Not here: files, formats, text.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from fairlen.batch import Bools, Columns, Floats, Ints, Responses, Segments, number_keys
from fairlen.methods.stages.advantage import GroupNormalized

Unit = Literal["tokens", "words", "characters"]


@dataclass(frozen=True)
class Trained(Columns):
    """Sequences of updates, [U]."""

    segment: Ints  # row among the log's segments
    update: Ints  # number of the update in the run
    weight: Floats  # per trained token
    log_ratio: Floats  # S, nats: sum of current minus old log-probs. Exactly 0 where the update was on-policy
    clipped: Floats  # share of tokens whose gradient the bound made zero
    inside: Floats  # share of tokens within the two-sided bound


NO_INTS, NO_FLOATS = np.zeros(0, np.int64), np.zeros(0)
NO_UPDATES = Trained(NO_INTS, NO_INTS, NO_FLOATS, NO_FLOATS, NO_FLOATS, NO_FLOATS)


@dataclass(frozen=True)
class Malformed:
    file: str
    line: int  # from 1; of a table its row
    reason: str


@dataclass(frozen=True)
class Answer:
    """One answer to a question about the rows of a log, with what it changes."""

    text: str  # "it was read"
    option: str  # of the command line, that gives this answer: "--means"
    value: str  # of the option: "interpreter=read"
    shorter: Ints | None = None  # by how much each response is shorter than in the log, [R]; None: not at all
    excluded: Bools | None = None  # responses that are not compared, [R]; None: as in the log
    correct: Bools | None = None  # whether each response counts as correct, [R]; None: as in the log


@dataclass(frozen=True)
class Question:
    """A question that the files of a log leave open. The verdict is computed for each answer, and asks if they differ."""

    about: str  # "whether the policy wrote or read `<interpreter>` (in 90% of responses, 45% of their text)"
    answers: tuple[Answer, ...]  # the first one is how the log was read

    def __str__(self) -> str:
        flags = " or ".join(f"{answer.option} {shlex.quote(answer.value)}" for answer in self.answers)
        return f"{self.about} is not known, and counts as {self.answers[0].text} ({flags})"


@dataclass(frozen=True)
class Log:
    format: str
    unit: Unit  # of every length; words or characters where the files hold no tokens
    responses: Responses
    """`prompt` is unique over rollout batches; `truncated`, `stream`, `round` are false or 0 where not `known`."""
    batch: Ints  # rollout batch of each response, [R]
    segments: Segments  # whole responses unless parts of them were recorded; `group` is unique over rollout batches
    advantage: Floats | None = None  # as recorded, [B]
    value: Floats | None = None  # as recorded, [B]
    trained: Trained = NO_UPDATES
    known: frozenset[str] = frozenset()
    """Columns that the files had: of "correct", "truncated", "advantage", "reward", "trained", "streams"."""
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    """Further numbers a response, [R]: "reward", as shaped, "duplicate", 1 where it repeats an earlier one,
    "script", of texts of which only those with the same number are compared, "age" in updates, and of our records the columns
    "track" and "inherited"."""
    malformed: tuple[Malformed, ...] = ()
    problem: Ints = field(default_factory=lambda: NO_INTS)
    """Number of each response's prompt, the same in every rollout batch and in every log that this process read, [R]; empty:
    `responses.prompt` stands for it, and no other log has that prompt."""
    file: Ints = field(default_factory=lambda: NO_INTS)
    """Position of each response's file among those read, [R]; empty where nothing was read from files."""
    line: Ints = field(default_factory=lambda: NO_INTS)  # in its file, or row of a table, from 1, [R]
    start: Ints = field(
        default_factory=lambda: NO_INTS
    )  # of our records: first position of each segment in `token_ids`, [B]
    obstacle: str = ""  # why no verdict about length can be given, with the remedy
    caveats: tuple[str, ...] = ()
    """Clauses of the verdict's sentence about what is not known of the rows, or how it was decided."""
    questions: tuple[Question, ...] = ()

    grouping: str = ""
    """How groups were formed beyond prompts and steps, for the end of a sentence; empty if those are all."""
    question: str = ""
    """What must be answered, with its flag, before effects within groups mean anything; empty if nothing is open."""

    def __len__(self) -> int:
        return len(self.responses)

    @property
    def step(self) -> Ints:
        """Step of each response as its program shows it, [R]: our records count from 0, our console from 1."""
        return self.batch + (self.format == "fairlen")

    @property
    def has_turns(self) -> bool:
        return bool((self.responses.num_turns > 1).any())

    @cached_property
    def clusters(self) -> Ints:
        """Return what intervals are over, [R], dense from 0: the prompt, the same in all rollout batches where that is known."""
        return number_keys(self.problem) if len(self.problem) else self.responses.prompt

    @property
    def strata(self) -> Ints:
        """Return the number of what may be compared within, [R]: a prompt in a step, and of texts in several scripts each."""
        script = self.columns.get("script", np.zeros(len(self))).astype(np.int64)
        return 2 * self.responses.prompt + script

    @property
    def correct(self) -> Bools:
        """Whether each response counts as correct, [R]: the verdict, or an outcome in the upper half of their range."""
        table = self.responses
        return table.correct if "correct" in self.known else table.outcome > halfway(table.outcome[table.active])


def halfway(outcome: Floats) -> float:
    """Return the outcome above which a response counts as correct: the middle of their range, 0 where they are all the same.

    The range leaves out the lowest and the highest hundredth, so that one large reward does not make all others incorrect, and
    penalties (`are_penalties`).
    """
    low, high = np.quantile(outcome, [0.01, 0.99]) if len(outcome) else (0.0, 0.0)
    if low == high and len(outcome):
        low, high = outcome.min(), outcome.max()
    bar = float(low + high) / 2 if high > low else 0.0
    others = outcome[outcome > bar]
    return halfway(others) if bar < 0 and are_penalties(outcome[outcome <= bar], np.sort(others), high - low) else bar


def are_penalties(low: Floats, others: Floats, width: float) -> bool:
    """Return whether low outcomes, below 0, are far from the others, sorted, among which there are incorrect ones too.

    These are at most 0, where others are above it, or, where low outcomes are few, below a gap of half the others' range.
    """
    number = len(low) + len(others)
    if not len(low) or not len(others) or 2 * (others[0] - low.max()) < width:
        return False
    gap = np.diff(others, append=others[-1])
    place, zero = int(np.argmax(gap)), int(np.searchsorted(others, 0.0, side="right"))
    is_split = len(low) < 0.15 * number and 2 * gap[place] > others[-1] - others[0]
    return any(min(cut, len(others) - cut) >= 0.05 * number for cut in [zero, *[place + 1] * bool(is_split)])


def rewards(log: Log) -> Floats:
    """Return the shaped reward of each response where recorded, else its outcome, [R]."""
    return log.columns.get("reward", log.responses.outcome)


def values(log: Log) -> Floats:
    """Return the value of each segment, as recorded, else the reward of its response, [B]."""
    return rewards(log)[log.segments.response] if log.value is None else log.value


def advantages(log: Log) -> Floats:
    """Return advantages as recorded, else values normalised by group (GroupNormalized), [B]; 0 where inactive or not finite."""
    if log.advantage is not None:
        return np.where(np.isfinite(log.advantage) & log.segments.active, log.advantage, 0.0)
    value = values(log)
    counts = log.segments.active & np.isfinite(value)
    found = np.zeros(len(log.segments))
    found[counts] = GroupNormalized()(log.segments.take(counts).with_dense_groups(), value[counts])
    return found


def plain_samples(log: Log, with_truncated: bool = False) -> Bools:
    """Return which responses are compared, [R]: plain samples of the policy with a verdict."""
    rows = log.responses.active & (log.responses.round == 0)
    return rows & (with_truncated | ~log.responses.truncated)


def ended_samples(log: Log) -> Bools:
    """Return which responses the shares of truncation are of, [R]: plain samples that ended by themselves or at the limit."""
    return (log.responses.round == 0) & (log.responses.active | log.responses.truncated)


@dataclass(frozen=True)
class OffPolicy(Columns):
    """Sequences of updates whose log ratio is not exactly 0, [N]: every bound accepts the others."""

    length: Ints
    log_ratio: Floats  # S, nats
    inside: Floats
    clipped: Floats
    prompt: Ints  # as `Log.clusters`


def off_policy(log: Log) -> OffPolicy:
    """Return the off-policy sequences; a log ratio that is not finite does not count."""
    rows = log.trained.take(np.isfinite(log.trained.log_ratio) & (log.trained.log_ratio != 0.0))
    length, prompt = log.segments.length[rows.segment], log.clusters[log.segments.response[rows.segment]]
    return OffPolicy(length, rows.log_ratio, rows.inside, rows.clipped, prompt)


@dataclass(frozen=True)
class Weighed:
    """Rows that updates sum over, [n]; a segment once for each update that it was part of."""

    segments: Segments  # groups dense from 0, never in two units
    advantage: Floats
    unit: Ints  # dense from 0
    names: Ints  # number of the update, or rollout batch, that each unit is, [units]
    prompt: Ints
    cluster: Ints  # as `Log.clusters`
    correct: Bools
    """Of pieces, where responses were cut, the better ones, whatever their own end: a survivor has the reward of later ends."""


def weighed(log: Log) -> Weighed:
    """Return the recorded updates; where there are none, the active segments, each rollout batch as one update."""
    if len(log.trained):
        rows, name = log.trained.segment, log.trained.update
    else:
        rows = np.flatnonzero(log.segments.active)
        name = log.batch[log.segments.response[rows]]
    segments = log.segments.take(rows)
    names, unit = np.unique(name, return_inverse=True)
    _, group = np.unique(unit * max(segments.num_groups, 1) + segments.group, return_inverse=True)
    advantage = advantages(log)[rows]
    prompt, cluster = (of[segments.response] for of in (log.responses.prompt, log.clusters))
    correct = log.correct[segments.response]
    if "streams" in log.known:
        correct = advantage > 0
    return Weighed(replace(segments, group=group), advantage, unit, names, prompt, cluster, correct)
