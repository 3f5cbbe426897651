"""Rows of verl: the responses that they are, and which row has which segment."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairlen.batch import NO_VERDICT, Ints, Segments
from fairlen.integrations.rows import count_kept, grade, read_response, was_truncated
from fairlen.integrations.run_folder import name_prompt
from fairlen.methods.method import Method
from fairlen.precision import is_above
from fairlen.rollouts import Response, Segment

NUMBERS = (bool, int, float, np.number, np.bool_)
"""Kinds of numbers that reward functions return."""


@dataclass(frozen=True)
class Row:
    """Place of a row of EqLen: its stream, and the part of its response that it trains."""

    stream: int
    track: int
    """Names the response in its stream."""
    round: int
    """In which the track started."""
    inherited: int
    truncated: bool
    start: int
    """First trained token of the response."""
    stop: int
    """One past the last; equal to start where the row trains nothing."""
    is_end: bool = True
    """The row ends with the response's text, and carries its verdict."""
    outcome: float = 0.0
    """Of the finished text."""
    verdict: float = NO_VERDICT
    """Outcome that decides whether it is correct; nan without a verdict."""


@dataclass
class ReadRows:
    """Rows of verl as responses, padding left out."""

    responses: list[Response] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    """To the prompt of each response."""
    ends: list[int] = field(default_factory=list)
    """Row that each response ends with."""
    pieces: dict[tuple[int, int, int, int], int] = field(default_factory=dict)
    """Row of each segment of EqLen, by prompt, stream, track and the tokens of its response up to its end."""
    columns: list[Mapping[str, Any]] = field(default_factory=list)
    """Of the data, by prompt, where they were asked for."""

    def find(self, segments: Iterable[Segment]) -> Ints:
        """Return the row of each segment: where EqLen cut it, or its whole response."""
        found = []
        for segment in segments:
            one = self.responses[segment.response]
            piece = one.prompt, one.stream, one.track, segment.stop - one.num_prompt
            found.append(self.pieces[piece] if self.pieces else self.ends[segment.response])
        return np.array(found, np.int64)


def read_rows(
    data: Any,
    tags: Sequence[Mapping[str, Any]],
    *,
    eos_ids: Collection[int],
    max_response_length: int,
    correct_threshold: float,
    **made: Any,
) -> ReadRows:
    """Return rows of verl's batch as responses, those of its own agent loops whole; padding is a copy of verl's first row.

    `made` are fields that all responses have alike.
    """
    found, prompts, tracks = ReadRows(), dict[str, int](), Counter[int]()
    for number, (tag, given) in enumerate(zip(tags, list_rows(data), strict=True)):
        if tag.get("is_padding"):
            continue
        prompt = prompts.setdefault(str(given["uid"]), len(prompts))
        if prompt == len(found.columns):
            found.columns.append(given.get("extra_info", {}))
        text, mask, extra = given["responses"].tolist(), given["response_mask"].tolist(), given["extra_fields"]
        if "fairlen" in extra:
            row, mask = Row(**extra["fairlen"]), [1] * len(text)
            found.pieces |= {(prompt, row.stream, row.track, row.stop): number} if row.stop > row.start else {}
        else:
            truncated = was_truncated(text, mask, eos_ids, max_response_length)
            row = read_whole(len(text), extra, tracks[prompt], float(given["rm_scores"].double().sum()), truncated)
        if not row.is_end:
            continue
        tracks[prompt] += 1
        nats = given["rollout_log_probs"].tolist() if "rollout_log_probs" in given else [math.nan] * len(text)
        place = {name: getattr(row, name) for name in ("stream", "track", "round", "inherited")}
        place |= {"prompt": prompt, "seed": len(found.ends), "outcomes": read_numbers(extra)}
        response = read_response(given["prompts"].tolist(), text, mask, nats, row.truncated, **place, **made)
        verdict = row.verdict if math.isnan(row.verdict) else float(is_above(row.verdict, correct_threshold))
        found.responses.append(grade(response, row.outcome, verdict))
        found.answers.append(str(given.get("reward_model", {}).get("ground_truth", "")))
        found.ends.append(number)
    return found


def list_rows(data: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of verl's batch, by the names of its fields."""
    columns = {name: data[name] for name in data.keys()}  # noqa: SIM118  a TensorDict has no other way
    rows = (unbind(column) if isinstance(column, Tensor) else read_values(column) for column in columns.values())
    return (dict(zip(columns, row, strict=True)) for row in zip(*rows, strict=True))


def read_whole(length: int, extra: Mapping[str, Any], track: int, score: float, truncated: bool) -> Row:
    """Return the row of a whole response, given its tokens and whether they look truncated.

    `extra` are its `extra_fields`: an agent loop may say there, as `truncated`, whether a limit ended it.
    """
    told, verdict = extra.get("truncated"), read_verdict(extra.get("reward_extra_info") or {}, score)
    ended = truncated if told is None else bool(told)
    return Row(0, track, 0, 0, ended, 0, length, outcome=score, verdict=verdict)


def read_verdict(info: Mapping[str, Any], score: float) -> float:
    """The verdict on a scored response: `acc` of the reward function or else its score; nan where `verdict` says there is none.

    verl itself notes the score as `acc` where a function returns nothing else: -1 is then no verdict of correct.
    """
    if not bool(info.get("verdict", True)):
        return NO_VERDICT
    accuracy = info.get("acc")
    return float(accuracy if isinstance(accuracy, NUMBERS) else score)


def read_numbers(extra: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers that a reward function said, by name."""
    said = (extra.get("reward_extra_info") or {}).items()
    return {name: float(value) for name, value in said if isinstance(value, NUMBERS)}


def find_kept(method: Method, data: Any, rows: Ints, segments: Segments) -> Ints:
    """Return the tokens that a correction which recounts keeps of each segment [B], which lie in `rows` [B]."""
    mask: Any = data["response_mask"]
    has_segment = torch.from_numpy(np.isin(np.arange(len(mask)), rows))
    chosen = mask.values().bool() & has_segment.repeat_interleave(mask.offsets().diff())
    written = np.array([int(one.sum()) for one in unbind(mask)])
    old, rollout = (data[name].values()[chosen] for name in ("old_log_probs", "rollout_log_probs"))
    return count_kept(method.correction, written, rows, segments, old, rollout)


def unbind(column: Any) -> Sequence[Tensor]:
    """Return the rows of a jagged column, all at once: an index of one costs about as much as all of it."""
    return column.values().split(column.offsets().diff().tolist())


def read_values(column: Iterable[Any]) -> list[Any]:
    """Return what is no tensor, a value for each row."""
    return [getattr(value, "data", value) for value in column]


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


def group_by_prompt(held_out: Iterable[Response]) -> Iterator[list[Response]]:
    """Yield what was validated, as many responses to each prompt, by their names: verl has them as they were done."""
    found: dict[str, list[Response]] = defaultdict(list)
    for one in held_out:
        found[name_prompt(one.token_ids[: one.num_prompt])].append(one)
    size = min(map(len, found.values()))
    yield from (found[name][:size] for name in sorted(found))
