"""Whole sequences into micro-batches: the only place of our own trainer that knows padding and shifts.

Rows are padded on the right, where a causal model never looks; trees hold shared tokens once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairlen.batch import Ints, Plan
from fairlen.engine.device import upload
from fairlen.methods.stages.micro import Micro
from fairlen.policy.support import WHOLE, Support, build_support
from fairlen.policy.tree import Forest, ForestMask, SortedRows, sort_rows
from fairlen.rollouts import Response, Rollouts, Segment

CPU = torch.device("cpu")
NONE_RECOMPUTED: Mapping[int, Tensor] = {}
Pieces = Sequence[tuple[Segment, Response]]
"""Spans that train, each with its response."""


@dataclass(frozen=True)
class ModelInput:
    """Input of a forward pass, and places of the trained tokens in it."""

    token_ids: Tensor  # [rows, width], padded on the right with token 0, which changes nothing
    source: Tensor  # for each trained token the flat position that predicts it, [T]
    target: Tensor  # each trained token, [T]
    temperature: float
    support: Support = field(default=WHOLE, kw_only=True)


@dataclass(frozen=True)
class TreeInput(ModelInput):
    """A forest: `token_ids` is one row [1, N] with shared tokens once, and a position may have several targets."""

    position_ids: Tensor  # of each token in its sequence, [1, N]
    tree: ForestMask


@dataclass(frozen=True)
class Packed:
    inputs: ModelInput
    micro: Micro
    rows: Ints  # of the plan, [B]; none in an idle one

    @property
    def is_idle(self) -> bool:
        """Whether it stands for an update without sequences: one of weight 0, which runs forward and backward."""
        return len(self.rows) == 0


def pack(
    rollouts: Rollouts,
    plan: Plan,
    max_tokens: int,
    *,
    trees: bool = False,
    is_on_policy: bool = True,
    old_logprobs: Mapping[int, Tensor] = NONE_RECOMPUTED,
    device: torch.device = CPU,
) -> Iterator[Packed]:
    """Yield the micro-batches of one update: whole sequences, at most `max_tokens` positions each unless one row is longer.

    `trees`: shared tokens are there once, for models that can read it; a tree that is too large is cut, and repeats its prefix.
    `is_on_policy`: the model still has the weights that generated the rollout batch. `old_logprobs`: the trainer's log-probs by
    row in the rollout batch, where the engine's are not exact. A plan without rows gives one idle micro-batch.
    """
    if not len(plan):
        yield make_idle(rollouts, device)
        return
    spans = [rollouts.segments[row] for row in plan.rows]
    if trees:
        found = sort_spans(rollouts, spans)
        parts = ((found.order[part], partial(build_tree_input, found.forest(part))) for part in found.split(max_tokens))
    else:
        widths = np.array([span.stop for span in spans])
        parts = ((chosen, build_input) for chosen in split_rows(widths, max_tokens))
    for chosen, build in parts:
        pieces = [(spans[i], rollouts.responses[spans[i].response]) for i in chosen]
        micro = build_micro(pieces, plan, chosen, old_logprobs, is_on_policy, device)
        yield Packed(build(pieces, device), micro, chosen)


def make_idle(rollouts: Rollouts, device: torch.device) -> Packed:
    """One sequence of the rollout batch, or the last token of its first response, with weight 0."""
    last = len(rollouts.responses[0].token_ids)
    span = rollouts.segments[0] if rollouts.segments else Segment(response=0, start=last - 1, stop=last, group=0)
    zero, response = np.zeros(1), rollouts.responses[span.response]
    length = np.array([len(response.positions(span.start, span.stop))])
    plan = Plan(np.zeros(1, np.int64), length, zero, zero, zero)
    micro = build_micro([(span, response)], plan, plan.rows, NONE_RECOMPUTED, True, device)
    return Packed(build_input([(span, response)], device), micro, plan.rows[:0])


def sort_spans(rollouts: Rollouts, spans: Sequence[Segment]) -> SortedRows:
    wanted = {span.response for span in spans}
    tokens = {response: np.array(rollouts.responses[response].token_ids, np.int64) for response in wanted}
    return sort_rows([tokens[span.response][: span.stop - 1] for span in spans])


def split_rows(widths: Ints, max_tokens: int) -> Iterator[Ints]:
    """Yield row numbers by falling width, cut where rows * width would pass `max_tokens` or rows become much shorter.

    A row joins while it has at least 0.8 of the width: fewer, larger calls against less padding.
    """
    order = np.argsort(-widths, kind="stable")
    while len(order):
        width = int(widths[order[0]])
        similar = int((widths[order] >= 0.8 * width).sum())
        take = min(similar, max(1, max_tokens // width))
        yield order[:take]
        order = order[take:]


def build_input(pieces: Pieces, device: torch.device) -> ModelInput:
    """Padded rows up to the end of each span."""
    width = max(span.stop for span, _ in pieces) - 1
    token_ids = np.zeros((len(pieces), width), np.int64)
    for row, (span, response) in enumerate(pieces):
        token_ids[row, : span.stop - 1] = response.token_ids[: span.stop - 1]
    source = (at + row * width for row, at in enumerate(find_sources(pieces)))
    return ModelInput(token_ids=upload(token_ids, device), source=join(source, device), **find_target(pieces, device))


def build_tree_input(forest: Forest, pieces: Pieces, device: torch.device) -> TreeInput:
    source = (path[at] for path, at in zip(forest.paths, find_sources(pieces), strict=True))
    return TreeInput(
        token_ids=upload(forest.tokens, device)[None],
        source=join(source, device),
        position_ids=upload(forest.depth, device)[None],
        tree=ForestMask(forest, device),
        **find_target(pieces, device),
    )


def find_sources(pieces: Pieces) -> Iterator[Ints]:
    """Yield for each span the positions that predict its trained tokens."""
    for span, response in pieces:
        yield np.asarray(response.positions(span.start, span.stop)) - 1


def find_target(pieces: Pieces, device: torch.device) -> dict[str, Any]:
    """The trained tokens of the spans, back to back, and what they were drawn from."""
    target = np.concatenate([[r.token_ids[at] for at in r.positions(s.start, s.stop)] for s, r in pieces])
    support = WHOLE
    if any(response.supports for _, response in pieces):
        support = build_support((one for s, r in pieces for one in r.supports_of(s.start, s.stop)), target, device)
    return {"target": upload(target, device), "temperature": pieces[0][1].temperature, "support": support}


def join(parts: Iterable[Sequence[float] | Ints], device: torch.device) -> Tensor:
    """Concatenate; integers are int64, others float64."""
    return upload(np.concatenate([np.asarray(part) for part in parts]), device)


def build_micro(
    pieces: Pieces,
    plan: Plan,
    chosen: Ints,
    old_logprobs: Mapping[int, Tensor],
    is_on_policy: bool,
    device: torch.device,
) -> Micro:
    """The plan's numbers and the fixed log-probs of these sequences."""
    length = plan.length[chosen]
    rollout = join((r.logprobs_of(s.start, s.stop) for s, r in pieces), device).double()
    old = [old_logprobs[row] for row in plan.rows[chosen].tolist()] if old_logprobs else []

    def column(values: np.ndarray) -> Tensor:
        return upload(values[chosen], device)

    return Micro(
        length=upload(length, device),
        sequence=upload(np.repeat(np.arange(len(length)), length), device),
        advantage=column(plan.advantage),
        weight=column(plan.weight),
        term_weight=column(plan.term_weight),
        bounded=column(plan.bounded) if len(plan.bounded) else None,
        old_logprobs=torch.cat(old).to(device) if old else rollout,
        rollout_logprobs=rollout,
        is_on_policy=is_on_policy,
    )
