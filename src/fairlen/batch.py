"""The two tables, columns of numpy arrays, that a method reads; one row a response, one row a segment.

Index sets: **R** responses, **B** segments, **G** groups, **P** prompts of one rollout batch. Tokens stay in rollouts.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairlen.channels import ANSWER, Of
from fairlen.checks import check_columns, convert_columns
from fairlen.precision import Floats, is_above

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

ZEROS: Any = 0
ONES: Any = 1
"""A number in place of a column holds for every row."""
NO_COLUMNS = np.zeros((), [])
"""Named columns of a table that has none."""


def name_columns(columns: Mapping[str, Sequence[Any]]) -> np.ndarray:
    """Columns by name, [N] each, as one array: numbers as float64, with None as nan; of anything else as they are."""
    found = {name: np.asarray(values).tolist() for name, values in columns.items()}
    is_number = {name: all(isinstance(v, (Real, type(None))) for v in c) for name, c in found.items()}
    kinds = [(name, np.float64 if is_number[name] else object) for name in found]
    made = np.zeros(len(next(iter(found.values()), ())), kinds)
    for name, values in found.items():
        made[name] = [np.nan if is_number[name] and value is None else value for value in values]
    return made if found else NO_COLUMNS


@dataclass(frozen=True)
class Columns:
    """Columns of one length, each of the type that it is declared with; numbers hold for every row."""

    def __post_init__(self) -> None:
        convert_columns(self)

    def __len__(self) -> int:
        return len(next(c for c in self.columns().values()))

    def columns(self) -> dict[str, np.ndarray]:
        return {f.name: column for f in fields(self) if np.ndim(column := getattr(self, f.name))}

    def take(self, rows: Bools | Ints) -> Self:
        return replace(self, **{name: column[rows] for name, column in self.columns().items()})


@dataclass(frozen=True)
class ByChannel(Columns):
    """Rows of responses, with what their tokens were spent on."""

    channels: Mapping[str, Ints] = field(default_factory=dict, kw_only=True)
    """Tokens by channel, [N] each, which sum to those generated, and OBSERVATION, which was read; empty where all is one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_columns(self)

    def take(self, rows: Bools | Ints) -> Self:
        columns = {name: column[rows] for name, column in self.columns().items()}
        return replace(self, **columns, channels={name: tokens[rows] for name, tokens in self.channels.items()})

    def length_of(self, channel: Of) -> Ints:
        """Tokens of one channel, [N], or of the whole response; 0 where nothing was spent on it."""
        if channel == "response" or (channel == ANSWER and not self.channels):
            return vars(self)["length"]
        return self.channels.get(channel, np.zeros(len(self), np.int64))


@dataclass(frozen=True)
class Responses(ByChannel):
    """One row a response, [R]: the input of a reward stage."""

    prompt: Ints
    """Position of the prompt in the rollout batch, from 0."""
    length: Ints
    """Generated tokens, EOS included, at least 1."""
    outcome: Floats
    correct: Bools
    """By the verifier's own verdict, not a threshold on `outcome`."""
    truncated: Bools
    """At the max response length."""
    active: Bools
    stream: Ints
    round: Ints
    """In which the track started."""
    max_response_length: int
    num_turns: Ints = field(default=ONES, kw_only=True)
    """Turns of the policy, at least 1."""
    named: np.ndarray = field(default_factory=lambda: NO_COLUMNS, kw_only=True)
    """What the method's stages read beside these, each by its name: of the data, or what a reward function said."""

    @cached_property
    def num_prompts(self) -> int:
        return int(self.prompt.max(initial=-1)) + 1

    def active_rows(self) -> Self:
        return self if self.active.all() else self.take(self.active)

    def with_reward(self, reward: Floats) -> Rewarded:
        rest = {"max_response_length": self.max_response_length, "channels": self.channels}
        return Rewarded(**self.columns(), **rest, reward=reward)


@dataclass(frozen=True)
class Rewarded(Responses):
    """Responses with their rewards after shaping: the input of a prompt filter."""

    reward: Floats = field(kw_only=True)


