"""Rows of verl: the tables of the responses and segments that they are, and what is recorded of them in the run folder."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairlen.batch import (
    NO_VERDICT,
    Ints,
    Responses,
    Segments,
    build_responses,
    build_segments,
    number_keys,
)
from fairlen.evaluate.run import Evaluation
from fairlen.integrations.rows import (
    count_read,
    count_tokens,
    cut_responses,
    has_turns,
    number_turns,
    read_trajectory,
    was_truncated,
)
from fairlen.integrations.run_folder import name_prompt
from fairlen.methods.method import Method, Scored
from fairlen.methods.stages.reward import NUM_READ
from fairlen.precision import is_above
from fairlen.rollouts import Counts, Response, Rollouts, Segment


@dataclass(frozen=True)
class Row:
    """Place of a row of verl in its response, and in its stream where it has one."""

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
    channels: Counts = field(default_factory=dict)
    """Tokens of the whole response by channel; empty where all are an answer, and where it is not its end."""
    verdict: float = NO_VERDICT
    """Outcome that decides whether it is correct; nan without a verdict."""
    named: Mapping[str, Any] = field(default_factory=dict)
    """What is known of the response besides, by name."""

    @property
    def num_turns(self) -> int:
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
    """Row of one of verl's own agent loops: a whole response [L] of which `mask` is 1 on what the policy wrote.

    `extra` are its `extra_fields`: an agent loop may say there, as `truncated`, whether a limit ended it.
    """
    turns, told = count_tokens(mask), extra.get("truncated")
    truncated = was_truncated(token_ids, mask, eos_ids, limit) if told is None else bool(told)
    return Row(sum(turns), truncated, track=0, stop=sum(turns), turns=turns)


def read_channels(rows: Sequence[Row], data: Any, decode: Callable[[Sequence[int]], str], has_masks: bool) -> list[Row]:
    """Return rows with tokens by channel, of those that end a response; masks of pieces say what trains, not who wrote it."""
    columns = zip(rows, *(unbind(data[name]) for name in ("prompts", "responses", "response_mask")), strict=True)
    found = []
    for row, prompt, text, mask in columns:
        own = mask.tolist() if has_masks else [1] * len(text)
        whole = Response(0, finish="stop", seed=0, **read_trajectory(prompt.tolist(), text.tolist(), own, own))
        found.append(replace(row, channels=whole.with_channels(decode).channels) if row.is_end and row.length else row)
    return found


def read_named(rows: Sequence[Row], data: Any, extra: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return rows with their tokens that were not generated, columns of the data (`extra_info`), and what rewards said."""
    tensors = (unbind(data[name]) for name in ("prompts", "response_mask"))
    columns = zip(rows, *tensors, read_values(data["extra_info"]), extra, strict=True)
    found = []
    for row, prompt, mask, info, said in columns:
        num_read = count_read(len(prompt), mask if row.turns else ())
        named = {NUM_READ: num_read, **info, **(said.get("reward_extra_info") or {})}
        found.append(replace(row, named=named) if row.is_end else row)
    return found


def find_kept(method: Method, rows: Sequence[Row], data: Any) -> Ints:
    """Return the tokens that a correction which recounts keeps of each segment, [B]."""
    sizes = data["response_mask"].offsets().diff()
    mask = data["response_mask"].values() * torch.tensor([row.stop > row.start for row in rows]).repeat_interleave(
        sizes
    )
    old, rollout = (data[name].values()[mask > 0] for name in LOGPROBS)
    correction: Any = method.correction
    return correction.count(find_parts(rows, has_turns(method))[2], old, rollout)


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
        **columns(ends, stream="stream", round="track_round", num_turns="num_turns", channels="channels"),
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


RECORDED = ("rollout_log_probs", "reward_model")
"""Fields of verl's that only the run folder needs."""
LOGPROBS = ("old_log_probs", "rollout_log_probs")
"""And those that a correction which recounts needs."""


def unbind(column: Any) -> Sequence[Tensor]:
    """Return the rows of a jagged column, all at once: an index of one costs about as much as all of it."""
    return column.values().split(column.offsets().diff().tolist())


def read_values(column: Iterable[Any]) -> list[Any]:
    """Return what is no tensor, a value for each row."""
    return [getattr(value, "data", value) for value in column]


def build_rollouts(
    scored: Scored, rows: Sequence[Row], data: Any, version: int, method: Method
) -> tuple[Rollouts, list[str]]:
    """Return a rollout batch with its tokens, and the answer to each response's prompt.

    Responses and segments stand in the order of the tables that were scored.
    """
    responses, answers, is_whole = list[Response](), list[str](), method.sampling.is_whole
    table, tracks = scored.responses, Counter[int]()
    tensors = ("prompts", "responses", "response_mask", "rollout_log_probs")
    columns, known = [unbind(data[name]) for name in tensors], read_values(data["reward_model"])
    ends = [(number, row) for number, row in enumerate(rows) if row.is_end]
    for place, (number, row) in enumerate(ends):
        prompt_ids, text, mask, nats = (column[number].tolist() for column in columns)
        prompt, finish = int(table.prompt[place]), "length" if row.truncated else "stop"
        status = "unverified" if math.isnan(row.verdict) else "correct" if table.correct[place] else "incorrect"
        track = tracks[prompt] if is_whole else row.track
        tracks[prompt] += 1
        answers.append(str(known[number].get("ground_truth", "")))
        responses.append(
            Response(
                prompt, finish=finish, seed=place, policy_version=version, stream=row.stream, track=track,
                round=row.track_round, inherited=row.inherited, outcome=row.outcome, status=status, channels=row.channels,
                active=status != "unverified", **read_trajectory(prompt_ids, text, mask if is_whole else [1] * len(text), nats),
            )
        )  # fmt: skip
    if is_whole:
        segments = [one for one in cut_responses(method, tuple(responses)) if ends[one.response][1].stop]
    else:
        segments = cut_streams(responses, rows, scored.segments.response)
    groups = scored.segments.group.tolist()
    segments = tuple(replace(segment, group=group) for segment, group in zip(segments, groups, strict=True))
    return Rollouts(tuple(responses), segments, table.max_response_length), answers


def cut_streams(responses: Sequence[Response], rows: Sequence[Row], of: Ints) -> list[Segment]:
    """Return the segments that rows of EqLen are, given of which response each is."""
    segments = []
    for number, row in zip(of.tolist(), (row for row in rows if row.stop > row.start), strict=True):
        first, role = responses[number].num_prompt, "survivor" if row.is_survivor else "finisher"
        segments.append(Segment(number, first + row.start, first + row.stop, 0, role, row.round, row.mass))
    return segments


def tell_validated(buffer: Any, take: Callable[[Any], None]) -> Any:
    """Have verl's replay buffer hand over what it gives to a validation; return it."""
    stock = buffer.sample

    def sample(**given: Any) -> Any:
        found = stock(**given)
        if given["partition_id"] == "val":
            take(found[0])
        return found

    buffer.sample = sample
    return buffer


def build_evaluation(held_out: Sequence[tuple[Any, Any]], threshold: float) -> Evaluation:
    """Return what was validated, (prompt ids, row): problems by their names, since verl has them as they were done."""
    found: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for prompt, row in held_out:
        if row.is_end and not row.track_round:
            found[name_prompt(prompt.tolist())].append(
                (bool(is_above(row.verdict, threshold)), row.length, row.truncated)
            )
    size = min(map(len, found.values()))
    table = np.array([found[name][:size] for name in sorted(found)])
    return Evaluation(table[..., 0] > 0, table[..., 1].astype(np.int64), table[..., 2] > 0)
