"""The ragged batch that tells every rule apart, a linear model to differentiate, and the plan of a method in one call.

row      0  1  2  3 | 4  5  6 | 7  8 | 9
prompt   0  0  0  0 | 1  1  1 | 2  2 | 3
length   1  3  5  8 | 2  5  1 | 2  3 | 5         N = 10, four groups, tokens 17 + 8 + 5 + 5 = 35, budget 8
right    y  y  y  n | y  n  n | y  y | n
row 3 is truncated; prompt 2 has no variance; prompt 3 has one response
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fairlen.batch import Plan, Responses, Segments, name_columns
from fairlen.methods.method import Method
from fairlen.methods.stages.fair_band import band_sums
from fairlen.methods.stages.micro import Micro, Outputs
from fairlen.rollouts import Response, Rollouts, whole_segments

PROMPT = [0, 0, 0, 0, 1, 1, 1, 2, 2, 3]
LENGTH = [1, 3, 5, 8, 2, 5, 1, 2, 3, 5]
RIGHT = [1, 1, 1, 0, 1, 0, 0, 1, 1, 0]
BUDGET = 8
VOCABULARY, WIDTH = 5, 3

SEEN = band_sums(num_sequences=10.0, num_tokens=35.0, log_ratio=-0.7, squared_log_ratio=0.05)
DRIFTED = {f"surrogate.{name}": value for name, value in SEEN.items()}
"""Sums of one earlier update, so that methods with state have learned something: k = 0.7 / 35 = 0.02."""


@dataclass(frozen=True)
class Batch:
    """Tables of one rollout batch, one segment a response, and what a linear model reads of each segment's tokens."""

    responses: Responses
    segments: Segments
    features: tuple[Tensor, ...]
    """[T, WIDTH] of each row."""
    tokens: tuple[Tensor, ...]
    """[T] of each row."""

    def take(self, rows: Sequence[int]) -> Batch:
        """Those rows in that order, prompts and groups keeping their numbers."""
        index = np.asarray(rows, np.int64)
        return Batch(
            self.responses.take(index),
            replace(self.segments.take(index), response=np.arange(len(index))),
            tuple(self.features[row] for row in rows),
            tuple(self.tokens[row] for row in rows),
        )


def make_batch(
    prompt: Sequence[int],
    length: Sequence[int],
    right: Sequence[int],
    *,
    truncated: Sequence[int] = (),
    inactive: Sequence[int] = (),
    outcome: Sequence[float] | None = None,
    max_response_length: int = BUDGET,
    seed: int = 0,
) -> Batch:
    """A batch of whole responses; features are drawn row by row, so that a row keeps its own wherever it goes."""
    rows = np.arange(len(prompt))
    responses = Responses(
        prompt=np.array(prompt, np.int64), length=np.array(length, np.int64),
        outcome=np.array(right if outcome is None else outcome, np.float64), correct=np.array(right, np.bool_),
        truncated=np.isin(rows, truncated), active=~np.isin(rows, inactive), stream=np.zeros(len(rows), np.int64),
        round=np.zeros(len(rows), np.int64), max_response_length=max_response_length,
        named=name_columns({"effort": [("low", "high")[one % 2] for one in prompt]}),
    )  # fmt: skip
    segments = Segments(
        response=rows, length=responses.length, group=responses.prompt, active=responses.active,
        mass=np.ones(len(rows)), survivor=np.zeros(len(rows), np.bool_), round=responses.round,
        max_response_length=max_response_length,
    )  # fmt: skip
    draws = [np.random.default_rng((seed, row)) for row in rows]
    return Batch(
        responses,
        segments,
        tuple(torch.from_numpy(draw.standard_normal((n, WIDTH))) for draw, n in zip(draws, length, strict=True)),
        tuple(torch.from_numpy(draw.integers(0, VOCABULARY, n)) for draw, n in zip(draws, length, strict=True)),
    )


def ragged_batch() -> Batch:
    return make_batch(PROMPT, LENGTH, RIGHT, truncated=[3])


def random_batch(
    seed: int, num_prompts: int = 6, num_tracks: int = 4, longest: int = 12, max_response_length: int = 12
) -> Batch:
    """Equal groups of random lengths and verdicts, at least one mixed."""
    rng = np.random.default_rng(seed)
    rows = num_prompts * num_tracks
    right = rng.integers(0, 2, rows)
    right[:2] = 0, 1
    length = rng.integers(1, longest + 1, rows)
    return make_batch(
        np.repeat(np.arange(num_prompts), num_tracks), length, right, max_response_length=max_response_length, seed=seed
    )


def ragged_rollouts() -> Rollouts:
    """The ragged batch as responses with tokens."""
    responses = tuple(
        Response(
            prompt=prompt, token_ids=(7, 8, *range(10, 10 + length)), num_prompt=2, logprobs=(-1.0,) * length,
            finish="length" if row == 3 else "stop", seed=row, outcome=float(right),
            status="correct" if right else "incorrect",
        )
        for row, (prompt, length, right) in enumerate(zip(PROMPT, LENGTH, RIGHT, strict=True))
    )  # fmt: skip
    return Rollouts(responses, whole_segments(responses), BUDGET)


def plan_of(method: Method, batch: Batch) -> Plan:
    """The plan of a batch that is trained in one update; without rows where nothing trains."""
    return method.plan(method.score_tables(batch.responses, batch.segments))


