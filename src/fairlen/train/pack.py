"""Whole sequences into micro-batches: the only place of our own trainer that knows padding and shifts.

Rows are sorted by length, so that rows of a micro-batch differ little, and padded on the right. A causal model never looks to the
right, so no mask is needed: the padding is computed and not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fairlen.batch import Ints, Plan, Response, Rollouts, Segment
from fairlen.micro import Micro

CPU = torch.device("cpu")
NONE_RECOMPUTED: Mapping[int, Tensor] = {}


@dataclass(frozen=True)
class ModelInput:
    """What a model reads, and where the trained tokens are in it."""

    token_ids: Tensor
    """[rows, width], padded on the right with token 0, of which nothing depends."""
    source: Tensor
    """For each trained token the flat position that predicts it, [T]."""
    target: Tensor
    """Each trained token, [T]."""
    temperature: float


@dataclass(frozen=True)
class Packed:
    """One micro-batch."""

    inputs: ModelInput
    micro: Micro
    rows: Ints
    """Which rows of the plan these sequences are, [B]."""


def pack(
    rollouts: Rollouts,
    plan: Plan,
    max_tokens: int,
    *,
    is_on_policy: bool = True,
    old_logprobs: Mapping[int, Tensor] = NONE_RECOMPUTED,
    device: torch.device = CPU,
) -> Iterator[Packed]:
    """The micro-batches of one update: whole sequences, at most `max_tokens` positions each unless one row is longer.

    `is_on_policy`: the model still has the weights that generated the rollout batch. `old_logprobs` has the
    trainer's log-probs of a segment by its row in the rollout batch, where the engine's are not exact.
    """
    spans = [rollouts.segments[row] for row in plan.rows]
    for chosen in split_rows(np.array([span.stop for span in spans]), max_tokens):
        picked = [spans[i] for i in chosen]
        responses = [rollouts.responses[span.response] for span in picked]
        inputs = build_input(picked, responses, device)
        yield Packed(inputs, build_micro(picked, responses, plan, chosen, old_logprobs, is_on_policy, device), chosen)


NARROWEST = 0.8
"""A row joins a micro-batch while it is at least this share of its width: fewer, larger calls against less padding."""


def split_rows(widths: Ints, max_tokens: int) -> Iterator[Ints]:
    """Row numbers by falling width, cut where rows * width would pass `max_tokens` or rows become much shorter."""
    order = np.argsort(-widths, kind="stable")
    while len(order):
        width = int(widths[order[0]])
        similar = int((widths[order] >= NARROWEST * width).sum())
        take = min(similar, max(1, max_tokens // width))
        yield order[:take]
        order = order[take:]


def build_input(spans: list[Segment], responses: list[Response], device: torch.device) -> ModelInput:
    """Token ids up to the end of each span, and where its tokens are predicted."""
    width = max(span.stop for span in spans) - 1
    token_ids = np.zeros((len(spans), width), np.int64)
    source, target = [], []
    for row, (span, response) in enumerate(zip(spans, responses, strict=True)):
        token_ids[row, : span.stop - 1] = response.token_ids[: span.stop - 1]
        source.append(np.arange(span.start - 1, span.stop - 1) + row * width)
        target.append(np.asarray(response.token_ids[span.start : span.stop], np.int64))
    return ModelInput(
        token_ids=torch.from_numpy(token_ids).to(device),
        source=torch.from_numpy(np.concatenate(source)).to(device),
        target=torch.from_numpy(np.concatenate(target)).to(device),
        temperature=responses[0].temperature,
    )


def build_micro(
    spans: list[Segment],
    responses: list[Response],
    plan: Plan,
    chosen: Ints,
    old_logprobs: Mapping[int, Tensor],
    is_on_policy: bool,
    device: torch.device,
) -> Micro:
    """The plan's numbers and the fixed log-probs of these sequences."""
    length = plan.length[chosen]
    sampled = [
        r.logprobs[s.start - r.num_prompt : s.stop - r.num_prompt] for s, r in zip(spans, responses, strict=True)
    ]
    rollout = torch.from_numpy(np.concatenate([np.asarray(x, np.float64) for x in sampled])).to(device)
    old = [old_logprobs[row] for row in plan.rows[chosen].tolist()] if old_logprobs else []

    def column(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values[chosen]).to(device)

    return Micro(
        length=torch.from_numpy(length).to(device),
        sequence=torch.from_numpy(np.repeat(np.arange(len(length)), length)).to(device),
        advantage=column(plan.advantage),
        weight=column(plan.weight),
        term_weight=column(plan.term_weight),
        old_logprobs=torch.cat(old).to(device) if old else rollout,
        rollout_logprobs=rollout,
        is_on_policy=is_on_policy,
    )
