"""From TRL's rewards to a plan of its rows: outcomes, verdicts, and the columns that travel with a rollout batch.

TRL has no verdict: an answer counts as right where its outcome is above a threshold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairlen.batch import NO_VERDICT, Floats, Ints, Response, Status
from fairlen.integrations.padded import RowPlan

ADVANTAGE, WEIGHT, TERM_WEIGHT, TRAINS = "fair_advantage", "fair_weight", "fair_term_weight", "fair_trains"
"""Columns of a rollout batch inside TRL; TRL shuffles and splits them with its own."""


@dataclass(frozen=True)
class Outcomes:
    """What the reward functions said of some responses, [N]."""

    outcome: Floats
    """Weighted sum of the reward functions that apply; 0 where none does."""
    verdict: Floats
    """1 where the outcome is above the threshold, 0 where it is not, nan where no function applies."""

    @classmethod
    def read(cls, rewards: Tensor, weights: Tensor, threshold: float | None) -> Outcomes:
        """From rewards by function, [N, F], nan where one does not apply, and the functions' weights, [F].

        Without a threshold it is half of the most that functions which return 0 to 1 and apply to a row could give it.
        """
        values, weight = rewards.double().cpu().numpy(), weights.double().cpu().numpy()
        applies = ~np.isnan(values)
        outcome = np.nansum(values * weight, axis=1)
        limit = (applies * weight.clip(min=0.0)).sum(axis=1) / 2.0 if threshold is None else threshold
        return cls(outcome, np.where(applies.any(axis=1), outcome > limit, NO_VERDICT))

    def grade(self, responses: list[Response]) -> list[Response]:
        """The responses with their outcomes."""
        statuses: dict[float, Status] = {0.0: "incorrect", 1.0: "correct"}
        return [
            replace(
                response, outcome=float(outcome), status=statuses.get(verdict, "unverified"), active=verdict in statuses
            )
            for response, outcome, verdict in zip(responses, self.outcome, self.verdict.tolist(), strict=True)
        ]


def check_threshold(threshold: float | None, weights: Tensor) -> None:
    """Raises ValueError for one that is no finite number, and for none where no weight is positive.

    Half of nothing would call every answer right or none.
    """
    if threshold is not None and not (isinstance(threshold, Real) and math.isfinite(threshold)):
        raise ValueError(f"correct_threshold={threshold!r}: give a finite number")
    if threshold is None and not bool((weights > 0).any()):
        raise ValueError(
            f"reward_weights={weights.tolist()}: none is positive, so that nothing says which answers are right; give "
            "correct_threshold, or a positive weight"
        )


def columns_of(plan: RowPlan, rows: slice | Ints, num_rows: int, device: torch.device) -> dict[str, Tensor]:
    """Chosen rows of a plan as tensors of `num_rows` rows; the rest are padding that does not train."""

    def column(values: np.ndarray, dtype: torch.dtype) -> Tensor:
        chosen = torch.from_numpy(values[rows])
        return torch.cat([chosen, chosen.new_zeros(num_rows - len(chosen))]).to(device, dtype)

    return {
        "advantages": column(plan.advantage, torch.float32),
        ADVANTAGE: column(plan.advantage, torch.float64),
        WEIGHT: column(plan.weight, torch.float64),
        TERM_WEIGHT: column(plan.term_weight, torch.float64),
        TRAINS: column(plan.trains, torch.bool),
    }


def split_rows(inputs: dict[str, Tensor | None], size: int) -> list[dict[str, Tensor | None]]:
    """A micro-batch in parts of at most `size` rows: batches of pairs have more rows than TRL's settings ask for."""
    num_rows = len(inputs["completion_ids"])  # type: ignore[arg-type]
    if num_rows <= size:
        return [inputs]
    parts = range(0, num_rows, size)

    def part(value: Tensor | None, first: int) -> Tensor | None:
        return value[first : first + size] if value is not None and value.ndim else value

    return [{name: part(value, first) for name, value in inputs.items()} for first in parts]


def loss_mask(inputs: dict[str, Any]) -> Tensor:
    """1 on trained tokens, [N, L]: completions without what tools and environments wrote."""
    mask = inputs["completion_mask"]
    return mask * inputs["tool_mask"] if "tool_mask" in inputs else mask
