"""What TRL's reward functions say of responses: outcomes, and verdicts, which TRL has none of."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from fairlen.batch import NO_VERDICT, Floats
from fairlen.precision import is_above
from fairlen.rollouts import Response, Status


@dataclass(frozen=True)
class Outcomes:
    """What the reward functions said of some responses, [N]."""

    outcome: Floats
    """Weighted sum of the reward functions that apply, in their precision, float32; 0 where none does."""
    verdict: Floats
    """1 where the outcome is above the threshold, 0 where it is not, nan where no function applies."""

    @classmethod
    def read(cls, rewards: Tensor, weights: Tensor, threshold: float | None) -> Outcomes:
        """From rewards by function, [N, F], nan where one does not apply, and the functions' weights, [F].

        Without a threshold it is half of the most that functions which return 0 to 1 and apply to a row could give it.
        """
        values, weight = rewards.double().cpu().numpy(), weights.double().cpu().numpy()
        applies = ~np.isnan(values)
        outcome = np.nansum(values * weight, axis=1).astype(np.float32).astype(np.float64)
        limit = (applies * weight.clip(min=0.0)).sum(axis=1) / 2.0 if threshold is None else threshold
        return cls(outcome, np.where(applies.any(axis=1), is_above(outcome, limit), NO_VERDICT))

    def grade(self, responses: list[Response]) -> list[Response]:
        """The responses with their outcomes."""
        statuses: dict[float, Status] = {0.0: "incorrect", 1.0: "correct"}
        found = zip(responses, self.outcome.tolist(), self.verdict.tolist(), strict=True)
        return [
            replace(response, outcome=outcome, status=statuses.get(verdict, "unverified"), active=verdict in statuses)
            for response, outcome, verdict in found
        ]
