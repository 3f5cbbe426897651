"""Rows of verl, and the tables of the responses and segments that they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from fairlen.batch import (
    NO_VERDICT,
    Ints,
    Responses,
    Segments,
    build_responses,
    build_segments,
    number_keys,
)
from fairlen.integrations.turns import count_tokens, number_turns, was_truncated


@dataclass(frozen=True)
class Row:
    """What a row of verl is of its response, and of its stream where it has one."""

    length: int
    """Generated tokens of the whole response."""
    truncated: bool
    track: int
    """Names the response among those of its prompt and stream."""
    is_end: bool = True
    """The row ends with the response's text, and carries its verdict."""
    start: int = 0
    """First trained token of the response."""
    stop: int = 0
    """One past the last; equal to start where the row trains nothing."""
    turns: tuple[int, ...] = ()
    """Tokens of each turn of a whole response, between which others wrote; empty where it is one."""
    group: int = 0
    """The rows of the prompt that it is compared with."""
    stream: int = 0
    track_round: int = 0
    """In which the track started."""
    inherited: int = 0
    round: int = 0
    is_survivor: bool = False
    mass: float = 1.0
    outcome: float = 0.0
    """Of the finished text."""
    verdict: float = NO_VERDICT
    """What decides whether it is correct; nan where the verifier came to no verdict."""

    @property
    def num_turns(self) -> int:
        """Turns of the policy, at least 1."""
        return len(self.turns) or 1

    def cut(self, by_turn: bool) -> tuple[int, ...]:
        """Return the trained tokens of each of its segments: its turns, or all."""
        return self.turns if by_turn and self.turns else (self.stop - self.start,)


IDLE = Row(length=0, truncated=False, track=-1, is_end=False)
"""Padding of verl, in no count and in no loss."""


def read_verdict(info: Mapping[str, Any], score: float) -> float:
    """The verdict on a scored response: `acc` of the reward function or else its score; nan where `verdict` says there is none.

    verl itself notes the score as `acc` where a function returns nothing else: -1 is then no verdict of correct.
    """
    if not bool(info.get("verdict", True)):
        return NO_VERDICT
    accuracy = info.get("acc")
    return float(accuracy if isinstance(accuracy, bool | int | float | np.number | np.bool_) else score)


def read_row(
    token_ids: Sequence[int], mask: Sequence[int], extra: Mapping[str, Any], eos_ids: Collection[int], limit: int
) -> Row:
    """What a row of one of verl's own agent loops is: a whole response [L] of which `mask` is 1 on what the policy wrote.

    `extra` are its `extra_fields`: an agent loop may say there, as `truncated`, whether a limit ended it.
    """
    turns, told = count_tokens(mask), extra.get("truncated")
    truncated = was_truncated(token_ids, mask, eos_ids, limit) if told is None else bool(told)
    return Row(sum(turns), truncated, track=0, stop=sum(turns), turns=turns)


def find_parts(rows: Sequence[Row], by_turn: bool) -> tuple[Ints, Ints, list[int]]:
    """Return of each segment its row, which turn of the row it is, and its trained tokens, [B] each."""
    cuts = [row.cut(by_turn) if row.stop > row.start else () for row in rows]
    return *number_turns(cuts), list(chain(*cuts))


def build_tables(
    prompts: Sequence[Any], rows: Sequence[Row], max_response_length: int, correct_threshold: float, by_turn: bool
) -> tuple[Responses, Segments]:
    """The tables of a rollout batch: a response for every row that ends one, a segment for what trains, or for its every turn.

    Raises ValueError where a track has no row that carries its verdict.
    """
    ends = [number for number, row in enumerate(rows) if row.is_end]
    trained, turn, tokens = find_parts(rows, by_turn)
    first = [prompts[number] for number in ends]  # padding has keys of its own: last
    keys = number_keys([*first, *prompts])[len(ends) :]
    names = [(int(prompt), row.stream, row.track) for prompt, row in zip(keys, rows, strict=True)]
    of_track = {names[number]: place for place, number in enumerate(ends)}
    if lost := next((names[number] for number in trained if names[number] not in of_track), None):
        raise ValueError(f"stream {lost[1]} of prompt {lost[0]}: no row carries the verdict on track {lost[2]}")

    def columns(numbers: Iterable[int], **fields: str) -> dict[str, Any]:
        return {name: [getattr(rows[number], field) for number in numbers] for name, field in fields.items()}

    responses = build_responses(
        keys[ends],
        max_response_length=max_response_length,
        correct_threshold=correct_threshold,
        **columns(ends, length="length", outcome="outcome", verdict="verdict", truncated="truncated"),
        **columns(ends, stream="stream", round="track_round", num_turns="num_turns"),
    )
    return responses, build_segments(
        responses,
        tokens,
        response=[of_track[names[number]] for number in trained],
        group=number_keys([(int(keys[number]), rows[number].group) for number in trained]),
        turn=turn,
        num_turns=1 if by_turn else None,
        **columns(trained, mass="mass", survivor="is_survivor", round="round"),
    )