def weight_matrix(name: str) -> Tensor:
    """The linear model's weights for one of the policies, float64; no base clips all of the step from the old one."""
    draw = {"policy": 0.0, "old": 0.06, "rollout": 0.1, "ref": 0.5}[name]
    base = torch.from_numpy(np.random.default_rng(1).standard_normal((VOCABULARY, WIDTH)))
    step = torch.from_numpy(np.random.default_rng((6, *name.encode())).standard_normal((VOCABULARY, WIDTH)))
    return base + draw * step


def speak(weights: Tensor, features: Tensor, tokens: Tensor) -> Outputs:
    """Log-probs and entropies of a linear model."""
    table = (features.to(weights.dtype) @ weights.T).log_softmax(-1)
    return Outputs(table.gather(1, tokens[:, None])[:, 0], -(table.exp() * table).sum(-1))


def make_micro(
    batch: Batch, plan: Plan, rows: Sequence[int], dtype: torch.dtype = torch.float64
) -> tuple[Micro, Tensor, Tensor]:
    """Rows of a plan as a micro-batch, with their features and tokens."""
    index = np.asarray(rows, np.int64)
    chosen = plan.rows[index]
    features = torch.cat([batch.features[row] for row in chosen]).to(dtype)
    tokens = torch.cat([batch.tokens[row] for row in chosen])
    length = torch.from_numpy(plan.length[index])
    with torch.no_grad():
        old, rollout, ref = (
            speak(weight_matrix(name).to(dtype), features, tokens).logprobs for name in ("old", "rollout", "ref")
        )
    micro = Micro(
        length=length, sequence=torch.repeat_interleave(torch.arange(len(index)), length),
        advantage=torch.from_numpy(plan.advantage[index]).to(dtype),
        weight=torch.from_numpy(plan.weight[index]).to(dtype),
        term_weight=torch.from_numpy(plan.term_weight[index]).to(dtype), old_logprobs=old, rollout_logprobs=rollout,
        is_on_policy=False, ref_logprobs=ref,
    )  # fmt: skip
    return micro, features, tokens


def gradient(
    method: Method, batch: Batch, parts: Sequence[Sequence[int]] | None = None, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Gradient of an update by the model's weights, micro-batch by micro-batch; `parts` are positions in the plan."""
    plan = plan_of(method, batch)
    weights = weight_matrix("policy").to(dtype).requires_grad_()
    total = torch.zeros_like(weights)
    for part in parts or ([range(len(plan))] if len(plan) else []):
        micro, features, tokens = make_micro(batch, plan, part, dtype)
        loss = method.loss(speak(weights, features, tokens), micro).total
        total += torch.autograd.grad(loss, weights)[0]
    return total


def random_parts(size: int, seed: int) -> list[list[int]]:
    """A random partition of 0..size-1 in random order, some parts of one row."""
    rng = np.random.default_rng(seed)
    if size < 2:
        return [list(range(size))]
    cuts = np.sort(rng.choice(np.arange(1, size), min(size - 1, int(rng.integers(1, size))), replace=False))
    return [part.tolist() for part in np.split(rng.permutation(size), cuts)]


def pieces(
    lengths: Sequence[int], advantages: Sequence[float], log_ratio: Tensor, on_policy: bool = False
) -> tuple[Tensor, Micro]:
    """Log-probs with gradient and a micro-batch of unit weights whose token log ratios are given, [T]."""
    length = torch.tensor(lengths)
    logprobs = (-1.0 - 0.1 * torch.arange(len(log_ratio), dtype=log_ratio.dtype)).requires_grad_()
    ones = torch.ones(len(lengths), dtype=log_ratio.dtype)
    old = logprobs.detach() - log_ratio
    micro = Micro(
        length=length, sequence=torch.repeat_interleave(torch.arange(len(lengths)), length),
        advantage=torch.tensor(advantages, dtype=log_ratio.dtype), weight=ones, term_weight=ones, old_logprobs=old,
        rollout_logprobs=old, is_on_policy=on_policy,
    )  # fmt: skip
    return logprobs, micro


def relative(ours: Tensor | np.ndarray, theirs: Tensor | np.ndarray) -> float:
    """Largest difference relative to the largest value."""
    ours, theirs = torch.as_tensor(ours).double(), torch.as_tensor(theirs).double()
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-300))


STREAMS = [[2, 5, 7, 7], [3, 9, -9], [4, -9, -9], [2, 6]]
STREAM_CORRECT = [[0, 1, 0, 1], [1, 0, 0], [0, 0, 0], [0, 1]]
"""Lengths of the tracks of four streams of EqLen, truncated ones below 0, and whether each is correct; two streams a prompt."""


def respond(stream: int, track: int, length: int, right: int) -> Response:
    """Tracks 0 and 1 start together; every other one inherits what the one before it in order of ending had as its length."""
    size = abs(length)
    round = max(track - 1, 0)
    inherited = sorted(map(abs, STREAMS[stream]))[round - 1] if round else 0
    return Response(
        prompt=stream // 2, token_ids=(1, 2, *range(10, 10 + size - 1), 100 + track), num_prompt=2, logprobs=(-1.0,) * size,
        finish="length" if length < 0 else "stop", seed=10 * stream + track, stream=stream % 2, track=track, round=round,
        inherited=inherited, outcome=float(right), status="correct" if right else "incorrect",
    )  # fmt: skip
