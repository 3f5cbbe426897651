"""What a job of verl leaves for `fairlen report`, `audit` and `compare`: rollout batches and validations as our own types."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fairlen.evaluate.run import Evaluation
from fairlen.integrations.run_folder import name_prompt
from fairlen.integrations.verl.columns import read_values, unbind
from fairlen.methods.method import Scored
from fairlen.rollouts import Response, Rollouts, Segment

RECORDED = ("rollout_log_probs", "reward_model")
"""Fields of verl's that only the run folder needs."""


def build_rollouts(
    scored: Scored, rows: Sequence[Any], data: Any, version: int, is_whole: bool
) -> tuple[Rollouts, list[str]]:
    """Return a rollout batch with its tokens, without those of tools, and the answer to each response's prompt.

    `rows` are what verl's rows are (`Row`); responses and segments stand in the order of the tables that were scored.
    """
    responses, answers = list[Response](), list[str]()
    table, segments, tracks = scored.responses, [], Counter[int]()
    tensors = ("prompts", "responses", "rollout_log_probs", "response_mask")
    columns, known = [unbind(data[name]) for name in tensors], read_values(data["reward_model"])
    for place, number in enumerate(number for number, row in enumerate(rows) if row.is_end):
        row, prompt = rows[number], int(table.prompt[place])
        asked, text, nats, mask = (column[number] for column in columns)
        own = mask.bool() if is_whole else slice(None)
        start, finish = tuple(asked.tolist()), "length" if row.truncated else "stop"
        status = "unverified" if math.isnan(row.verdict) else "correct" if table.correct[place] else "incorrect"
        track = tracks[prompt] if is_whole else row.track
        tracks[prompt] += 1
        answers.append(str(known[number].get("ground_truth", "")))
        responses.append(
            Response(
                prompt, (*start, *text[own].tolist()), len(start), tuple(nats[own].tolist()), finish, place,
                policy_version=version, stream=row.stream, track=track, round=row.track_round, inherited=row.inherited,
                outcome=row.outcome, status=status, active=status != "unverified",
            )
        )  # fmt: skip
    for place, row in enumerate(row for row in rows if row.stop > row.start):
        of, group = int(scored.segments.response[place]), int(scored.segments.group[place])
        role = "survivor" if row.is_survivor else "whole" if is_whole else "finisher"
        first = responses[of].num_prompt
        segments.append(Segment(of, first + row.start, first + row.stop, group, role, row.round, row.mass))
    return Rollouts(tuple(responses), tuple(segments), table.max_response_length), answers


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
            found[name_prompt(prompt.tolist())].append((row.verdict > threshold, row.length, row.truncated))
    size = min(map(len, found.values()))
    table = np.array([found[name][:size] for name in sorted(found)])
    return Evaluation(table[..., 0] > 0, table[..., 1].astype(np.int64), table[..., 2] > 0)