@dataclass(frozen=True)
class Segments(ByChannel):
    """One row a segment, [B]: the input of advantage and aggregation."""

    response: Ints
    length: Ints
    """Trained tokens, EOS included, at least 1."""
    group: Ints
    """Dense from 0."""
    active: Bools
    mass: Floats
    survivor: Bools
    """A cut piece, whose value comes from the responses that continue it."""
    round: Ints
    max_response_length: int
    planned: int = 0
    """Tracks planned for the prompts of an update, whatever was skipped; 0 before it is made."""
    turn: Ints = field(default=ZEROS, kw_only=True)
    """Its first turn, among those of its response."""
    num_turns: Ints = field(default=ONES, kw_only=True)
    earned: Floats = field(default=ZEROS, kw_only=True)
    """Paid by the environment before, where turns are compared by later rewards."""
    named: np.ndarray = field(default_factory=lambda: NO_COLUMNS, kw_only=True)
    """The columns of that name of its response."""

    @cached_property
    def num_groups(self) -> int:
        return int(self.group.max(initial=-1)) + 1

    @cached_property
    def trajectory(self) -> Ints:
        """Equal numbers, from 0, for rows that are turns of one response, [B]; all others differ."""
        return np.unique(self.response, return_inverse=True)[1] if self.turn.any() else np.arange(len(self))

    @cached_property
    def num_trajectories(self) -> int:
        return int(self.trajectory.max(initial=-1)) + 1

    def with_dense_groups(self) -> Segments:
        """The same rows with groups renumbered 0, 1, … in their old order."""
        present = np.bincount(self.group, minlength=self.num_groups) > 0
        return self if present.all() else replace(self, group=(np.cumsum(present) - 1)[self.group])


NO_VERDICT = float("nan")
"""Of a response that could not be graded, and of rows that only pad a framework's batch."""
CORRECT_THRESHOLD = 0.5
"""Verdict above which a response is correct, unless a home is told otherwise; verdicts are 0 to 1, or -1 and 1."""


def build_responses(
    prompt: Ints | Iterable[Hashable],
    length: ArrayLike,
    outcome: ArrayLike,
    verdict: ArrayLike,
    truncated: ArrayLike,
    max_response_length: int,
    *,
    correct_threshold: ArrayLike = CORRECT_THRESHOLD,
    stream: ArrayLike = 0,
    round: ArrayLike = 0,
    num_turns: ArrayLike = 1,
    channels: Mapping[str, Ints] | Sequence[Mapping[str, int]] = (),
) -> Responses:
    """The table of responses, [R], from columns of any framework; every home builds it here.

    `prompt` is a position (an integer array, taken as it is) or any key (see `number_keys`). A response is correct where its
    verdict is above `correct_threshold` (one number, or [R]) by more than rounding; without a verdict (nan, `NO_VERDICT`) or
    without a token it is inactive: in no count, no comparison and no loss. `length` counts generated tokens by the framework's
    mask, EOS included; `channels` has them by channel, as columns or for each response. Raises ValueError for outcomes of
    active rows that are not finite.
    """
    positions = prompt if isinstance(prompt, np.ndarray) and prompt.ndim == 1 else number_keys(prompt)
    tokens, verdicts = np.asarray(length), np.asarray(verdict, np.float64)
    return Responses(
        prompt=positions,
        length=np.maximum(tokens, 1),
        outcome=np.asarray(outcome),
        correct=is_above(verdicts, correct_threshold),
        truncated=np.asarray(truncated, np.bool_),
        active=(tokens > 0) & ~np.isnan(verdicts),
        stream=np.asarray(stream),
        round=np.asarray(round),
        num_turns=np.asarray(num_turns),
        channels=channels if isinstance(channels, Mapping) else stack_channels(channels, tokens),
        max_response_length=max_response_length,
    )


def stack_channels(rows: Sequence[Mapping[str, int]], length: Ints) -> dict[str, Ints]:
    """Tokens by channel as columns, [N] each; a response without channels is an answer, and so are all where none has any."""
    if not any(rows):
        return {}
    whole = [row or {ANSWER: tokens} for row, tokens in zip(rows, length.tolist(), strict=True)]
    names = dict.fromkeys(name for row in whole for name in row)
    return {name: np.array([row.get(name, 0) for row in whole], np.int64) for name in names}


