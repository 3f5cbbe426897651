"""What a job of verl leaves for `fairlen report`, `audit` and `compare`: rollout batches and validations as our own types."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from fairlen.batch import Ints
from fairlen.evaluate.run import Evaluation
from fairlen.integrations.run_folder import name_prompt
from fairlen.integrations.turns import cut_responses, read_trajectory
from fairlen.integrations.verl.rows import Row
from fairlen.methods.method import Method, Scored
from fairlen.precision import is_above
from fairlen.rollouts import Response, Rollouts, Segment

RECORDED = ("rollout_log_probs", "reward_model")
"""Fields of verl's that only the run folder needs."""


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
                round=row.track_round, inherited=row.inherited, outcome=row.outcome, status=status,
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
