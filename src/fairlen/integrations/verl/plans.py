"""Rows of a rollout batch as tables, and their plan back on the rows: numbers alone, without tokens, torch or verl.

A row of verl is a whole response, or one segment of a stream (EqLen): the prompt, the response up to the segment's end, and a
mask that is 1 on the segment. The last row of each track ends with its text and carries the verdict; where no segment ends there,
that row has a mask of zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fairlen.batch import (
    CORRECT_THRESHOLD,
    NO_VERDICT,
    Response,
    Segment,
    build_responses,
    build_segments,
    number_keys,
)
from fairlen.console import warn
from fairlen.integrations.padded import RowPlan, plan_rows
from fairlen.methods.learning_signal import Counts, LearningSignal, Remedies
from fairlen.methods.method import Method, Scored

REMEDIES = Remedies(
    length="raise data.max_response_length",
    verdict="set +algorithm.fairlen.correct_threshold between them",
    updates="give actor_rollout_ref.actor.ppo_epochs=2 or a smaller actor_rollout_ref.actor.ppo_mini_batch_size",
)


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
    group: int = 0
    """The rows of the prompt that it is compared with."""
    stream: int = 0
    track_round: int = 0
    """In which the track started."""
    round: int = 0
    is_survivor: bool = False
    mass: float = 1.0
    outcome: float = 0.0
    """Of the finished text."""
    verdict: float = NO_VERDICT
    """What decides whether it is correct; nan where the verifier came to no verdict."""

    def graded(self, outcome: float, verdict: float) -> Row:
        """The same with the verdict on its text."""
        return replace(self, outcome=outcome, verdict=verdict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a column of verl."""
        return asdict(self)


IDLE = Row(length=0, truncated=False, track=-1, is_end=False)
"""Padding of verl, in no count and in no loss."""


def cut_rows(responses: Sequence[Response], segments: Sequence[Segment]) -> list[tuple[int, Row]]:
    """The rows of one prompt: which response each is cut from, and what it is."""
    rows: list[tuple[int, Row]] = []
    for number, response in enumerate(responses):
        length, finish = response.length, response.finish == "length"
        end = Row(length, finish, response.track, start=length, stop=length, stream=response.stream)
        end = replace(end, track_round=response.round)
        mine = sorted((s for s in segments if s.response == number), key=lambda s: s.stop)
        for segment in mine:
            start, stop = segment.start - response.num_prompt, segment.stop - response.num_prompt
            row = replace(end, start=start, stop=stop, is_end=stop == length, group=segment.group, round=segment.round)
            rows.append((number, replace(row, is_survivor=segment.role == "survivor", mass=segment.mass)))
        if not mine or not rows[-1][1].is_end:
            rows.append((number, end))
    return rows


def read_verdict(info: Mapping[str, Any], score: float) -> float:
    """The verdict on a scored response: `acc` of the reward function or else its score; nan where `verdict` says there is none.

    verl itself notes the score as `acc` where a function returns nothing else: -1 is then no verdict of correct.
    """
    if not bool(info.get("verdict", True)):
        return NO_VERDICT
    accuracy = info.get("acc")
    return float(accuracy if isinstance(accuracy, bool | int | float | np.number | np.bool_) else score)


@dataclass(frozen=True)
class Planned:
    """The plan of rows [N], and what it was made of."""

    scored: Scored
    rows: RowPlan


def plan_batch(
    method: Method,
    prompts: Iterable[Any],
    rows: Sequence[Row],
    max_response_length: int,
    num_updates: int = 1,
    correct_threshold: float = CORRECT_THRESHOLD,
) -> Planned:
    """Plan the rows [N] of a rollout batch that verl makes so many updates of; `prompts` has something hashable for each.

    Raises ValueError where a track has no row that carries its verdict.
    """
    uids, ends = list(prompts), [number for number, row in enumerate(rows) if row.is_end]
    prompt = number_keys([*(uids[number] for number in ends), *uids])[len(ends) :]  # padding has uids of its own: last
    names = [(int(prompt[number]), row.stream, row.track) for number, row in enumerate(rows)]
    of_track = {names[number]: place for place, number in enumerate(ends)}
    trained = [number for number, row in enumerate(rows) if row.stop > row.start]
    if lost := next((names[number] for number in trained if names[number] not in of_track), None):
        raise ValueError(
            f"stream {lost[1]} of prompt {lost[0]}: no row carries the verdict on track {lost[2]}; were rows lost?"
        )
    responses = build_responses(
        prompt[ends],
        [rows[number].length for number in ends],
        [rows[number].outcome for number in ends],
        [rows[number].verdict for number in ends],
        [rows[number].truncated for number in ends],
        max_response_length,
        correct_threshold=correct_threshold,
        stream=[rows[number].stream for number in ends],
        round=[rows[number].track_round for number in ends],
    )
    segments = build_segments(
        responses,
        [rows[number].stop - rows[number].start for number in trained],
        response=[of_track[names[number]] for number in trained],
        group=number_keys([(int(prompt[number]), rows[number].group) for number in trained]),
        mass=[rows[number].mass for number in trained],
        survivor=[rows[number].is_survivor for number in trained],
        round=[rows[number].round for number in trained],
    )
    scored = method.score_tables(responses, segments)
    plan = plan_rows(method, scored, np.array(trained, np.int64), len(rows), num_updates)
    return Planned(scored, plan)


def look_for_signal(signal: LearningSignal, planned: Planned, method: Method, num_updates: float) -> None:
    """Warn where rollout batches in a row have nothing to learn from."""
    counts = Counts.of(planned.scored.responses, planned.rows.folded, method, num_updates)
    if warning := signal.look(counts):
        warn(warning)