def build_segments(
    responses: Responses,
    length: ArrayLike,
    *,
    response: ArrayLike | None = None,
    group: Ints | Iterable[Hashable] | None = None,
    mass: ArrayLike = 1.0,
    survivor: ArrayLike = False,
    round: ArrayLike = 0,
    turn: ArrayLike = 0,
    num_turns: ArrayLike | None = None,
    earned: ArrayLike = 0.0,
) -> Segments:
    """The table of segments, [B]: by default each response whole, compared with all others of its prompt.

    `length` counts trained tokens; a segment without one is inactive. `group` is an integer array, dense from 0, or any keys.
    Channels of a segment are those of its response.
    """
    rows = np.arange(len(responses)) if response is None else np.asarray(response, np.int64)
    groups = responses.prompt[rows] if group is None else group
    tokens = np.asarray(length, np.int64)
    return Segments(
        response=rows,
        length=np.maximum(tokens, 1),
        group=groups if isinstance(groups, np.ndarray) and groups.ndim == 1 else number_keys(groups),
        active=tokens > 0,
        mass=np.asarray(mass),
        survivor=np.asarray(survivor),
        round=np.asarray(round),
        turn=np.asarray(turn),
        num_turns=np.asarray(responses.num_turns[rows] if num_turns is None else num_turns),
        earned=np.asarray(earned),
        channels={name: tokens[rows] for name, tokens in responses.channels.items()},
        max_response_length=responses.max_response_length,
    )


def number_keys(keys: np.ndarray | Iterable[Hashable]) -> Ints:
    """Equal numbers [N] for equal keys, from 0 by first appearance; keys are hashable, or whole numbers, [N, ...]."""
    if isinstance(keys, np.ndarray):
        axis = 0 if keys.ndim > 1 else None
        _, first, place = np.unique(keys, return_index=True, return_inverse=True, axis=axis)
        return np.argsort(np.argsort(first))[place.reshape(-1)]
    found: dict[Hashable, int] = {}
    return np.array([found.setdefault(key, len(found)) for key in keys], np.int64)


@dataclass(frozen=True)
class Plan:
    """The plan of an update: advantage and weights of each trained sequence, [B], fixed before the forward pass."""

    rows: Ints
    """Row of each sequence among the rollout batch's segments."""
    length: Ints
    advantage: Floats
    weight: Floats
    """Per trained token of its sequence; the loss is the plain sum of weight * token loss."""
    term_weight: Floats
    """The weight for terms (KL, entropy), a function of length and group alone."""
    bounded: Floats = field(default_factory=lambda: np.zeros(0))
    """Tokens that the surrogate's bound goes by, those of the response or of a channel; empty in a plan by hand."""

    def __len__(self) -> int:
        return len(self.rows)


def sum_by(index: Ints, values: np.ndarray, size: int) -> Floats:
    """Sums of `values` [N] over equal `index` [N], float64 [size]."""
    return np.bincount(index, weights=values, minlength=size).astype(np.float64, copy=False)


def count_by(index: Ints, size: int) -> Floats:
    """Counts of each of 0..size-1, float64 [size]."""
    return np.bincount(index, minlength=size).astype(np.float64)


def mean_by(index: Ints, values: np.ndarray, size: int) -> Floats:
    """Means of `values` [N] over equal `index` [N], float64 [size]; 0 where there are none."""
    return sum_by(index, values, size) / np.maximum(count_by(index, size), 1.0)


def mean_or_nan(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


ROUNDING = 1e-12
"""Share of a sum of squares below which a difference of two such sums is rounding."""


def centred_squares(weight: Floats | float, total: Floats | float, squares: Floats | float) -> Floats:
    """sum w (x - mean)^2, of any shape, from sum w, sum w x and sum w x^2; exactly 0 where nothing but rounding is left of it.

    For sums over micro-batches, ranks or resamples, which cannot be centred before they are added up.
    """
    found = squares - total**2 / np.where(weight > 0, weight, 1.0)
    return np.where(found <= ROUNDING * squares, 0.0, found)
