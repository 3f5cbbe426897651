"""Padded rows of a framework to tokens back to back, and back again: the only place of an adapter that knows masks.

    scored rollout batch -> columns of rows     plan_rows
    padded [N, L] <-> trained tokens [T]        TrainedTokens

Index sets: **N** rows of the framework, **L** their padded width, **B** those rows that train, **T** their trained tokens.
A mask may have holes (answers of tools, turns of a user): the trained tokens of a row are one sequence, back to back. Rows that
do not count (padding of the framework, no verdict, no trained token) are in no count and in no loss.

Not here: anything of TRL or verl, prompts, positions, the forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fairlen.batch import Bools, Floats, Ints
from fairlen.methods.method import Method, Scored, updates
from fairlen.methods.stages.micro import Micro, MicroWithRef


@dataclass(frozen=True)
class RowPlan:
    """A plan on the rows of a framework, [N]; all 0 where a row does not train."""

    trains: Bools
    advantage: Floats
    weight: Floats
    """Per trained token of its row; the loss is the plain sum of weight * token loss."""
    term_weight: Floats
    """The same for terms (KL, entropy)."""

    @property
    def folded(self) -> Floats:
        """weight * advantage: what a row counts for."""
        return self.weight * self.advantage


def plan_rows(
    method: Method, scored: Scored, row_of: Ints | None = None, num_rows: int | None = None, num_updates: int = 1
) -> RowPlan:
    """The plan of a whole rollout batch, back on the rows of a framework.

    `row_of` [B] says which row a segment lies in, by default its own number; `num_rows` how many there are, rows of no segment
    included. A framework that makes `num_updates` updates of the rows, each of about as many, gets weights multiplied by it: then
    an update is worth as much as if it had been planned alone. Groups may be split over them; N, M and Z are the rollout batch's.
    """
    rows = np.arange(len(scored.segments)) if row_of is None else row_of
    size = len(scored.segments) if num_rows is None else num_rows
    trains, columns = np.zeros(size, np.bool_), np.zeros((3, size))
    for update in updates(scored):
        plan = method.weigh(update)
        chosen = rows[plan.rows]
        trains[chosen] = True
        columns[:, chosen] = plan.advantage, num_updates * plan.weight, num_updates * plan.term_weight
    return RowPlan(trains, *columns)


@dataclass(frozen=True)
class TrainedTokens:
    """Where the trained tokens of padded rows are."""

    mask: Tensor
    """Bool, [N, L]; all false in rows that do not train."""
    rows: Tensor
    """The rows that train, int64, [B]."""
    length: Tensor
    """Trained tokens of each, int64, [B]."""

    @classmethod
    def find(cls, mask: Tensor, trains: Tensor | None = None) -> TrainedTokens:
        """By the framework's mask [N, L] (any type, 0 is off) and, where not every row counts, by `trains` [N]."""
        chosen = mask.bool() if trains is None else mask.bool() & trains.bool()[:, None]
        length = chosen.sum(1)
        rows = length.nonzero()[:, 0]
        return cls(chosen, rows, length[rows])

    def gather(self, padded: Tensor) -> Tensor:
        """[N, L] -> [T], row after row."""
        return padded[self.mask]

    def micro(
        self,
        advantage: Tensor,
        weight: Tensor,
        term_weight: Tensor,
        *,
        old_logprobs: Tensor,
        rollout_logprobs: Tensor | None = None,
        ref_logprobs: Tensor | None = None,
        is_on_policy: bool = False,
    ) -> Micro:
        """What `method.loss` wants, from columns [N] and padded log-probs [N, L].

        Without `rollout_logprobs` the engine is taken to be exact; with `ref_logprobs` it is a `MicroWithRef`.
        """
        old = self.gather(old_logprobs)
        micro = Micro(
            length=self.length,
            sequence=torch.repeat_interleave(torch.arange(len(self.rows), device=self.rows.device), self.length),
            advantage=advantage[self.rows],
            weight=weight[self.rows],
            term_weight=term_weight[self.rows],
            old_logprobs=old,
            rollout_logprobs=old if rollout_logprobs is None else self.gather(rollout_logprobs),
            is_on_policy=is_on_policy,
        )
        return micro if ref_logprobs is None else MicroWithRef(**vars(micro), ref_logprobs=self.gather(ref_logprobs))
