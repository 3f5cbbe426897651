"""Non-finite numbers: found before they do harm, dumped, counted, and fatal after three in a row."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fairlen.batch import Response, Rollouts

MOST_IN_A_ROW = 3

LOOK_AT = {
    "outcome": "a reward function returned it: look at the response's text in the dump",
    "rollout_logprobs": "the engine sampled from broken logits: the weights may be damaged, or the learning rate too high",
    "logprobs": "the trainer's forward pass: the weights may be damaged, or the learning rate too high",
    "loss": "the surrogate or a term overflowed: look at the log ratios; fewer updates per rollout batch keep them small",
    "gradient": "the backward pass overflowed: lower the learning rate, or train in float32",
}


class NonFiniteError(RuntimeError):
    """Training was given up after several non-finite updates in a row."""


@dataclass
class Guard:
    """Skips what is not finite and remembers how often in a row."""

    folder: Path
    """Where dumps go."""
    num_skipped: int = 0
    num_in_a_row: int = 0

    def allows(self, quantity: str, is_finite: bool, update: int, responses: Iterable[Response]) -> bool:
        """True if finite. Else dumps the responses, counts, and raises NonFiniteError at the third time in a row."""
        if is_finite:
            return True
        self.num_skipped += 1
        self.num_in_a_row += 1
        path = self.dump(quantity, update, responses)
        if self.num_in_a_row >= MOST_IN_A_ROW:
            raise NonFiniteError(
                f"{quantity} was not finite in {self.num_in_a_row} updates in a row, the last before update {update}: "
                f"{LOOK_AT[quantity]}. The responses are in {path}; nothing non-finite was saved"
            )
        return False

    def passed(self) -> None:
        """An update was made: the row of failures is broken."""
        self.num_in_a_row = 0

    def dump(self, quantity: str, update: int, responses: Iterable[Response]) -> Path:
        """Writes the responses as JSON lines; numbers that are not finite as text."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"update-{update:06d}-{quantity}-{self.num_skipped}.jsonl"
        with path.open("w") as file:
            for response in responses:
                row = asdict(response)
                row["outcome"] = response.outcome if math.isfinite(response.outcome) else str(response.outcome)
                row["logprobs"] = [x if math.isfinite(x) else str(x) for x in response.logprobs]
                file.write(json.dumps(row) + "\n")
        return path


def find_non_finite(rollouts: Rollouts) -> str | None:
    """Which quantity of a rollout batch is not finite, or None."""
    if any(r.active and not math.isfinite(r.outcome) for r in rollouts.responses):
        return "outcome"
    if not all(np.isfinite(r.logprobs).all() for r in rollouts.responses):
        return "rollout_logprobs"
    return None
