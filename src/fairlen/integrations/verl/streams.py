"""Streams of EqLen as rows of verl, and rows as the tables of a method: numbers alone, no tokens and nothing of verl.

A row of verl is one segment: the prompt, the response up to the segment's end, and a mask that is 1 on the segment. The last row
of each track ends with its text, and carries the verdict; where no segment ends there, that row has a mask of zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fairlen.batch import (
    NO_VERDICT,
    Response,
    Responses,
    Segment,
    Segments,
    build_responses,
    build_segments,
    number_keys,
)
from fairlen.integrations.padded import RowPlan, plan_rows
from fairlen.methods.method import Method, Scored


@dataclass(frozen=True)
class Piece:
    """What a row is of its stream; the numbers of a segment and of the track it is a part of."""

    stream: int
    track: int
    track_round: int
    """In which the track started."""
    length: int
    """Generated tokens of the whole track."""
    truncated: bool
    is_end: bool
    """The row ends with the track's text, and carries its verdict."""
    start: int = 0
    """First trained token of the response."""
    stop: int = 0
    """One past the last; equal to start where the row trains nothing."""
    round: int = 0
    is_survivor: bool = False
    mass: float = 1.0
    outcome: float = 0.0
    """Of the track's finished text."""
    correct: bool = False
    active: bool = True
    """False where the verifier came to no verdict."""

    def graded(self, outcome: float, correct: bool, active: bool) -> Piece:
        """The same with the verdict on its track."""
        return replace(self, outcome=outcome, correct=correct, active=active)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a column of verl."""
        return asdict(self)


def cut_stream(responses: Sequence[Response], segments: Sequence[Segment]) -> list[tuple[int, Piece]]:
    """The rows of one stream: which response each is cut from, and what it is."""
    rows: list[tuple[int, Piece]] = []
    for number, response in enumerate(responses):
        whole = Piece(
            response.stream, response.track, response.round, response.length, response.finish == "length", is_end=True
        )
        mine = sorted((s for s in segments if s.response == number), key=lambda s: s.stop)
        for segment in mine:
            stop = segment.stop - response.num_prompt
            rows.append((number, replace(
                whole,
                is_end=stop == response.length,
                start=segment.start - response.num_prompt,
                stop=stop,
                round=segment.round,
                is_survivor=segment.role == "survivor",
                mass=segment.mass,
            )))  # fmt: skip
        if not mine or not rows[-1][1].is_end:
            rows.append((number, replace(whole, start=response.length, stop=response.length)))
    return rows


def read_status(info: dict[str, Any], score: float, correct_threshold: float) -> tuple[bool, bool]:
    """(right, has a verdict) of a scored response, from what the reward function says besides its score, or from the score.

    verl itself notes the score as `acc` where a function returns nothing else: -1 is then no verdict of right.
    """
    told = info.get("acc")
    right = float(told if isinstance(told, bool | int | float | np.number | np.bool_) else score)
    return right > correct_threshold, bool(info.get("verdict", True))


def build_tables(
    prompts: Sequence[Any], pieces: Sequence[Piece], max_response_length: int
) -> tuple[Responses, Segments, np.ndarray]:
    """Tables of rows [N] of whole streams: responses, segments, and the row of each segment, [B].

    Raises ValueError where a track has no row that carries its verdict.
    """
    prompt = number_keys(prompts)
    tracks: dict[tuple[int, int, int], int] = {}
    ends: list[int] = []
    for row, piece in enumerate(pieces):
        if piece.is_end:
            tracks[int(prompt[row]), piece.stream, piece.track] = len(ends)
            ends.append(row)
    rows = [row for row, piece in enumerate(pieces) if piece.stop > piece.start]
    keys = [(int(prompt[row]), pieces[row].stream, pieces[row].track) for row in rows]
    lost = next((key for key in keys if key not in tracks), None)
    if lost:
        raise ValueError(
            f"stream {lost[1]} of prompt {lost[0]}: no row carries the verdict on track {lost[2]}; were rows lost?"
        )
    responses = build_responses(
        prompt[ends],
        [pieces[row].length for row in ends],
        [pieces[row].outcome for row in ends],
        verdict=[float(pieces[row].correct) if pieces[row].active else NO_VERDICT for row in ends],
        truncated=[pieces[row].truncated for row in ends],
        max_response_length=max_response_length,
        stream=[pieces[row].stream for row in ends],
        round=[pieces[row].track_round for row in ends],
    )
    segments = build_segments(
        responses,
        [pieces[row].stop - pieces[row].start for row in rows],
        response=[tracks[key] for key in keys],
        group=[(int(prompt[row]), pieces[row].stream, pieces[row].round) for row in rows],
        mass=[pieces[row].mass for row in rows],
        survivor=[pieces[row].is_survivor for row in rows],
        round=[pieces[row].round for row in rows],
    )
    return responses, segments, np.array(rows, np.int64)


@dataclass(frozen=True)
class StreamPlan:
    """The plan of rows [N] that are pieces of streams, and what it was made of."""

    scored: Scored
    row_of: np.ndarray
    """The row of each segment, [B]."""
    rows: RowPlan


def plan_streams(
    method: Method, prompts: Sequence[Any], pieces: Sequence[Piece], max_response_length: int, num_updates: int
) -> StreamPlan:
    """The plan of a rollout batch of streams. `prompts` has something hashable for each row."""
    responses, segments, row_of = build_tables(prompts, pieces, max_response_length)
    scored = method.score_tables(responses, segments)
    plan = plan_rows(method, scored, row_of, len(pieces), num_updates)
    return StreamPlan(scored, row_of, plan)
